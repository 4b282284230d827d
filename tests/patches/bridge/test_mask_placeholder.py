"""`mask-placeholder`: the real `get_batch` and a batch whose attention mask has shape [1]."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.patches.bridge.conftest import Index
from tests.patches.bridge.real_code import BEFORE_06, GPT_STEP, groups, load, step_stand_ins

PATCH = ("mask-placeholder",)


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self, **_: self)


def get_batch(version: str, patches: tuple[str, ...], mask: torch.Tensor, draw: random.Random) -> Any:
    lengths = [4 * draw.randint(1, 9) for _ in range(draw.randint(1, 5))]
    ends = torch.tensor([0, *lengths, -1 - sum(lengths)]).cumsum(0)[None].int()
    token_keys = ("tokens", "labels", "loss_mask", "position_ids")
    batch = {key: torch.arange(sum(lengths))[None] for key in token_keys}
    argmin = torch.tensor([[len(lengths) + 1]])
    batch |= {"cu_seqlens": ends, "cu_seqlens_argmin": argmin, "max_seqlen": torch.tensor([[max(lengths)]])}
    cfg = SimpleNamespace(dataset=SimpleNamespace(skip_getting_attention_mask_from_dataset=False))
    step = load(version, GPT_STEP, patches, **step_stand_ins())
    return step.get_batch(iter([{**batch, "attention_mask": mask}]), cfg, pg_collection=groups(cp=2))


@pytest.mark.parametrize("version", BEFORE_06)
def test_the_placeholder_stays_whole(version: str, index: Index, draw: random.Random) -> None:
    mask = torch.LongTensor([1])
    assert torch.equal(get_batch(version, PATCH, mask, draw)[3], mask)
    with pytest.raises(IndexError, match="Dimension out of range"):
        get_batch(version, (), mask, draw)


@pytest.mark.parametrize("version", BEFORE_06)
def test_a_mask_of_the_whole_pack_stays_whole(version: str, index: Index, draw: random.Random) -> None:
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool)
    assert torch.equal(get_batch(version, PATCH, mask, draw)[3], mask)

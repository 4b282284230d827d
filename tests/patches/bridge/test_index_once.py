"""`index-once`: the real partition function computes the index once a batch, and anew for each batch."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.patches.bridge.conftest import Index
from tests.patches.bridge.real_code import BEFORE_06, GPT_STEP, load, step_stand_ins

PATCH = ("index-once",)
KEYS = ("tokens", "labels", "loss_mask", "position_ids")


def batch(lengths: list[int]) -> dict[str, Any]:
    ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return {"cu_seqlens": ends, "max_seqlen": None, **{key: torch.arange(sum(lengths))[None] for key in KEYS}}


@pytest.mark.parametrize("version", BEFORE_06)
def test_one_call_a_batch(version: str, index: Index, draw: random.Random) -> None:
    given = batch([4 * draw.randint(1, 9) for _ in range(draw.randint(1, 9))])
    results = []
    for patches, calls in ((PATCH, 1), ((), len(KEYS))):
        step, index.calls = load(version, GPT_STEP, patches, **step_stand_ins()), 0
        results.append(step._partition_packed_batch_for_cp(dict(given), 2))
        assert index.calls == calls
    assert all(torch.equal(results[0][key], results[1][key]) for key in KEYS)


@pytest.mark.parametrize("version", BEFORE_06)
def test_two_packs_of_one_size(version: str, index: Index) -> None:
    patched = load(version, GPT_STEP, PATCH, **step_stand_ins())
    plain = load(version, GPT_STEP, **step_stand_ins())
    for lengths in ([8, 8, 16], [16, 8, 8], [32], [8, 8, 16]):
        ours = patched._partition_packed_batch_for_cp(batch(lengths), 2)
        theirs = plain._partition_packed_batch_for_cp(batch(lengths), 2)
        assert all(torch.equal(ours[key], theirs[key]) for key in KEYS)


@pytest.mark.parametrize("version", BEFORE_06)
def test_a_tensor_of_another_length_has_its_own_index(version: str, index: Index) -> None:
    given = {**batch([8, 8]), "extra": torch.arange(8)[None]}
    split = load(version, GPT_STEP, PATCH, **step_stand_ins())._partition_packed_batch_for_cp(given, 2)
    assert split["extra"].shape == (1, 4)
    assert split["tokens"].shape == (1, 8)
    assert index.calls == 2

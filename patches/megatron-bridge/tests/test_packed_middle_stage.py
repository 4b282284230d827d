# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megatron.bridge.training import gpt_step


METADATA = ("cu_seqlens", "cu_seqlens_argmin", "max_seqlen")


@pytest.fixture(autouse=True)
def three_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline of three stages, on a CPU."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor, **_: tensor)
    monkeypatch.setattr(gpt_step, "is_pp_first_stage", lambda group: group.rank() == 0)
    monkeypatch.setattr(gpt_step, "is_pp_last_stage", lambda group: group.rank() == 2)


def packed() -> dict[str, Any]:
    """A pack of three sequences."""
    per_token = {key: torch.arange(24).unsqueeze(0) for key in ("tokens", "labels", "loss_mask", "position_ids")}
    return {
        **per_token,
        "attention_mask": torch.ones(1),
        "cu_seqlens": torch.tensor([[0, 8, 12, 24, -1]], dtype=torch.int32),
        "cu_seqlens_argmin": torch.tensor([[4]]),
        "max_seqlen": torch.tensor([[12]], dtype=torch.int32),
    }


def read(stage: int, batches: Iterator[dict[str, Any]], pack_size: int) -> Any:
    """What a stage gets of a batch; packing is on for sizes above 0."""
    specs = SimpleNamespace(packed_sequence_size=pack_size)
    cfg: Any = SimpleNamespace(dataset=SimpleNamespace(packed_sequence_specs=specs), model=None)
    groups = SimpleNamespace(
        pp=SimpleNamespace(rank=lambda: stage, size=lambda: 3), cp=SimpleNamespace(rank=lambda: 0, size=lambda: 1)
    )
    return gpt_step.get_batch(batches, cfg, pg_collection=groups)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_every_stage_knows_the_sequences_of_the_pack(stage: int) -> None:
    tokens, labels, *_ = found = read(stage, iter([packed()]), 24)
    assert (tokens is not None) == (stage == 0)
    assert (labels is not None) == (stage == 2)
    assert [value.tolist() for value in found[5:8]] == [packed()[key].tolist() for key in METADATA]


@pytest.mark.parametrize("pack_size", [-1, 0])
def test_without_packing_a_stage_in_the_middle_reads_nothing(pack_size: int) -> None:
    batches = iter([packed()])
    assert all(value is None for value in read(1, batches, pack_size))
    assert len(list(batches)) == 1

# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megatron.bridge.training import gpt_step


METADATA = ("cu_seqlens", "cu_seqlens_argmin", "max_seqlen")


@pytest.fixture(autouse=True)
def middle_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline stage that is neither the first nor the last, on a CPU."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor, **_: tensor)
    monkeypatch.setattr(gpt_step.parallel_state, "is_pipeline_first_stage", lambda: False)
    monkeypatch.setattr(gpt_step.parallel_state, "is_pipeline_last_stage", lambda: False)


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


def config(pack_size: int) -> Any:
    """A run's configuration; packing is on for sizes above 0."""
    specs = SimpleNamespace(packed_sequence_size=pack_size)
    return SimpleNamespace(dataset=SimpleNamespace(packed_sequence_specs=specs))


def unread() -> Iterator[dict[str, Any]]:
    """A data loader that must not be asked."""
    raise AssertionError("a stage without tokens has read a batch")
    yield {}


def test_a_stage_without_tokens_knows_the_sequences_of_the_pack() -> None:
    found = gpt_step.get_batch(iter([packed()]), config(24))
    assert all(value is None for value in found[:5])
    assert [value.tolist() for value in found[5:]] == [packed()[key].tolist() for key in METADATA]


@pytest.mark.parametrize("pack_size", [-1, 0])
def test_without_packing_it_reads_nothing(pack_size: int) -> None:
    assert all(value is None for value in gpt_step.get_batch(unread(), config(pack_size)))

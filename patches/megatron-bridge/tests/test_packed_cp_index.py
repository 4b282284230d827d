# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from megatron.bridge.training import gpt_step


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The cu_seqlens of each call of Transformer Engine's kernel, which keeps the first half of every sequence."""
    found: list[list[int]] = []

    def kernel(cu_seqlens: torch.Tensor, total: int, cp_size: int, cp_rank: int) -> torch.Tensor:
        bounds = cu_seqlens.tolist()
        found.append(bounds)
        halves = [range(start, (start + end) // 2) for start, end in zip(bounds[:-1], bounds[1:])]
        return torch.tensor([token for half in halves for token in half])

    kernels: Any = ModuleType("transformer_engine_torch")
    kernels.thd_get_partitioned_indices = kernel
    monkeypatch.setitem(sys.modules, "transformer_engine_torch", kernels)
    monkeypatch.setattr(gpt_step, "is_te_min_version", lambda _: True)
    monkeypatch.setattr(gpt_step.parallel_state, "get_context_parallel_rank", lambda: 0)
    return found


def batch(*bounds: int) -> dict[str, Any]:
    """A pack with all that is split by token."""
    keys = ("tokens", "labels", "loss_mask", "position_ids")
    per_token = {key: torch.arange(bounds[-1]).unsqueeze(0) for key in keys}
    return {**per_token, "cu_seqlens": torch.tensor([bounds], dtype=torch.int32)}


def test_the_index_is_computed_once_a_batch(calls: list[list[int]]) -> None:
    split = gpt_step._partition_packed_batch_for_cp(batch(0, 8, 24), 2)
    assert calls == [[0, 8, 24]]
    expected = [*range(4), *range(8, 16)]
    for key in ("tokens", "labels", "loss_mask", "position_ids"):
        assert split[key].tolist() == [expected], key


def test_another_pack_of_the_same_size_has_its_own(calls: list[list[int]]) -> None:
    first = gpt_step._partition_packed_batch_for_cp(batch(0, 8, 24), 2)
    second = gpt_step._partition_packed_batch_for_cp(batch(0, 16, 24), 2)
    assert calls == [[0, 8, 24], [0, 16, 24]]
    assert first["tokens"].tolist() != second["tokens"].tolist()

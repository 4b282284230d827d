# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from megatron.bridge.training import gpt_step


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The cu_seqlens that each call of Transformer Engine's kernel is given; two ranks, on a CPU."""
    calls: list[list[int]] = []

    def kernel(cu_seqlens: torch.Tensor, total: int, cp_size: int, cp_rank: int) -> torch.Tensor:
        calls.append(cu_seqlens.tolist())
        return torch.arange(total // cp_size)

    kernels: Any = ModuleType("transformer_engine_torch")
    kernels.thd_get_partitioned_indices = kernel
    monkeypatch.setitem(sys.modules, "transformer_engine_torch", kernels)
    monkeypatch.setattr(gpt_step, "is_te_min_version", lambda _: True)
    monkeypatch.setattr(gpt_step.parallel_state, "get_context_parallel_rank", lambda: 0)
    return calls


def batch(trailing: int, argmin: int | None) -> dict[str, Any]:
    """A pack of three sequences, collated with packs of more."""
    return {
        "tokens": torch.arange(24).unsqueeze(0),
        "cu_seqlens": torch.tensor([[0, 8, 12, 24] + [-1] * trailing], dtype=torch.int32),
        "cu_seqlens_argmin": None if argmin is None else torch.tensor([[argmin]]),
    }


@pytest.mark.parametrize("trailing", [1, 2, 64])
@pytest.mark.parametrize("argmin", [4, None])
def test_the_kernel_is_not_given_the_entries_behind_the_last_sequence(
    seen: list[list[int]], trailing: int, argmin: int | None
) -> None:
    gpt_step._partition_packed_batch_for_cp(batch(trailing, argmin), 2)
    assert seen == [[0, 8, 12, 24]]


@pytest.mark.parametrize("argmin", [0, None])
def test_a_pack_without_such_entries_is_given_whole(seen: list[list[int]], argmin: int | None) -> None:
    gpt_step._partition_packed_batch_for_cp(batch(0, argmin), 2)
    assert seen == [[0, 8, 12, 24]]

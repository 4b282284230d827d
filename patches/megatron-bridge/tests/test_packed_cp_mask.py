# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from megatron.bridge.training import gpt_step


@pytest.fixture(autouse=True)
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two context parallel ranks, on a CPU."""
    kernels: Any = ModuleType("transformer_engine_torch")
    kernels.thd_get_partitioned_indices = lambda cu_seqlens, total, cp_size, cp_rank: torch.arange(total // cp_size)
    monkeypatch.setitem(sys.modules, "transformer_engine_torch", kernels)
    monkeypatch.setattr(gpt_step, "is_te_min_version", lambda _: True)
    monkeypatch.setattr(gpt_step.parallel_state, "get_context_parallel_rank", lambda: 0)


def test_the_placeholder_of_a_packed_batch_stays_whole() -> None:
    split = gpt_step._partition_packed_batch_for_cp(
        {
            "tokens": torch.arange(24).unsqueeze(0),
            "attention_mask": torch.ones(1),
            "cu_seqlens": torch.tensor([[0, 8, 24]], dtype=torch.int32),
        },
        2,
    )
    assert split["attention_mask"].tolist() == [1.0]
    assert split["tokens"].shape == (1, 12)

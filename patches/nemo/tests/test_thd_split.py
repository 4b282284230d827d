# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from megatron.core import parallel_state

from nemo.collections.llm.gpt.model.base import gpt_data_step

Batch = dict[str, torch.Tensor]
Step = Callable[[Batch, int, int], Batch]

PER_TOKEN = ("tokens", "labels", "loss_mask", "position_ids")


def thd_indices(cu_seqlens: torch.Tensor, total_tokens: int, cp_size: int, cp_rank: int) -> torch.Tensor:
    """Stands in for Transformer Engine's kernel: chunk r and chunk 2 * cp - 1 - r of each sequence."""
    bounds = cu_seqlens.tolist()
    assert bounds[-1] == total_tokens
    index: list[int] = []
    for start, end in zip(bounds[:-1], bounds[1:]):
        chunk = (end - start) // (2 * cp_size)
        for number in (cp_rank, 2 * cp_size - 1 - cp_rank):
            index += range(start + number * chunk, start + (number + 1) * chunk)
    return torch.tensor(index, dtype=torch.int32)


@pytest.fixture
def on_rank(monkeypatch: pytest.MonkeyPatch) -> Step:
    """Run the step as one rank of a context parallel group would, on a CPU."""
    kernels: Any = ModuleType("transformer_engine_torch")
    kernels.thd_get_partitioned_indices = thd_indices
    monkeypatch.setitem(sys.modules, "transformer_engine_torch", kernels)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor, **_: tensor)
    monkeypatch.setattr(parallel_state, "is_pipeline_first_stage", lambda **_: True)
    monkeypatch.setattr(parallel_state, "is_pipeline_last_stage", lambda **_: True)

    def step(batch: Batch, cp_size: int, cp_rank: int) -> Batch:
        monkeypatch.setattr(parallel_state, "get_context_parallel_world_size", lambda: cp_size)
        monkeypatch.setattr(parallel_state, "get_context_parallel_rank", lambda: cp_rank)
        split: Batch = gpt_data_step(iter([dict(batch)]))
        return split

    return step


def pack(*lengths: int, trailing: int = 1) -> Batch:
    """A packed batch with a micro batch size of 1; `cu_seqlens` ends with `trailing` entries of -1."""
    total = sum(lengths)
    bounds = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    return {
        "tokens": torch.arange(total).unsqueeze(0),
        "labels": torch.arange(total).unsqueeze(0) + 1000,
        "loss_mask": torch.arange(total).unsqueeze(0) % 3 / 2,
        "position_ids": torch.cat([torch.arange(length) for length in lengths]).unsqueeze(0),
        "attention_mask": torch.ones(1),
        "cu_seqlens": torch.tensor([bounds + [-1] * trailing], dtype=torch.int32),
        "cu_seqlens_argmin": torch.tensor([[len(bounds)]], dtype=torch.int32),
        "max_seqlen": torch.tensor([[max(lengths)]], dtype=torch.int32),
    }


@pytest.mark.unit
@pytest.mark.parametrize("trailing", [1, 3])
def test_a_rank_keeps_its_two_chunks_of_each_sequence(on_rank: Step, trailing: int) -> None:
    batch = pack(8, 4, 12, trailing=trailing)
    first, second = (on_rank(batch, 2, rank)["tokens"].tolist() for rank in (0, 1))
    assert first == [[0, 1, 6, 7, 8, 11, 12, 13, 14, 21, 22, 23]]
    assert second == [[2, 3, 4, 5, 9, 10, 15, 16, 17, 18, 19, 20]]


@pytest.mark.unit
@pytest.mark.parametrize("cp_size", [2, 4])
def test_the_ranks_share_out_every_token_with_all_that_belongs_to_it(on_rank: Step, cp_size: int) -> None:
    batch = pack(16, 8, 40)
    parts = [on_rank(batch, cp_size, rank) for rank in range(cp_size)]
    where = torch.cat([part["tokens"] for part in parts], dim=1)[0]
    assert sorted(where.tolist()) == list(range(64))
    for key in PER_TOKEN:
        assert torch.equal(torch.cat([part[key] for part in parts], dim=1), batch[key][:, where]), key


@pytest.mark.unit
def test_what_describes_the_pack_stays_whole(on_rank: Step) -> None:
    batch = pack(8, 4, 12)
    split = on_rank(batch, 2, 1)
    for key in batch.keys() - set(PER_TOKEN):
        assert torch.equal(split[key], batch[key]), key


@pytest.mark.unit
def test_a_second_pack_of_the_same_size_is_split_by_its_own_lengths(on_rank: Step) -> None:
    assert on_rank(pack(8, 16), 2, 0)["tokens"].tolist() != on_rank(pack(16, 8), 2, 0)["tokens"].tolist()


@pytest.mark.unit
@pytest.mark.parametrize("cp_rank", [0, 1])
def test_lengths_that_cannot_be_split_are_refused_on_every_rank(on_rank: Step, cp_rank: int) -> None:
    with pytest.raises(ValueError, match="pad_seq_to_mult"):
        on_rank(pack(8, 6, 10), 2, cp_rank)


@pytest.mark.unit
def test_without_context_parallelism_nothing_changes(on_rank: Step) -> None:
    batch = pack(7, 6, 11)
    split = on_rank(batch, 1, 0)
    for key in batch:
        assert torch.equal(split[key], batch[key]), key

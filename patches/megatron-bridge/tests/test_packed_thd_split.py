# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from megatron.bridge.training import gpt_step


PER_TOKEN = ("tokens", "labels", "loss_mask", "position_ids")


def thd_indices(cu_seqlens: torch.Tensor, total: int, cp_size: int, cp_rank: int) -> torch.Tensor:
    """Stands in for Transformer Engine's kernel: chunk r and chunk 2 * cp - 1 - r of each sequence."""
    bounds = cu_seqlens.tolist()
    assert bounds[-1] == total
    index: list[int] = []
    for start, end in zip(bounds[:-1], bounds[1:]):
        chunk = (end - start) // (2 * cp_size)
        for number in (cp_rank, 2 * cp_size - 1 - cp_rank):
            index += range(start + number * chunk, start + (number + 1) * chunk)
    return torch.tensor(index, dtype=torch.int32)


def part(monkeypatch: pytest.MonkeyPatch, batch: dict[str, Any], cp_size: int, cp_rank: int) -> dict[str, Any]:
    """What one rank keeps of a pack, on a CPU."""
    kernels: Any = ModuleType("transformer_engine_torch")
    kernels.thd_get_partitioned_indices = thd_indices
    monkeypatch.setitem(sys.modules, "transformer_engine_torch", kernels)
    monkeypatch.setattr(gpt_step.parallel_state, "get_context_parallel_rank", lambda: cp_rank)
    split: dict[str, Any] = gpt_step._partition_packed_batch_for_cp(dict(batch), cp_size)
    return split


def pack(*lengths: int, trailing: int = 1) -> dict[str, Any]:
    """A packed batch of micro batch size 1; its cu_seqlens ends with that many entries of -1."""
    total = sum(lengths)
    bounds = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    return {
        **{key: torch.arange(total).unsqueeze(0) + 100 * at for at, key in enumerate(PER_TOKEN)},
        "attention_mask": torch.ones(1),
        "cu_seqlens": torch.tensor([bounds + [-1] * trailing], dtype=torch.int32),
        "cu_seqlens_argmin": torch.tensor([[len(bounds)]]),
        "max_seqlen": torch.tensor([[max(lengths)]], dtype=torch.int32),
    }


@pytest.mark.parametrize("trailing", [1, 3])
def test_a_rank_keeps_its_two_chunks_of_each_sequence(monkeypatch: pytest.MonkeyPatch, trailing: int) -> None:
    batch = pack(8, 4, 12, trailing=trailing)
    first, second = (part(monkeypatch, batch, 2, rank)["tokens"].tolist() for rank in (0, 1))
    assert first == [[0, 1, 6, 7, 8, 11, 12, 13, 14, 21, 22, 23]]
    assert second == [[2, 3, 4, 5, 9, 10, 15, 16, 17, 18, 19, 20]]


@pytest.mark.parametrize("cp_size", [2, 4])
def test_the_ranks_share_out_every_token_with_all_that_belongs_to_it(
    monkeypatch: pytest.MonkeyPatch, cp_size: int
) -> None:
    batch = pack(16, 8, 40)
    parts = [part(monkeypatch, batch, cp_size, rank) for rank in range(cp_size)]
    where = torch.cat([found["tokens"] for found in parts], dim=1)[0]
    assert sorted(where.tolist()) == list(range(64))
    for key in PER_TOKEN:
        assert torch.equal(torch.cat([found[key] for found in parts], dim=1), batch[key][:, where]), key
    for key in batch.keys() - set(PER_TOKEN):
        assert torch.equal(parts[0][key], batch[key]), key


@pytest.mark.parametrize("cp_rank", [0, 1])
def test_lengths_that_cannot_be_split_are_refused_on_every_rank(monkeypatch: pytest.MonkeyPatch, cp_rank: int) -> None:
    with pytest.raises(ValueError, match="pad_seq_to_mult"):
        part(monkeypatch, pack(8, 6, 10), 2, cp_rank)

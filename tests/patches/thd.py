"""Packs, the reference split, and stand-ins for what steps ask of Transformer Engine and Megatron-Core."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

SPLIT = ("tokens", "labels", "loss_mask", "position_ids")


def partition(cu_seqlens: Sequence[int], cp_size: int, rank: int) -> list[int]:
    """The reference: of each sequence's 2 * cp equal chunks, rank r has chunk r and chunk 2 * cp - 1 - r."""
    index: list[int] = []
    for start, stop in pairwise(cu_seqlens):
        assert (stop - start) % (2 * cp_size) == 0
        size = (stop - start) // (2 * cp_size)
        for chunk in (rank, 2 * cp_size - 1 - rank):
            index += range(start + chunk * size, start + (chunk + 1) * size)
    return index


STAGES = {"only": (True, True), "first": (True, False), "middle": (False, False), "last": (False, True)}


@dataclass
class Ranks:
    """`megatron.core.parallel_state`, as far as the steps ask it."""

    cp_size: int = 1
    cp_rank: int = 0
    first: bool = True
    last: bool = True

    def each(self, cp_size: int) -> Iterator[int]:
        """Be each rank of a context parallel group in turn."""
        self.cp_size = cp_size
        for rank in range(cp_size):
            self.cp_rank = rank
            yield rank

    def enter(self, stage: str) -> None:
        """Be on that pipeline stage."""
        self.first, self.last = STAGES[stage]

    def get_context_parallel_world_size(self) -> int:
        """How many ranks share a sequence."""
        return self.cp_size

    def get_context_parallel_rank(self) -> int:
        """Which of them this is."""
        return self.cp_rank

    def is_pipeline_first_stage(self) -> bool:
        """Whether this stage embeds tokens."""
        return self.first

    def is_pipeline_last_stage(self) -> bool:
        """Whether this stage computes the loss."""
        return self.last


@dataclass
class Index:
    """Transformer Engine's index: what it checks on the host is checked, and what it trusts is trusted."""

    calls: list[tuple[int, int, int]] = field(default_factory=list)

    def thd_get_partitioned_indices(
        self, cu_seqlens: torch.Tensor, total: int, cp_size: int, rank: int
    ) -> torch.Tensor:
        """int32 [total // cp_size]"""
        assert cu_seqlens.dtype == torch.int32
        assert cu_seqlens.dim() == 1
        assert cu_seqlens.numel() >= 2
        assert cu_seqlens.is_contiguous()
        assert total % (2 * cp_size) == 0
        self.calls.append((total, cp_size, rank))
        if cu_seqlens.is_meta:  # a value that may not be read
            return torch.empty(total // cp_size, dtype=torch.int32, device="meta")
        mine = [int(value / cp_size) for value in cu_seqlens.tolist()]
        index = []
        for token in range(total // cp_size):
            left, right = 1, len(mine) - 1
            while left < right:
                middle = (left + right) // 2
                left, right = (middle + 1, right) if mine[middle] <= token else (left, middle)
            start, length = mine[left - 1], mine[left] - mine[left - 1]
            chunk = rank if token - start < length // 2 else 2 * (cp_size - 1) - rank
            index.append(token - start + start * cp_size + length // 2 * chunk)
        return torch.tensor(index, dtype=torch.int32)


def random_lengths(rng: random.Random, multiple: int) -> list[int]:
    """Cumulative sequence lengths from 0, each sequence a multiple."""
    lengths = [0]
    for _ in range(rng.randint(1, 9)):
        lengths.append(lengths[-1] + multiple * rng.choice([1, 1, 2, 3, rng.randint(4, 12)]))
    return lengths


def packed_batch(rng: random.Random, lengths: Sequence[int], sentinels: int = 1) -> dict[str, Any]:
    """A micro batch as NeMo's packed data set collates it: every token id is its place in the pack."""
    total = lengths[-1]
    cu_seqlens = torch.IntTensor([[*lengths, *[-1] * sentinels]])
    return {
        "tokens": torch.arange(total)[None],
        "labels": torch.arange(total)[None] + 1,
        "loss_mask": torch.LongTensor([[rng.randint(0, 1) for _ in range(total)]]),
        "position_ids": torch.LongTensor([[i for a, b in pairwise(lengths) for i in range(b - a)]]),
        "token_count": [total],
        "attention_mask": torch.LongTensor([1]),
        "cu_seqlens": cu_seqlens,
        "cu_seqlens_argmin": torch.argmin(cu_seqlens, dim=1, keepdim=True),
        "max_seqlen": torch.IntTensor([[max(b - a for a, b in pairwise(lengths))]]),
        "cu_seqlens_unpadded": cu_seqlens.clone(),
        "cu_seqlens_unpadded_argmin": torch.argmin(cu_seqlens, dim=1, keepdim=True),
    }


def plain_batch(rng: random.Random, rows: int, tokens: int) -> dict[str, Any]:
    """A micro batch without packing: [rows, tokens], and a causal mask of four dimensions."""
    draw = torch.Generator().manual_seed(rng.getrandbits(32))
    return {
        "tokens": torch.randint(0, 99, (rows, tokens), generator=draw),
        "labels": torch.randint(0, 99, (rows, tokens), generator=draw),
        "loss_mask": torch.randint(0, 2, (rows, tokens), generator=draw).float(),
        "attention_mask": torch.rand(rows, 1, tokens, tokens, generator=draw) < 0.5,
        "position_ids": torch.arange(tokens).repeat(rows, 1),
        "metadata": [{"n": i} for i in range(rows)],
    }


def same(a: Any, b: Any) -> bool:
    """Whether two batches are alike bit for bit: keys and their order, dtypes, shapes, values."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return bool(a == b)

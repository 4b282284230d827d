"""`trim-sentinels`: the real partition function, given rows that end in -1."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.patches.bridge.conftest import Index
from tests.patches.bridge.real_code import GPT_STEP, load, step_stand_ins

PATCH = ("trim-sentinels",)
BROKEN = ("0.3.0", "0.3.1", "0.4.2", "0.5.0")


def batch(lengths: list[int], sentinels: int, argmin: int | None) -> dict[str, Any]:
    ends = torch.tensor([0, *lengths]).cumsum(0).tolist()
    found: dict[str, Any] = {
        "tokens": torch.arange(ends[-1])[None],
        "labels": None,
        "cu_seqlens": torch.tensor([ends + [-1] * sentinels], dtype=torch.int32),
    }
    if argmin is not None:
        found["cu_seqlens_argmin"] = torch.tensor([[argmin]])
    return found


def partition(version: str, patches: tuple[str, ...], cp: int, rank: int, given: dict[str, Any]) -> list[int]:
    step = load(version, GPT_STEP, patches, **step_stand_ins(rank))
    tokens: list[int] = step._partition_packed_batch_for_cp(dict(given), cp)["tokens"][0].tolist()
    return tokens


def expected(lengths: list[int], cp: int, rank: int) -> list[int]:
    found: list[int] = []
    start = 0
    for length in lengths:
        chunk = length // (2 * cp)
        for part in (rank, 2 * cp - 1 - rank):
            found += range(start + part * chunk, start + (part + 1) * chunk)
        start += length
    return found


@pytest.mark.parametrize("version", BROKEN)
@pytest.mark.parametrize("cp", [2, 3, 4])
def test_every_token_goes_to_one_rank(version: str, cp: int, index: Index, draw: random.Random) -> None:
    lengths = [2 * cp * draw.randint(1, 9) for _ in range(draw.randint(1, 12))]
    given = batch(lengths, 64, len(lengths) + 1)
    ranks = range(cp)
    assert [partition(version, PATCH, cp, r, given) for r in ranks] == [
        expected(lengths, cp, r) for r in ranks
    ]
    broken = [token for r in ranks for token in partition(version, (), cp, r, given)]
    assert sorted(broken) != list(range(sum(lengths)))


@pytest.mark.parametrize("version", BROKEN)
def test_how_the_end_is_known(version: str, index: Index, draw: random.Random) -> None:
    lengths = [4 * draw.randint(1, 9) for _ in range(draw.randint(2, 9))]
    for sentinels in (0, 1, 2, 9):
        for argmin in (None, len(lengths) + 1 if sentinels else 0):
            given = batch(lengths, sentinels, argmin)
            for rank in range(2):
                assert partition(version, PATCH, 2, rank, given) == expected(lengths, 2, rank)
                assert len(index.cu_seqlens) == len(lengths) + 1


@pytest.mark.parametrize("version", BROKEN)
def test_nothing_changes_where_nothing_was_wrong(version: str, index: Index, draw: random.Random) -> None:
    lengths = [4 * draw.randint(1, 9) for _ in range(draw.randint(2, 9))]
    given = batch(lengths, 0, None)
    assert partition(version, PATCH, 2, 1, given) == partition(version, (), 2, 1, given)


def test_upstream_trims_from_0_5_1(index: Index, draw: random.Random) -> None:
    lengths = [4 * draw.randint(1, 9) for _ in range(draw.randint(2, 9))]
    given = batch(lengths, 64, len(lengths) + 1)
    assert partition("0.5.1", (), 2, 0, given) == expected(lengths, 2, 0)

"""The split and the attention that everything else is measured against, themselves against plainer ones."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from migrator.verify.packs import REPORTED, good_spans
from migrator.verify.ranks import run_ranks
from migrator.verify.reference import (
    gather_rows,
    kernel_index,
    lengths,
    packed_attention,
    partition_index,
    zigzag_index,
)

pytestmark = pytest.mark.torch
SIZES = (1, 2, 3, 4, 8)


def cu_seqlens(rng: random.Random, cp: int) -> Tensor:
    spans = good_spans(rng, 2 * cp, 2 * cp * rng.randint(8, 30))
    return torch.tensor([0, *torch.tensor(spans).cumsum(0).tolist()], dtype=torch.int32)


@pytest.mark.parametrize("cp", SIZES)
def test_every_token_is_with_one_rank_and_every_rank_has_as_many(cp: int, rng: random.Random) -> None:
    bounds = cu_seqlens(rng, cp)
    total = int(bounds[-1])
    shares = [partition_index(bounds, total, cp, rank) for rank in range(cp)]
    assert sorted(torch.cat(shares).tolist()) == list(range(total))
    assert {len(share) for share in shares} == {total // cp}
    assert {share.dtype for share in shares} == {torch.int32}


@pytest.mark.parametrize("cp", SIZES[1:])
def test_each_sequence_is_split_as_if_it_were_alone(cp: int, rng: random.Random) -> None:
    bounds = cu_seqlens(rng, cp)
    for rank in range(cp):
        got = partition_index(bounds, int(bounds[-1]), cp, rank).tolist()
        want = [
            int(start) + place
            for start, end in pairwise(bounds.tolist())
            for place in zigzag_index(end - start, cp, rank).tolist()
        ]
        assert got == want


def test_the_split_by_hand() -> None:
    bounds = torch.tensor([0, 4, 12], dtype=torch.int32)
    assert partition_index(bounds, 12, 2, 0).tolist() == [0, 3, 4, 5, 10, 11]
    assert partition_index(bounds, 12, 2, 1).tolist() == [1, 2, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("bounds", "total"),
    [([0, 3, 8], 8), ([0, 4, 8, -1], 8), ([0, 4, 8], 12), ([4, 8], 8), ([0, 8, 4, 12], 12), ([], 0)],
)
def test_what_cannot_be_split_is_refused(bounds: list[int], total: int) -> None:
    with pytest.raises(ValueError, match=r"cu_seqlens|sequence"):
        partition_index(torch.tensor(bounds, dtype=torch.int32), total, 2, 0)


@pytest.mark.parametrize("cp", SIZES[1:])
@pytest.mark.parametrize("sentinels", [0, 1])
def test_the_kernel_agrees_on_good_input(cp: int, sentinels: int, rng: random.Random) -> None:
    bounds = cu_seqlens(rng, cp)
    total = int(bounds[-1])
    given = torch.cat([bounds, torch.full((sentinels,), -1, dtype=torch.int32)])
    for rank in range(cp):
        assert torch.equal(kernel_index(given, total, cp, rank), partition_index(bounds, total, cp, rank))


@pytest.mark.parametrize(("cp", "lost"), [(2, 18), (4, 60)])
def test_the_kernel_loses_what_it_lost_in_the_first_report(cp: int, lost: int) -> None:
    bounds, total = torch.tensor(REPORTED, dtype=torch.int32), REPORTED[-1]
    seen = Counter(token for rank in range(cp) for token in kernel_index(bounds, total, cp, rank).tolist())
    assert sum(token not in seen for token in range(total)) == lost
    assert sum(count - 1 for count in seen.values()) == lost
    assert set(seen) <= set(range(total))


def test_many_sentinels_mislead_the_kernel(rng: random.Random) -> None:
    bounds = cu_seqlens(rng, 2)
    given = torch.cat([bounds, torch.full((64,), -1, dtype=torch.int32)])
    assert not torch.equal(
        kernel_index(given, int(bounds[-1]), 2, 0), partition_index(bounds, int(bounds[-1]), 2, 0)
    )


def plain_attention(query: Tensor, key: Tensor, value: Tensor, bounds: Tensor) -> Tensor:
    """torch's own attention, one sequence after the other. [t, h, d] each."""
    repeat = query.shape[1] // key.shape[1]
    parts = []
    for start, end in pairwise(bounds.tolist()):
        q, k, v = (
            rows[start:end].transpose(0, 1)
            for rows in (query, key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1))
        )
        parts.append(
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1)
        )
    return torch.cat(parts)


def inputs(seed: int, total: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((total, 4, 8), (total, 2, 8), (total, 2, 8), (total, 4, 8))
    query, key, value, weight = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    return query, key, value, weight


def on_rank(seed: int, bounds: Tensor, cp: int, rank: int) -> tuple[Tensor, list[Tensor]]:
    """This rank's output and the gradients of its rows."""
    total = int(bounds[-1])
    index = partition_index(bounds, total, cp, rank).long()
    query, key, value, weight = inputs(seed, total)
    rows = [tensor[index].clone().requires_grad_() for tensor in (query, key, value)]
    group = torch.distributed.group.WORLD
    out = packed_attention(rows[0], rows[1], rows[2], bounds, lengths(bounds), 8**-0.5, group)
    (out * weight[index]).sum().backward()
    return out.detach(), [row.grad for row in rows if row.grad is not None]


@pytest.mark.parametrize("cp", [1, 2, 4])
def test_attention_and_its_gradients_equal_torchs_own(cp: int, seed: int, rng: random.Random) -> None:
    bounds = cu_seqlens(rng, 4)
    total = int(bounds[-1])
    query, key, value, weight = inputs(seed, total)
    whole = [tensor.requires_grad_() for tensor in (query, key, value)]
    want = plain_attention(query, key, value, bounds)
    (want * weight).sum().backward()
    for rank, (out, grads) in enumerate(run_ranks(cp, partial(on_rank, seed, bounds, cp), 60)):
        index = partition_index(bounds, total, cp, rank).long()
        torch.testing.assert_close(out, want[index].detach())
        for grad, tensor in zip(grads, whole, strict=True):
            assert tensor.grad is not None
            torch.testing.assert_close(grad, tensor.grad[index])


def test_rows_behind_a_sequences_length_are_nan(seed: int) -> None:
    bounds = torch.tensor([0, 4, 12], dtype=torch.int32)
    query, key, value, _ = inputs(seed, 12)
    out = packed_attention(query, key, value, bounds, [3, 8], 8**-0.5, None)
    assert torch.isnan(out).all((1, 2)).nonzero().flatten().tolist() == [3]
    torch.testing.assert_close(out[4:], plain_attention(query, key, value, bounds)[4:])


def gathered(rank: int) -> Tensor:
    """The gradient of a rank's rows where the gradient of the whole comes transposed, so not contiguous."""
    local = torch.full((2, 3), float(rank), dtype=torch.float64, requires_grad=True)
    whole = gather_rows(local, torch.distributed.group.WORLD)
    weight = torch.arange(12, dtype=torch.float64).view(3, 4)
    (whole.transpose(0, 1) * weight * (rank + 1)).sum().backward()
    assert local.grad is not None
    return local.grad


def test_gathering_sums_gradients_over_ranks_even_when_they_are_not_contiguous() -> None:
    weight = torch.arange(12, dtype=torch.float64).view(3, 4).t() * 3  # 1 + 2 from both ranks
    first, second = run_ranks(2, gathered, 60)
    torch.testing.assert_close(torch.cat([first, second]), weight)

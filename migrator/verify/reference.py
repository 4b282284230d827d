"""The reference: which token goes to which rank, and causal attention over packed sequences, slow and
plain.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def partition_index(cu_seqlens: Tensor, total: int, cp_size: int, cp_rank: int) -> Tensor:
    """Positions of a pack that context parallel rank `cp_rank` holds, in the order in which it holds them.

    Every sequence is cut into `2 * cp_size` equal chunks; the rank takes chunks `cp_rank` and `2 * cp_size -
    1 - cp_rank`.

    A single rank takes them all. cu_seqlens: int32 [n + 1], from 0 to `total`, no -1 in it. Returns int32
    [total / cp_size]. Raises ValueError where the pack cannot be split this way.
    """
    bounds = [int(bound) for bound in cu_seqlens.tolist()]
    if not bounds or bounds[0] != 0 or bounds[-1] != total:
        raise ValueError(f"cu_seqlens runs from {bounds[:1]} to {bounds[-1:]}, the pack has {total} tokens")
    if cp_size == 1:
        return torch.arange(total, dtype=torch.int32)
    positions: list[Tensor] = []
    for start, end in pairwise(bounds):
        chunk, rest = divmod(end - start, 2 * cp_size)
        if rest or chunk < 0:
            raise ValueError(
                f"the sequence at {start} has length {end - start}, not a multiple of {2 * cp_size}"
            )
        first, last = (start + place * chunk for place in (cp_rank, 2 * cp_size - 1 - cp_rank))
        positions += [torch.arange(at, at + chunk, dtype=torch.int32) for at in (first, last)]
    return torch.cat(positions)


def kernel_index(cu_seqlens: Tensor, total: int, cp_size: int, cp_rank: int) -> Tensor:
    """What Transformer Engine's index kernel returns, for bad input too: its checks are compiled out of the
    binaries.

    Boundaries that don't divide are rounded towards zero, so tokens come twice or never; several trailing -1
    mislead its search. Equal to `partition_index` on good input. Shapes as there.
    """
    if total % (2 * cp_size):
        raise RuntimeError(f"{total} tokens don't divide by 2 * {cp_size}")
    local = [int(int(bound) / cp_size) for bound in cu_seqlens.tolist()]
    index = torch.empty(total // cp_size, dtype=torch.int32)
    for token in range(total // cp_size):
        low, high = 1, len(local) - 1
        while low < high:
            middle = (low + high) // 2
            if local[middle] <= token:
                low = middle + 1
            else:
                high = middle
        start = local[low - 1]
        length = local[low] - start
        inside = token - start
        place = cp_rank if inside < int(length / 2) else 2 * (cp_size - 1) - cp_rank
        index[token] = inside + start * cp_size + int(length / 2) * place
    return index


def zigzag_index(length: int, cp_size: int, cp_rank: int) -> Tensor:
    """The split of a batch that isn't packed: as one sequence. Returns int32 [length / cp_size]."""
    return partition_index(torch.tensor([0, length], dtype=torch.int32), length, cp_size, cp_rank)


class _Gather(torch.autograd.Function):
    """Concatenate over the ranks along dim 0; gradients are summed over the ranks, each takes its own
    rows.
    """

    @staticmethod
    def forward(ctx: Any, local: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group, ctx.rows = group, local.shape[0]
        parts = [torch.empty_like(local, memory_format=torch.contiguous_format) for _ in range(group.size())]
        dist.all_gather(parts, local.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        first = ctx.group.rank() * ctx.rows
        return total[first : first + ctx.rows].contiguous(), None


def gather_rows(local: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """[t, ...] of every rank of `group`, concatenated: [size * t, ...]. Right under autograd on every
    backend.
    """
    if group is None or group.size() == 1:
        return local
    gathered: Tensor = _Gather.apply(local, group)  # type: ignore[no-untyped-call]  # torch leaves `apply` untyped
    return gathered


def lengths(cu_seqlens: Tensor) -> list[int]:
    """Sequence lengths of `cu_seqlens` [n + 1] as n integers."""
    return [int(length) for length in (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()]


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    valid: list[int],
    scale: float,
    group: dist.ProcessGroup | None,
) -> Tensor:
    """Causal attention inside each sequence of a pack that is split over `group` by `partition_index`.

    query [t, h, d], key and value [t, g, d] with h a multiple of g, this rank's rows. bounds: int32 [n + 1]
    over the whole pack. valid: n lengths, at most the interval's; rows beyond come back as NaN, as kernels
    are free to do. Returns [t, h, d]. Raises ValueError where rows and `bounds` don't fit.
    """
    size, rank = (1, 0) if group is None else (group.size(), group.rank())
    total = query.shape[0] * size
    order = torch.cat([partition_index(bounds, total, size, other) for other in range(size)]).long()
    mine = order[rank * query.shape[0] : (rank + 1) * query.shape[0]]
    back = torch.argsort(order)
    keys, values = (gather_rows(rows, group).index_select(0, back) for rows in (key, value))
    repeat = query.shape[1] // key.shape[1]
    keys, values = keys.repeat_interleave(repeat, 1), values.repeat_interleave(repeat, 1)

    spans = torch.tensor(lengths(bounds))
    sequence = torch.repeat_interleave(torch.arange(len(spans)), spans)
    inside = torch.arange(total) - bounds.long()[sequence]
    alive = inside < torch.tensor(valid)[sequence]
    seen = (sequence[mine, None] == sequence[None, :]) & (mine[:, None] >= torch.arange(total)[None, :])
    scores = torch.einsum("qhd,khd->hqk", query, keys) * scale
    scores = scores.masked_fill(~(seen & alive[None, :]), float("-inf"))
    scores = scores.masked_fill(~alive[mine][None, :, None], 0.0)  # keeps the softmax of dead rows finite
    out = torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), values)
    return out.masked_fill(~alive[mine][:, None, None], float("nan"))

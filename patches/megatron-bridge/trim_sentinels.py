"""New code of the patch `trim-sentinels`: cu_seqlens without its -1 entries."""

from __future__ import annotations

import torch


def _without_sentinels(cu_seqlens: torch.Tensor, cu_seqlens_argmin: torch.Tensor | None) -> torch.Tensor:
    """Drop the -1 entries that fill cu_seqlens up to the length of the longest row of its batch.

    Args:
        cu_seqlens: int32 [entries], offsets in tokens.
        cu_seqlens_argmin: one element, the position of the first -1, on the host (no device sync). Where a
            batch does not bring it, the entries are counted, which costs a sync if they are on a device.

    Returns:
        int32 [sequences + 1], a view where the position is known.
    """
    if cu_seqlens_argmin is None:
        return cu_seqlens[cu_seqlens >= 0]
    end = int(cu_seqlens_argmin)
    return cu_seqlens[:end] if end > 0 else cu_seqlens  # the 0 in front is the least entry: there is no -1

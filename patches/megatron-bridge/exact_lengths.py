"""New code of the patch `exact-lengths` for Megatron-Bridge >= 0.6."""

from __future__ import annotations

import torch

PackedMetadataValue = torch.Tensor | int | None  # as in the module that the function is put into


def _with_padded_lengths(batch: dict[str, PackedMetadataValue]) -> dict[str, PackedMetadataValue]:
    """A batch whose attention lengths are the lengths that its sequences have in memory, pads included.

    The pads stand behind the tokens of their sequence, so causal attention shows them to no token, and their
    loss mask is 0. Lengths without the pads leave rows of the output unwritten, and some kernels round them.

    Args:
        batch: packed-sequence metadata with `cu_seqlens_q` and, where they differ, `cu_seqlens_kv` and the
            padded variants of both; int32, offsets in tokens.

    Returns:
        A copy in which `cu_seqlens_q` and `cu_seqlens_q_padded` are one and the same, likewise for kv.
    """
    choices = {
        "q": ("cu_seqlens_q_padded", "cu_seqlens_q"),
        "kv": ("cu_seqlens_kv_padded", "cu_seqlens_q_padded", "cu_seqlens_kv", "cu_seqlens_q"),
    }
    padded = dict(batch)
    for side, keys in choices.items():
        cu_seqlens = next((batch[key] for key in keys if batch.get(key) is not None), None)
        padded[f"cu_seqlens_{side}"] = padded[f"cu_seqlens_{side}_padded"] = cu_seqlens
    return padded

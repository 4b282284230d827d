"""New code of the patch `skip-packed`: the generic slicer leaves packed batches and metadata alone.

Each function is inserted by name into megatron/core/utils.py, and into the module of NeMo 2.3 that
has a slicer of its own.
"""

from __future__ import annotations

from typing import Any

import torch


def _is_cp_metadata(key: str, value: Any) -> bool:
    """Whether an entry of a batch has no sequence to slice: placeholders, what describes packs."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return True
    if key == "attention_mask":
        return value.dim() == 1 or value.numel() == 1
    return key.startswith(("cu_seqlens", "max_seqlen", "token_count", "num_valid_tokens"))


def _check_packed_batch_is_split(batch: dict[str, Any], cp_size: int) -> None:
    """Raise `ValueError` unless each tensor [1, tokens, ...] of a packed batch is this rank's part.

    `cu_seqlens` (int32, -1 at the end allowed) describes the whole pack. Slicing that as one
    sequence would cut across sequence borders, and passing it on whole would have each rank train
    on all of it, both silently.
    """
    total = int(batch["cu_seqlens"].max())
    for key, value in batch.items():
        if key == "attention_mask" or _is_cp_metadata(key, value):
            continue
        if value.dim() < 2 or value.size(1) * cp_size != total:
            raise ValueError(
                f"packed batch with {key} of shape {tuple(value.shape)}, cu_seqlens over {total} "
                f"tokens and context parallel size {cp_size}: a packed batch can't be sliced as "
                "one sequence. Split it before get_batch_on_this_cp_rank by the THD split, "
                "transformer_engine_torch.thd_get_partitioned_indices"
            )

"""New code of the patch `thd-split`: the step hands each context parallel rank its part of every sequence.

Each function is inserted by name into nemo/collections/llm/gpt/model/base.py, the last one into the models beside it.
"""

from __future__ import annotations

from typing import Any


def _packed_lengths(batch: Any, cp_size: int) -> list[int]:
    """The cumulative sequence lengths of a packed batch as it comes from the data loader, without the padding at the
    end: `cu_seqlens` [1, n] on the host, read there so that no device synchronizes.

    Every pipeline stage is handed the whole batch, so every rank raises alike.

    Raises:
        ValueError: if the batch can't be split for context parallelism, naming the knob that helps.
    """
    cu_seqlens = batch["cu_seqlens"]
    if cu_seqlens.dim() > 1 and cu_seqlens.size(0) != 1:
        raise ValueError(
            f"packed sequences need a micro batch size of 1, not {cu_seqlens.size(0)}: set micro_batch_size=1"
        )
    lengths: list[int] = cu_seqlens.flatten().tolist()
    end = next((i for i, value in enumerate(lengths) if value < 0), len(lengths))
    argmin = batch.get("cu_seqlens_argmin")
    # without padding at the end, the smallest entry is the leading 0
    if argmin is not None and int(argmin) != end and (int(argmin) != 0 or end < len(lengths)):
        raise ValueError(f"cu_seqlens ends at entry {end}, but cu_seqlens_argmin says {int(argmin)}: {lengths}")
    lengths = lengths[:end]
    intervals = [stop - start for start, stop in zip(lengths[:-1], lengths[1:])]
    if not intervals or lengths[0] != 0 or min(intervals) < 0:
        raise ValueError(f"cu_seqlens must rise from 0 to the number of tokens, not {lengths}")
    for key in ("tokens", "labels", "loss_mask", "position_ids"):
        value = batch.get(key)
        if value is None:
            continue
        if value.size(0) != 1:
            raise ValueError(
                f"packed sequences need a micro batch size of 1, not {key} of shape {tuple(value.shape)}: "
                "set micro_batch_size=1"
            )
        if value.size(1) * cp_size == lengths[-1]:
            raise ValueError(
                f"{key} has {value.size(1)} of {lengths[-1]} tokens: this batch is already split for a rank"
            )
        if value.size(1) != lengths[-1]:
            raise ValueError(f"{key} has {value.size(1)} tokens, but cu_seqlens ends with {lengths[-1]}")
    if offending := [length for length in intervals if length % (2 * cp_size)]:
        raise ValueError(
            f"{len(offending)} of {len(intervals)} packed sequences, the first ones {offending[:5]} tokens long, are "
            f"no multiples of {2 * cp_size} and can't be split over context parallel size {cp_size}: pack the data "
            f"with PackedSequenceSpecs.pad_seq_to_mult={2 * cp_size}"
        )
    return lengths


def _partition_packed_batch_for_cp(batch: dict[str, Any], host_batch: Any) -> dict[str, Any]:
    """Keep this context parallel rank's tokens of each packed sequence: of its 2 * cp equal chunks, chunk r and chunk
    2 * cp - 1 - r.

    Args:
        batch: what this pipeline stage needs, on its device. `tokens`, `labels`, `loss_mask` and `position_ids`
            [1, total], where they are there, are split; the rest (`cu_seqlens` [1, n], int32, `cu_seqlens_argmin`,
            `max_seqlen`, the `attention_mask` placeholder) describes the whole pack and stays.
        host_batch: the same batch as the data loader made it.

    Raises:
        ValueError: if the batch can't be split, see `_packed_lengths`.
    """
    from megatron.core import parallel_state

    cp_size = parallel_state.get_context_parallel_world_size()
    if cp_size == 1:
        return batch
    lengths = _packed_lengths(host_batch, cp_size)
    keys = [key for key in ("tokens", "labels", "loss_mask", "position_ids") if batch.get(key) is not None]
    if not keys:
        return batch
    import transformer_engine_torch as tex

    total = lengths[-1]
    # without the -1 at the end, which the kernel takes for lengths, and the empty sequences of pad_cu_seqlens
    cu_seqlens = batch["cu_seqlens"].flatten()[: lengths.index(total) + 1].int().contiguous()
    index = tex.thd_get_partitioned_indices(cu_seqlens, total, cp_size, parallel_state.get_context_parallel_rank())
    return {key: value.index_select(1, index) if key in keys else value for key, value in batch.items()}


def _partition_packed_batch_and_count(batch: dict[str, Any], host_batch: Any) -> dict[str, Any]:
    """`_partition_packed_batch_for_cp`, with the number of valid tokens in the whole micro batch, by which the loss
    reduction of this release divides: `num_valid_tokens_in_ub`, 0-dim, or None where there is no `loss_mask`."""
    from megatron.core import parallel_state

    split = _partition_packed_batch_for_cp(batch, host_batch)
    if parallel_state.get_context_parallel_world_size() > 1:
        loss_mask = batch.get("loss_mask")
        split["num_valid_tokens_in_ub"] = None if loss_mask is None else loss_mask.sum()
    return split


def _refuse_packed_batch_for_cp(batch: dict[str, object]) -> None:
    """Raise `ValueError` for a packed batch under context parallelism, on every rank alike: this model is not told
    where the sequences lie, so it would take the tokens of all of them, split sequence by sequence, for one."""
    from megatron.core import parallel_state

    if batch.get("cu_seqlens") is not None and parallel_state.get_context_parallel_world_size() > 1:
        raise ValueError(
            "this model can't be trained on packed sequences with context parallelism: its forward step passes no "
            "packed_seq_params. Set context_parallel_size=1, or train without PackedSequenceSpecs"
        )

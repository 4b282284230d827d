"""New code of the patch `thd-split`: each context parallel rank gets its part of every packed sequence.

Each function is inserted by name into megatron/bridge/training/gpt_step.py.
"""

from collections.abc import Iterator

import torch
from megatron.bridge.training.config import ConfigContainer
from megatron.core import parallel_state

_PER_TOKEN = ("tokens", "input_ids", "labels", "loss_mask", "position_ids")


def _packed_bounds(batch: dict[str, torch.Tensor | None]) -> list[int]:
    """Where the sequences of a packed batch start and end, read from its `cu_seqlens` [n] or [1, n], int32.

    Any number of -1 may stand at the end.

    Raises:
        ValueError: more than one pack, `cu_seqlens_argmin` says otherwise, or the bounds don't rise from 0.
    """
    cu_seqlens = batch["cu_seqlens"]
    assert cu_seqlens is not None
    if cu_seqlens.dim() > 1 and cu_seqlens.size(0) != 1:
        raise ValueError(f"packed sequences need train.micro_batch_size=1, not {cu_seqlens.size(0)}")
    bounds = cu_seqlens.flatten().tolist()
    end = next((index for index, value in enumerate(bounds) if value < 0), len(bounds))
    argmin = batch.get("cu_seqlens_argmin")
    # where nothing was padded, the smallest entry is the leading 0
    if argmin is not None and int(argmin) != end and (int(argmin) != 0 or end < len(bounds)):
        raise ValueError(f"cu_seqlens_argmin={int(argmin)}, but cu_seqlens has {end} entries: {bounds}")
    if end < 2 or bounds[0] != 0 or any(bounds[i] > bounds[i + 1] for i in range(end - 1)):
        raise ValueError(f"cu_seqlens must rise from 0 to the number of tokens, but holds {bounds}")
    return bounds[:end]


def _check_packed_batch(
    batch: dict[str, torch.Tensor | None],
    cp_size: int,
    sp_size: int = 1,
) -> dict[str, torch.Tensor | None]:
    """The batch, if it can be split over `cp_size` ranks; a batch that isn't packed passes.

    Args:
        batch: as the data loader made it, on the host, so that reading it synchronizes no device. It is the same
            on every pipeline stage, so all ranks that share a pack raise alike.
        sp_size: how many ranks sequence parallelism splits a context parallel rank's tokens over.

    Returns:
        The batch, with `cu_seqlens_argmin` [1] if it had none.

    Raises:
        ValueError: it can't be split, or is split already; the message names the knob that helps.
    """
    if batch.get("cu_seqlens") is None or cp_size < 2:
        return batch
    bounds = _packed_bounds(batch)
    total = bounds[-1]
    for key in _PER_TOKEN:
        value = batch.get(key)
        if value is None:
            continue
        if value.dim() == 2 and value.size(0) != 1:
            raise ValueError(f"packed sequences need train.micro_batch_size=1, not {value.size(0)}")
        if value.size(-1) * cp_size == total:
            raise ValueError(f"{key} has {value.size(-1)} of {total} tokens: this batch is already split")
        if value.size(-1) != total:
            raise ValueError(f"{key} has {value.size(-1)} tokens, but cu_seqlens ends at {total}")
    lengths = [bounds[i + 1] - bounds[i] for i in range(len(bounds) - 1)]
    if offending := [length for length in lengths if length % (2 * cp_size)]:
        raise ValueError(
            f"{len(offending)} of {len(lengths)} packed sequences, the first ones {offending[:5]} tokens long, "
            f"are not multiples of {2 * cp_size} and can't be split over context_parallel_size={cp_size}. Pack "
            "the data again with packed_sequence_specs.pad_seq_to_mult set to a multiple of that, or left unset "
            "to have it derived; packed_sequence_size must be a multiple of it, too"
        )
    if total // cp_size % sp_size:
        raise ValueError(
            f"{total // cp_size} tokens on each context parallel rank can't be split over {sp_size} sequence "
            f"parallel ranks: set packed_sequence_size to a multiple of {cp_size * sp_size}"
        )
    return (
        batch
        if batch.get("cu_seqlens_argmin") is not None
        else {
            **batch,
            "cu_seqlens_argmin": torch.tensor([len(bounds)]),
        }
    )


def checked_batches(
    data_iterator: Iterator[dict[str, torch.Tensor | None]],
    cfg: ConfigContainer,
) -> Iterator[dict[str, torch.Tensor | None]]:
    """The same batches; with context parallelism each one is checked when it is read."""
    cp_size = parallel_state.get_context_parallel_world_size()
    if data_iterator is None or cp_size < 2:
        return data_iterator
    model = getattr(cfg, "model", None)
    has_sequence_parallel = getattr(model, "sequence_parallel", False) is True
    sp_size = getattr(model, "tensor_model_parallel_size", 1) if has_sequence_parallel else 1
    # a callable, for RerunDataIterator knows next() but not iter()
    return iter(lambda: _check_packed_batch(next(data_iterator), cp_size, sp_size), object())


def _partition_packed_batch_for_cp(
    batch: dict[str, torch.Tensor | None],
    cp_size: int,
) -> dict[str, torch.Tensor | None]:
    """Keep this context parallel rank's tokens of each packed sequence.

    These are, of 2 * CP equal chunks, chunk r and chunk 2 * CP - 1 - r.

    Args:
        batch: what this pipeline stage needs, on its device. `tokens`, `input_ids`, `labels`, `loss_mask` and
            `position_ids` [..., total] are split, by one index. The rest stays: `cu_seqlens`, `max_seqlen` and
            `cu_seqlens_argmin`, which is on the host, describe the whole pack, and the `attention_mask` of a pack
            is a placeholder.

    Raises:
        ValueError: the batch can't be split, see `_check_packed_batch`.
        RuntimeError: Transformer Engine is missing.
    """
    cu_seqlens = batch["cu_seqlens"]
    assert cu_seqlens is not None
    if not cu_seqlens.is_cuda:
        batch = _check_packed_batch(batch, cp_size)
    argmin = batch.get("cu_seqlens_argmin")
    if argmin is None:
        raise ValueError("packed batches need cu_seqlens_argmin on the host: reading it there is no device sync")
    per_token = {key: value for key in _PER_TOKEN if (value := batch.get(key)) is not None}
    if not per_token:
        return batch
    try:
        from transformer_engine_torch import thd_get_partitioned_indices
    except ImportError as error:
        raise RuntimeError("packed sequences with context parallelism need Transformer Engine") from error
    total = next(iter(per_token.values())).size(-1)
    # -1 at the end must not reach the kernel, which takes it for a length
    bounds = cu_seqlens.flatten()[: int(argmin) or None].int().contiguous()
    index = thd_get_partitioned_indices(bounds, total, cp_size, parallel_state.get_context_parallel_rank())
    return {**batch, **{key: value.index_select(-1, index) for key, value in per_token.items()}}

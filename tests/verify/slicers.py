"""Right and wrong generic slicers, run by the child of `mutants`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from torch import Tensor

from migrator.verify import slicer, steps
from migrator.verify.reference import partition_index
from migrator.verify.stack import Batch


def state() -> Any:
    """Megatron's process groups."""
    return import_module("megatron.core.parallel_state")


def slice_all(batch: Batch) -> Batch:
    """The generic slicer as it was, on what has a sequence dimension."""
    cp, rank = state().get_context_parallel_world_size(), state().get_context_parallel_rank()
    return {
        key: steps.zigzag(value, key, cp, rank)
        if isinstance(value, Tensor) and value.dim() > 1 and value.shape[1] % (2 * cp) == 0
        else value
        for key, value in batch.items()
    }


def thd_split(batch: Batch) -> Batch:
    """A generic slicer that splits packs by their sequences, and reads what Megatron-Core 0.18 reads."""
    cp, rank = state().get_context_parallel_world_size(), state().get_context_parallel_rank()
    if batch.get("cu_seqlens") is None:
        return {k: v if v is None else steps.zigzag(v, k, cp, rank) for k, v in batch.items()}
    bounds = batch["cu_seqlens"] if batch["cu_seqlens_padded"] is None else batch["cu_seqlens_padded"]
    index = partition_index(bounds[0], batch["tokens"].shape[1], cp, rank).long()
    return batch | {key: batch[key][:, index] for key in steps.HELD["only"]}


SLICERS: Mapping[str, Callable[[], slicer.Slice]] = {
    "passes all on": lambda: lambda batch: batch,
    "slices all": lambda: slice_all,
}
THD_SLICERS: Mapping[
    str, Callable[[], slicer.Slice]
] = {  # as of Megatron-Core 0.18: they split packs themselves
    "right": lambda: thd_split,
    "splits packs as one sequence": lambda: (
        lambda batch: thd_split(batch | {"cu_seqlens": None}) | {"cu_seqlens": batch.get("cu_seqlens")}
    ),
    "leaves other batches whole": lambda: (
        lambda batch: batch if batch.get("cu_seqlens") is None else thd_split(batch)
    ),
}

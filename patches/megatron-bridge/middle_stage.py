"""New code of the patch `pipeline-metadata` for Megatron-Bridge >= 0.3."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from megatron.bridge.training.config import ConfigContainer


def _may_bring_packs(cfg: ConfigContainer, data_iterator: Iterable[dict[str, torch.Tensor]] | None) -> bool:
    """Whether the batches can be packed, by the data set's configuration.

    Pipeline stages in the middle need no tokens, but with packed batches they need cu_seqlens: without it
    their attention layers see one long document. A data set that comes with a loader of its own says so batch
    by batch only.
    """
    dataset = getattr(cfg, "dataset", None)
    if getattr(dataset, "pack_sequences_in_batch", False):
        return True
    if not hasattr(dataset, "packed_sequence_specs"):
        return hasattr(dataset, "build_datasets") and data_iterator is not None
    size = getattr(getattr(dataset, "packed_sequence_specs", None), "packed_sequence_size", -1)
    return size is None or size > 0

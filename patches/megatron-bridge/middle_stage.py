"""New code of the patch `pipeline-metadata` for Megatron-Bridge >= 0.3."""

from __future__ import annotations

from megatron.bridge.training.config import ConfigContainer


def _expects_packed_sequences(cfg: ConfigContainer) -> bool:
    """Whether the data set's configuration says that its batches are packed.

    Pipeline stages in the middle need no tokens, but with packed batches they need cu_seqlens: without it their
    attention layers see one long document.
    """
    dataset = getattr(cfg, "dataset", None)
    specs = getattr(dataset, "packed_sequence_specs", None)
    size = getattr(specs, "packed_sequence_size", -1)
    return bool(getattr(dataset, "pack_sequences_in_batch", False)) or size is None or size > 0

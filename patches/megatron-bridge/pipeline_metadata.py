"""New code of the patch `pipeline-metadata` for Megatron-Bridge < 0.3.

Inserted by name into megatron/bridge/training/gpt_step.py or, from 0.2.0 on, utils/packed_seq_utils.py.
"""

import torch


def may_be_packed(dataset: object) -> bool:
    """Whether batches of a data set can be packed, by its configuration.

    One that comes with a loader of its own says so batch by batch.
    """
    if not hasattr(dataset, "packed_sequence_specs"):
        return hasattr(dataset, "build_datasets")
    size = getattr(dataset.packed_sequence_specs, "packed_sequence_size", 0)
    return isinstance(size, int) and size > 0


def get_packed_metadata(
    batch: dict[str, torch.Tensor | None],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """What a pipeline stage without tokens needs of a packed batch.

    Returns:
        `cu_seqlens` on the device, `cu_seqlens_argmin` and `max_seqlen` on the host; None, None, None for a batch
        that isn't packed.
    """
    cu_seqlens, argmin, max_seqlen = map(batch.get, ("cu_seqlens", "cu_seqlens_argmin", "max_seqlen"))
    if cu_seqlens is None:
        return None, None, None
    return (
        cu_seqlens.cuda(non_blocking=True),
        None if argmin is None else argmin.cpu(),
        None if max_seqlen is None else max_seqlen.cpu(),
    )

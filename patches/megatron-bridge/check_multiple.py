"""New code of the patch `check-multiple`: a pack that context parallelism cannot split is an error on every rank."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from megatron.bridge.training.config import ConfigContainer

logger = logging.getLogger(__name__)


# --- in both modules


def _unfit_pack(source: str, lengths: list[int], cp_size: int, cfg: ConfigContainer) -> str:
    """What is wrong with the sequences of a pack at a context parallel size, and what to do; "" if they fit.

    Args:
        source: the file, for the message.
        lengths: tokens of each sequence as the model gets them, one less than stored.
    """
    multiple = 2 * cp_size
    unfit = [index for index, length in enumerate(lengths) if length % multiple or length < 0]
    if not unfit:
        return ""
    knob = "offline_packing_specs" if hasattr(cfg.dataset, "offline_packing_specs") else "packed_sequence_specs"
    now = getattr(getattr(cfg.dataset, knob, None), "pad_seq_to_mult", None)
    shown = ", ".join(f"{lengths[index]} (sequence {index})" for index in unfit[:5])
    return (
        f"{source}: with context_parallel_size={cp_size} the length of each packed sequence must be a multiple of "
        f"{multiple}, but {len(unfit)} of {len(lengths)} are not, the first ones {shown}. Set "
        f"dataset.{knob}.pad_seq_to_mult (now {now}) to a multiple of {multiple} and pack the data again; "
        f"packed_sequence_size must be a multiple of {multiple}, too"
    )


# --- megatron/bridge/training/gpt_step.py


def _checked_packs(data_iterator: Iterable, pg_collection, cfg: ConfigContainer) -> Iterable:
    """The same batches, each of them checked on the host before any of it moves to the device.

    The check looks at the whole batch as it comes from the data loader, because each pipeline stage keeps another
    part of it: so all ranks that share a pack refuse it together, and none is left waiting for the others.
    """

    def read() -> dict[str, torch.Tensor]:
        batch = next(data_iterator)
        _refuse_unfit_batch(batch, pg_collection.cp.size(), cfg)
        return batch

    return iter(read, object())


def _refuse_unfit_batch(batch: dict[str, torch.Tensor], cp_size: int, cfg: ConfigContainer) -> None:
    """Raise ValueError if a batch of packs cannot be split over `cp_size` ranks; batches of other kinds pass.

    Args:
        batch: host tensors; `cu_seqlens` [entries] or [packs, entries], -1 behind the last entry of a pack.
    """
    names = ("cu_seqlens_q_padded", "cu_seqlens_q", "cu_seqlens")
    cu_seqlens = next((batch[name] for name in names if batch.get(name) is not None), None)
    if cp_size == 1 or cu_seqlens is None:
        return
    source = batch.get("packed_data_file")
    if source is None:
        specs = getattr(cfg.dataset, "offline_packing_specs", None)
        specs = specs or getattr(cfg.dataset, "packed_sequence_specs", None)
        paths = [getattr(specs, f"packed_{split}_data_path", None) for split in ("train", "val")]
        source = " or ".join(str(path) for path in paths if path) or "the packed data set"
    tokens = batch.get("tokens")
    for row in cu_seqlens.reshape(-1, cu_seqlens.shape[-1]).tolist():
        ends = row[: next((at for at, end in enumerate(row) if end < 0), len(row))]
        lengths = [end - start for start, end in zip(ends[:-1], ends[1:])]
        if problem := _unfit_pack(str(source), lengths, cp_size, cfg):
            raise ValueError(problem)
        if tokens is not None and ends[-1:] != [tokens.shape[-1]]:
            raise ValueError(
                f"{source}: cu_seqlens ends at {ends[-1:]}, but the pack holds {tokens.shape[-1]} tokens: "
                "with context parallelism the rest would belong to no sequence"
            )


# --- megatron/bridge/data/loaders.py


def _refuse_unfit_files(cfg: ConfigContainer, datasets: Iterable[Any]) -> None:
    """Raise ValueError on every rank, before training starts, if a packed file does not fit context parallelism.

    Reading batch by batch finds a bad pack too, but only on the ranks that share it.
    """
    cp_size = cfg.model.context_parallel_size
    if cp_size == 1 or getattr(cfg.model, "cp_partition_mode", "zigzag") != "zigzag":
        return
    for dataset in datasets:
        if getattr(dataset, "return_cu_seqlen", False):  # a packed data set in THD layout
            for number, lengths in enumerate(_stored_lengths(dataset)):
                if problem := _unfit_pack(f"{dataset.file_path}, pack {number}", lengths, cp_size, cfg):
                    raise ValueError(problem)


def _stored_lengths(dataset: Any) -> Iterator[list[int]]:
    """For each pack of a data set, the lengths in tokens of its sequences as the model gets them."""
    for starts, total in _stored_starts(dataset):
        yield [end - start - 1 for start, end in zip(starts, [*starts[1:], total])]


def _stored_starts(dataset: Any) -> Iterator[tuple[list[int], int]]:
    """For each pack, where its sequences start and how many tokens are stored; Parquet files aren't read whole."""
    if not hasattr(dataset, "_parquet_paths"):
        for row in dataset.indexed_dataset:
            yield list(row["seq_start_id"]), len(row["input_ids"])
        return
    try:
        for index in range(len(dataset._parquet_paths)):
            # the loss mask is as long as the tokens and takes a fraction of the time to read
            for table in dataset._ensure_reader(index).iter_batches(columns=["seq_start_id", "loss_mask"]):
                totals = table.column("loss_mask").value_lengths().to_pylist()
                yield from zip(table.column("seq_start_id").to_pylist(), totals)
    finally:
        dataset.close()  # workers of the data loader open their own readers

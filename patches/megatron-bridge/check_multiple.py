"""New code of the patch `check-multiple`: every rank refuses a pack that context parallelism cannot split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from megatron.bridge.training.config import ConfigContainer

# --- in both modules


def _unfit_pack(source: str, lengths: list[int], cp_size: int, cfg: ConfigContainer) -> str:
    """What is wrong with the sequences of a pack at a context parallel size, and what to do; "" if they fit.

    Args:
        source: the file, for the message.
        lengths: tokens of each sequence as the model gets them, one less than stored.
        cp_size: ranks that share a pack.
    """
    multiple = 2 * cp_size
    unfit = [index for index, length in enumerate(lengths) if length % multiple or length < 0]
    if not unfit:
        return ""
    knobs = ("packed_sequence_specs", "offline_packing_specs")
    knob = next((name for name in knobs if getattr(cfg.dataset, name, None) is not None), knobs[0])
    now = getattr(getattr(cfg.dataset, knob, None), "pad_seq_to_mult", None)
    shown = ", ".join(f"{lengths[index]} (sequence {index})" for index in unfit[:5])
    return (
        f"{source}: with context_parallel_size={cp_size} the length of each packed sequence must be a multiple "
        f"of {multiple}, but {len(unfit)} of {len(lengths)} are not, the first ones {shown}. Set "
        f"dataset.{knob}.pad_seq_to_mult (now {now}) to a multiple of {multiple}, delete the file and have it "
        f"packed again; packed_sequence_size must be a multiple of {multiple}, too"
    )


# --- megatron/bridge/training/gpt_step.py


def _checked_packs(data_iterator: Any, pg_collection: Any, cfg: ConfigContainer) -> Iterable[Any]:
    """The same batches, each of them checked on the host before any of it moves to the device.

    The check looks at the whole batch as it comes from the data loader, because each pipeline stage keeps
    another part of it: so all ranks that share a pack refuse it together, and none is left waiting for others.
    """

    def read() -> Any:
        batch: dict[str, Any] = next(data_iterator)
        _refuse_unfit_batch(batch, pg_collection.cp.size(), cfg)
        return batch

    return iter(read, object())


def _refuse_unfit_batch(batch: dict[str, Any], cp_size: int, cfg: ConfigContainer) -> None:
    """Raise ValueError if a batch of packs cannot be split over `cp_size` ranks; batches of other kinds pass.

    Args:
        batch: host tensors; `cu_seqlens` [entries] or [packs, entries], -1 behind the last entry of a pack.
        cp_size: ranks that share a pack.
    """
    names = ("cu_seqlens_q_padded", "cu_seqlens_q", "cu_seqlens")
    cu_seqlens = next((batch[name] for name in names if batch.get(name) is not None), None)
    if cp_size == 1 or cu_seqlens is None:
        return
    source = batch.get("packed_data_file")
    if source is None:
        specs = getattr(cfg.dataset, "packed_sequence_specs", None)
        specs = specs or getattr(cfg.dataset, "offline_packing_specs", None)
        paths = [getattr(specs, f"packed_{split}_data_path", None) for split in ("train", "val")]
        source = " or ".join(str(path) for path in paths if path) or "the packed data set"
    tokens = batch.get("tokens")
    for row in cu_seqlens.reshape(-1, cu_seqlens.shape[-1]).tolist():
        ends = row[: next((at for at, end in enumerate(row) if end < 0), len(row))]
        lengths = [ends[at + 1] - ends[at] for at in range(len(ends) - 1)]
        if problem := _unfit_pack(source, lengths, cp_size, cfg):
            raise ValueError(problem)
        if tokens is not None and (ends[:1] != [0] or ends[-1] != tokens.shape[-1]):
            raise ValueError(
                f"{source}: cu_seqlens reaches from {ends[:1]} to {ends[-1:]}, but the pack holds "
                f"{tokens.shape[-1]} tokens: context parallelism would give the others to no rank, or to two"
            )
        ranks = getattr(cfg.model, "tensor_model_parallel_size", 1)
        if getattr(cfg.model, "sequence_parallel", False) is True and ends[-1] % (cp_size * ranks):
            raise ValueError(
                f"{source}: {ends[-1]} tokens on {cp_size} context parallel ranks do not split over {ranks} "
                f"sequence parallel ones: make packed_sequence_size a multiple of {cp_size * ranks}"
            )


# --- megatron/bridge/training/llava_step.py


def _whole_packs(data_iterator: Any, pg_collection: Any) -> Iterable[Any]:
    """The same batches, but with context parallelism packed ones are refused, on every pipeline stage alike.

    The borders of a pack move when the model puts image embeddings in, so it can't be split before.
    """

    def read() -> Any:
        batch = next(data_iterator)
        if batch.get("cu_seqlens") is not None and pg_collection.cp.size() > 1:
            raise ValueError(
                f"llava_step cannot split packed sequences over {pg_collection.cp.size()} context parallel ranks: "
                "set context_parallel_size=1 or turn packing off"
            )
        return batch

    return iter(read, object())


# --- megatron/bridge/data/loaders.py


def _refuse_unfit_files(cfg: ConfigContainer, datasets: Iterable[Any]) -> None:
    """Raise ValueError on every rank, before training starts, if context parallelism cannot split a packed file.

    Reading batch by batch finds a bad pack too, but only on the ranks that share it.
    """
    cp_size = getattr(cfg.model, "context_parallel_size", 1)
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
        ends = [*starts, total]
        yield [ends[at + 1] - ends[at] - 1 for at in range(len(starts))]


def _stored_starts(dataset: Any) -> Iterator[tuple[list[int], int]]:
    """For each pack, where its sequences start and how many tokens it stores; of Parquet, without the tokens."""
    if not hasattr(dataset, "_parquet_paths"):
        for row in getattr(dataset, "indexed_dataset", ()):
            yield list(row["seq_start_id"]), len(row["input_ids"])
        return
    try:
        for index in range(len(dataset._parquet_paths)):
            # the loss mask is as long as the tokens and takes a fraction of the time to read
            for table in dataset._ensure_reader(index).iter_batches(columns=["seq_start_id", "loss_mask"]):
                totals = table.column("loss_mask").value_lengths().to_pylist()
                yield from zip(table.column("seq_start_id").to_pylist(), totals, strict=True)
    finally:
        dataset.close()  # workers of the data loader open their own readers

"""Do packed batches hold exactly the unpacked samples, and can they be split over context parallel ranks?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import torch

from migrator.verify import samples
from migrator.verify.check import Check, counted
from migrator.verify.reference import lengths
from migrator.verify.samples import EOS, LIMIT, Item
from migrator.verify.stack import Batch, Stack
from migrator.verify.tiny_gpt import packed_bounds

TITLES = {
    "packing": "data: packing runs",
    "lengths": "data: lengths divide by 2 * cp",
    "sequences": "data: every sample is there",
    "targets": "data: targets",
    "pads": "data: no pad is a target",
    "metadata": "data: metadata",
}


@dataclass
class Faults:
    """What is wrong with some batches, by the keys of `TITLES`, and what was noticed on the way."""

    found: dict[str, list[str]] = field(default_factory=lambda: {key: [] for key in TITLES})
    after_eos: int = 0  # targets that are missing behind an EOS inside a sample
    truncated: int = 0
    observed: dict[int, tuple[bool, ...]] = field(default_factory=dict)  # targets of each sample met

    def add(self, key: str, text: str) -> None:
        """Note one fault."""
        self.found[key].append(text)


@dataclass(frozen=True)
class DataSet:
    """Samples on disk and as items."""

    folder: Path
    chat: bool
    items: tuple[Item, ...]

    @property
    def kind(self) -> str:
        """What to call it."""
        return "chat" if self.chat else "plain"


SAMPLES: Mapping[str, slice] = {  # of `samples.conversations`
    "samples": slice(0, -1),
    "samples, one too long": slice(None),
    "short samples": slice(0, 2),  # the rest of their pack is longer than any of them, whatever the seed
}


def write(stack: Stack, folder: Path, chat: bool, seed: int, which: str = "samples") -> DataSet:
    """Write a data set below `folder` and read it back with the stack's own unpacked data set."""
    folder.mkdir(parents=True)
    turns = samples.conversations(seed)[SAMPLES[which]]
    for name in ("training.jsonl", "validation.jsonl"):
        (samples.write_chat if chat else samples.write_plain)(folder / name, turns)
    return DataSet(folder, chat, tuple(samples.to_item(raw) for raw in stack.unpacked(folder, chat)))


# What describes a pack, the padded intervals first: as Megatron-Core names it (Bridge 0.6), and as before.
BOUNDS = ("cu_seqlens_q_padded", "cu_seqlens_q", "cu_seqlens")


def _bounds_key(batch: Batch) -> str:
    return next(key for key in BOUNDS if batch.get(key) is not None)


def bounds_of(batch: Batch) -> torch.Tensor:
    """The padded cu_seqlens of a batch without its trailing -1: int32 [n + 1]."""
    cu_seqlens: torch.Tensor = batch[_bounds_key(batch)].reshape(-1)
    return cu_seqlens[cu_seqlens >= 0]


def _end_of(batch: Batch, key: str, row: list[int]) -> int:
    """Where the entries of cu_seqlens end; Megatron-Core's own keys have no -1 to leave out."""
    if key != "cu_seqlens":
        return len(row)
    return int(batch["cu_seqlens_argmin"]) if "cu_seqlens_argmin" in batch else row.index(-1)


def _check_metadata(stack: Stack, batch: Batch, where: str, faults: Faults) -> None:
    total, key = batch["tokens"].shape[1], _bounds_key(batch)
    cu_seqlens = batch[key]
    if cu_seqlens.dtype != torch.int32 or cu_seqlens.shape[0] != 1:
        faults.add("metadata", f"{where}: {key} is {cu_seqlens.dtype} {list(cu_seqlens.shape)}")
        return
    row = cu_seqlens[0].tolist()
    end = _end_of(batch, key, row)
    bounds = row[:end]
    if any(bound != -1 for bound in row[end:]) or -1 in bounds:
        faults.add("metadata", f"{where}: {key}_argmin {end} does not stand at the first -1 of {row}")
        return
    if bounds[:1] != [0] or bounds[-1] != total or any(end < start for start, end in pairwise(bounds)):
        faults.add("metadata", f"{where}: {key} {bounds} does not rise from 0 to the {total} tokens")
    for other in ("labels", "loss_mask", "position_ids"):
        if batch[other].shape != batch["tokens"].shape:
            faults.add(
                "metadata",
                f"{where}: {other} is {list(batch[other].shape)}, tokens {list(batch['tokens'].shape)}",
            )
    try:
        padded, valid = packed_bounds(stack.params(dict(batch)))
    except Exception as error:  # upstream code may raise anything
        faults.add("metadata", f"{where}: {error}")
        return
    if padded.tolist() != bounds or valid != lengths(padded):
        faults.add(
            "metadata",
            f"{where}: PackedSeqParams has lengths {valid} in intervals {lengths(padded)}, not exact",
        )


def _check_sequences(
    batch: Batch, items: Sequence[Item], unused: list[int], multiple: int, where: str, faults: Faults
) -> list[int]:
    """Match the sequences of a batch with the samples not yet met. Returns the samples it holds."""
    tokens, labels = tuple(batch["tokens"][0].tolist()), tuple(batch["labels"][0].tolist())
    mask = tuple(bool(value) for value in batch["loss_mask"][0].tolist())
    positions = batch["position_ids"][0].tolist()
    spans = [(start, end) for start, end in pairwise(bounds_of(batch).tolist()) if end > start]
    held: list[int] = []
    for start, end in spans:
        length = end - start
        if length % multiple:
            faults.add("lengths", f"{where}: length {length} at {start} is no multiple of {multiple}")
        cut = length == LIMIT // multiple * multiple  # the only length that a longer sample may be cut to
        wanted = {
            i: samples.packed(items[i], length) for i in unused if cut or len(items[i].ids) - 1 <= length
        }
        same = [
            i
            for i, want in wanted.items()
            if (want.tokens, want.labels) == (tokens[start:end], labels[start:end])
        ]
        if not same:
            tail = (start, end) == spans[-1] and set(tokens[start:end]) == {EOS}
            if not tail:
                faults.add("sequences", f"{where}: the sequence at {start}, length {length}, is no sample")
            elif any(mask[start:end]):
                faults.add("pads", f"{where}: {sum(mask[start:end])} targets in the tail at {start}")
            continue
        best = min(
            same, key=lambda i: sum(a != b for a, b in zip(wanted[i].target, mask[start:end], strict=True))
        )
        unused.remove(best)
        held.append(best)
        real = len(items[best].ids) - 1
        faults.truncated += length < real
        faults.observed[best] = mask[start:end][:real]
        if positions[start:end][:real] != list(range(min(real, length))):
            faults.add("metadata", f"{where}: position_ids of the sequence at {start} don't count from 0")
        _check_targets(wanted[best], mask[start:end], real, f"{where}: sample {best}", faults)
    return held


def _check_targets(want: samples.Packed, mask: Sequence[bool], real: int, where: str, faults: Faults) -> None:
    pads = sum(mask[real:])
    missing = [i for i in range(min(real, len(mask))) if want.target[i] and not mask[i]]
    extra = [i for i in range(min(real, len(mask))) if mask[i] and not want.target[i]]
    behind = [i for i in missing if want.tokens[i] == EOS]
    faults.after_eos += len(behind)
    if pads:
        faults.add("pads", f"{where}: {pads} pads are targets")
    if len(missing) > len(behind) or extra:
        faults.add(
            "targets", f"{where}: {len(missing) - len(behind)} targets are missing, {len(extra)} are none"
        )


def examine(
    stack: Stack, data: DataSet, batches: Sequence[Batch], cp: int, where: str, faults: Faults
) -> list[list[int]]:
    """Compare packed batches with the samples they were made from. Returns which samples each batch holds."""
    unused = list(range(len(data.items)))
    held = []
    for number, batch in enumerate(batches):
        place = f"{where}, pack {number}"
        _check_metadata(stack, batch, place, faults)
        held.append(_check_sequences(batch, data.items, unused, 2 * cp if cp > 1 else 1, place, faults))
    if unused:
        faults.add("sequences", f"{where}: samples {unused} are lost")
    return held


def supports_chat(stack: Stack, folder: Path, seed: int) -> str:
    """ "" where chat samples can be packed at all without context parallelism, else the error."""
    try:
        data = write(stack, folder, True, seed)
        stack.batches(data.folder, True, 1, False)
    except Exception as error:  # upstream code may raise anything
        return f"{type(error).__name__}: {error}"
    return ""


def check_data(stack: Stack, folder: Path, cps: Sequence[int], seed: int) -> list[Check]:
    """The data checks for each context parallel size, CP=1 first.

    Some versions leave out the target behind an EOS inside a sample. Where CP=1 does so the other sizes may,
    too.
    """
    no_chat = supports_chat(stack, folder / "probe", seed)
    results: list[Check] = []
    at_one: int | None = None  # targets that this stack leaves out without context parallelism
    for cp in (1, *(cp for cp in cps if cp > 1)):
        faults = Faults()
        for chat in (False,) if no_chat else (False, True):
            for which in SAMPLES:
                # At CP=1 nobody cuts chat samples that are too long: packing fails on them.
                if cp > 1 or "too long" not in which:
                    _one(stack, folder, chat, which, cp, seed, faults)
        at_one = faults.after_eos if at_one is None else at_one
        if faults.after_eos not in (0, at_one):
            faults.add("targets", f"{faults.after_eos} targets are missing behind an EOS, {at_one} at CP=1")
        results += _report(faults, cp, at_one)
    if no_chat:
        results.append(
            Check("data: chat samples", None, "not run", detail=f"this version can't pack them: {no_chat}")
        )
    return results


def _one(stack: Stack, folder: Path, chat: bool, which: str, cp: int, seed: int, faults: Faults) -> None:
    """Write (once), pack and examine one data set, with and without pad_cu_seqlens."""
    place = folder / f"{'chat' if chat else 'plain'}-{list(SAMPLES).index(which)}"
    if not place.exists():
        write(stack, place, chat, seed, which)
    data = _again(stack, place, chat, cp)
    for pad_cu_seqlens in (False, True):
        where = f"{data.kind} {which}{', pad_cu_seqlens' * pad_cu_seqlens}"
        counts = faults if which == "samples" else Faults()  # a sample must not be counted twice
        try:
            batches = stack.batches(data.folder, chat, cp, pad_cu_seqlens)
        except Exception as error:  # upstream code may raise anything
            faults.add("packing", f"{where}: {type(error).__name__}: {error}")
            continue
        examine(stack, data, batches, cp, where, counts)
        if counts is not faults:
            _merge(faults, counts)


def _again(stack: Stack, place: Path, chat: bool, cp: int) -> DataSet:
    read = stack.unpacked if cp == 1 or stack.unpacked_longer is None else stack.unpacked_longer
    return DataSet(place, chat, tuple(samples.to_item(raw) for raw in read(place, chat)))


def _merge(faults: Faults, more: Faults) -> None:
    for key, texts in more.found.items():
        faults.found[key] += texts
    faults.truncated += more.truncated


def _report(faults: Faults, cp: int, at_one: int) -> list[Check]:
    dropped = f"{at_one} targets behind an inner EOS are left out at CP=1, {faults.after_eos} here"
    details: Mapping[str, str] = {
        "targets": dropped * bool(at_one),
        "sequences": f"{faults.truncated} cut to the limit" * bool(faults.truncated),
    }
    broken = bool(faults.found["packing"])
    checks = []
    for key, title in TITLES.items():
        found = faults.found[key]
        if broken and key != "packing" and not found:
            checks.append(Check(title, cp, "not run", detail="packing failed"))
        elif key == "targets" and cp == 1 and found:
            upstream = f"without CP this version has {len(found)} samples with other targets, patched or not"
            checks.append(Check(title, cp, "not run", detail=f"{upstream}: {found[0]}"))
        else:
            checks.append(counted(title, cp, found, details.get(key, "")))
    return checks

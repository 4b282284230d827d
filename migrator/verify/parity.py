"""Does the stack compute the loss and gradients that one sequence at a time gives, at every CP size?

From samples on disk through packing, data step, the real GPTModel and loss reduction to each parameter's
gradient.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from migrator.verify.check import Check, bounded, worst, worst_loss
from migrator.verify.data import DataSet, Faults, bounds_of, examine, write
from migrator.verify.ranks import RankFailed, last_line, run_ranks
from migrator.verify.samples import EOS, VOCAB, Item
from migrator.verify.stack import Batch, Stack
from migrator.verify.tiny_gpt import Layout, build, initialize, relative_error, whole_gradients

BOUND = 1e-5  # relative, fp32: every known defect moves some gradient by more than 1e-1
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Result:
    """Loss and gradients of a whole data set."""

    losses: tuple[float, ...]  # reference: sum for each sample; packed: mean for each pack
    gradients: Mapping[str, Tensor]  # of the summed loss


def _tensor(values: Sequence[int]) -> Tensor:
    return torch.tensor([list(values)])


def _one_at_a_time(items: Sequence[Item], _: int) -> Result:
    """The reference: each unpacked sample alone, no packing, no parallelism."""
    layout = Layout()
    state = initialize(layout)
    model = build(layout)
    losses = []
    for item in items:
        length = len(item.ids) - 1
        each = model(_tensor(item.ids[:-1]), _tensor(range(length)), None, labels=_tensor(item.ids[1:]))
        loss = (each * torch.tensor([item.target]).float()).sum()
        loss.backward()
        losses.append(float(loss.detach()))
    return Result(tuple(losses), whole_gradients(model, layout, state))


def _packed(stack: Stack, batches: Sequence[Batch], layout: Layout, _: int) -> Result:
    """The stack's own way, one pack after the other."""
    state = initialize(layout)
    model = build(layout)
    means = []
    for batch in batches:
        loss, mean = stack.loss(model, dict(batch))
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        means.append(mean)
    return Result(tuple(means), whole_gradients(model, layout, state))


def as_trained(items: Sequence[Item], cp: int, faults: Faults) -> tuple[Item, ...]:
    """The samples with the targets that the packs have to give.

    Without context parallelism these are the ones found: no patch changes them. With it they are the samples'
    own, or those without the ones behind an EOS, where this stack leaves them out.
    """
    if cp == 1:
        return tuple(replace(item, target=faults.observed[index]) for index, item in enumerate(items))
    if not faults.after_eos:
        return tuple(items)
    return tuple(
        replace(
            item,
            target=tuple(t and token != EOS for t, token in zip(item.target, item.ids[:-1], strict=True)),
        )
        for item in items
    )


def _compare(name: str, cp: int, got: Sequence[Result], want: Result, means: Sequence[float]) -> list[Check]:
    loss = worst(worst_loss(result.losses, means) for result in got)
    gradients, where = max(relative_error(result.gradients, want.gradients) for result in got)
    return [
        bounded(f"{name}: loss", cp, loss, BOUND),
        bounded(
            f"{name}: gradients", cp, gradients, BOUND, f"largest in {where}" if gradients > BOUND else ""
        ),
    ]


def _failed(name: str, cp: int, why: str) -> list[Check]:
    return [Check(f"{name}: {part}", cp, "failed", None, BOUND, why) for part in ("loss", "gradients")]


def prepare(stack: Stack, folder: Path, chat: bool, seed: int) -> DataSet:
    """Write a data set that every context parallel size can pack without cutting a sample."""
    return write(stack, folder, chat, seed)


@cache
def _reference(items: tuple[Item, ...]) -> Result:
    return run_ranks(1, partial(_one_at_a_time, items), TIMEOUT_S)[0]


def _against(stack: Stack, data: DataSet, name: str, layout: Layout, pad_cu_seqlens: bool) -> list[Check]:
    cp = layout.cp
    faults = Faults()
    try:
        batches = stack.batches(data.folder, data.chat, cp, pad_cu_seqlens)
        held = examine(stack, data, batches, cp, "", faults)
        if sorted(index for pack in held for index in pack) != list(range(len(data.items))):
            return _failed(name, cp, "the packs don't hold exactly the samples, see the data checks")
        items = as_trained(data.items, cp, faults)
        want = _reference(items)
        got = run_ranks(layout.world, partial(_packed, stack, batches, layout), TIMEOUT_S)
    except RankFailed as error:
        return _failed(name, cp, last_line(error))
    except Exception as error:  # upstream code may raise anything
        return _failed(name, cp, f"{type(error).__name__}: {error}")
    means = [
        sum(want.losses[index] for index in pack) / max(1, sum(sum(items[index].target) for index in pack))
        for pack in held
    ]
    return _compare(name, cp, got, want, means)


def check_parity(stack: Stack, folder: Path, cps: Sequence[int], seed: int, chat: bool) -> list[Check]:
    """Parity at CP=1 and each context parallel size; the first report's own comparison on four ranks."""
    plain = prepare(stack, folder / "plain", False, seed)
    sizes = (1, *(cp for cp in cps if cp > 1))
    results = []
    for cp in sizes:
        results += _against(stack, plain, "parity", Layout(cp), pad_cu_seqlens=False)
    if chat:
        chats = prepare(stack, folder / "chat", True, seed)
        results += _against(
            stack, chats, "parity, chat samples, pad_cu_seqlens", Layout(sizes[-1]), pad_cu_seqlens=True
        )
    results += _against(stack, plain, "parity, TP 4", Layout(1, 4, True), pad_cu_seqlens=False)
    if sizes[-1] > 1:
        results += _against(stack, plain, "parity, TP 2", Layout(2, 2, True), pad_cu_seqlens=False)
    return results


DOCUMENTS = 8  # a wrong cut does not let each of them reach into another


@dataclass(frozen=True)
class Probe:
    """A pack, and the same pack with the first token of one document changed, for some of its documents."""

    batch: Batch
    changed: tuple[tuple[Batch, int, int], ...]  # with the document's first position and its end


def _probe(batch: Batch, rng: random.Random) -> Probe:
    spans = [(start, end) for start, end in pairwise(bounds_of(batch).tolist()) if end - start > 3]
    chosen = rng.sample(spans[:-1], min(DOCUMENTS, len(spans) - 1))
    return Probe(batch, tuple((_changed(batch, start), start, end) for start, end in chosen))


def _changed(batch: Batch, position: int) -> Batch:
    other = {key: value.clone() if isinstance(value, Tensor) else value for key, value in batch.items()}
    other["tokens"][0, position] = (int(batch["tokens"][0, position]) + 1) % VOCAB
    return other


def _logits(stack: Stack, batch: Batch, model: nn.Module) -> tuple[Tensor, Tensor]:
    """This rank's tokens [t] as positions of the pack, and their logits [t, vocabulary]."""
    numbered = dict(batch)
    numbered["labels"] = torch.arange(batch["tokens"].shape[1])[None]
    where: Tensor = stack.step(numbered, "only")["labels"][0]
    with torch.no_grad():
        return where, stack.logits(model, dict(batch))[0]


def _leak(stack: Stack, probe: Probe, layout: Layout, _: int) -> tuple[float, float]:
    """Largest change of a logit outside the changed document, and inside."""
    initialize(layout)
    model = build(layout)
    where, before = _logits(stack, probe.batch, model)
    outside: list[float] = []
    within: list[float] = []
    for batch, start, end in probe.changed:
        moved = (_logits(stack, batch, model)[1] - before).abs().amax(-1)
        inside = (where >= start) & (where < end)
        outside += moved[~inside].tolist()
        within += moved[inside].tolist()
    return worst(outside), worst(within)


def check_leak(stack: Stack, folder: Path, cps: Sequence[int], seed: int) -> list[Check]:
    """Change the first token of some documents in turn: no logit of another document may move."""
    name = "leak: no document sees another"
    data = write(stack, folder, False, seed)
    results = []
    for cp in (1, *(cp for cp in cps if cp > 1)):
        try:
            batches = stack.batches(data.folder, False, cp, False)
            probe = _probe(max(batches, key=lambda batch: len(bounds_of(batch))), random.Random(seed))
            moved = run_ranks(cp, partial(_leak, stack, probe, Layout(cp)), TIMEOUT_S)
        except RankFailed as error:
            results.append(Check(name, cp, "failed", None, 0.0, last_line(error)))
            continue
        except Exception as error:  # upstream code may raise anything
            results.append(Check(name, cp, "failed", None, 0.0, f"{type(error).__name__}: {error}"))
            continue
        if worst(within for _, within in moved) == 0.0:
            results.append(Check(name, cp, "failed", None, 0.0, "the document itself did not move either"))
        else:
            results.append(bounded(name, cp, worst(outside for outside, _ in moved), 0.0))
    return results

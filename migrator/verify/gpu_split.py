"""The real step on device tensors: does each context parallel rank get its part of a pack, where and as it
has to be, and what does that cost?

The ranks are processes that share the devices there are: the step itself exchanges nothing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from migrator.verify import packs, steps
from migrator.verify.accelerator import Accelerator, Unready, enough_memory, parallel, pinned, unready
from migrator.verify.check import Check, bounded, counted
from migrator.verify.gpu_stacks import Loaded, Source
from migrator.verify.ranks import RankFailed, last_line
from migrator.verify.stack import Batch, Stack, Stage
from migrator.verify.steps import HELD, STAGES, Outcome
from migrator.verify.tiny_gpt import Layout

TOKENS = "gpu: the step's split, every token exactly once"
PLACES = "gpu: the step's split, on the device and in its dtype"
METADATA = "gpu: the step's metadata on every stage"
COST = "gpu: a step on 32768 tokens, milliseconds"
NAMES = (TOKENS, PLACES, METADATA, COST)
TIMEOUT_S = 200.0

COST_TOKENS, COST_SEQUENCES = 32768, 30  # as in the first public report
WARM_UP, REPETITIONS = 5, 21
COST_BOUND_MS = 500.0  # generous, such a pack trains for seconds: only a gross defect takes as long


@dataclass(frozen=True)
class Cost:
    """Of one step."""

    milliseconds: float
    syncs: int

    def __str__(self) -> str:
        return f"{self.milliseconds:.2f} ms, {self.syncs} synchronizations"


@dataclass(frozen=True)
class Tried:
    """What the step did on one rank."""

    loaded: Loaded
    cases: Mapping[int, Mapping[str, Batch]] = field(default_factory=dict)  # the packs that were tried
    outcomes: Mapping[int, steps.Outcomes] = field(default_factory=dict)  # by context parallel size
    misplaced: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    costs: tuple[Cost, Cost] | str = ""  # at CP=1 and at the smallest other size, or why there are none


def _misplaced(accelerator: Accelerator, batch: Batch, stage: Stage, share: Batch) -> list[str]:
    """Tensors that the model could not take, or that have another dtype than the batch."""
    found = []
    for key in HELD[stage]:
        value = share.get(key)
        if not isinstance(value, Tensor):
            continue  # that it is missing is told elsewhere
        if not accelerator.holds(value):
            found.append(f"{stage} stage: {key} is not on the device")
        if value.dtype != batch[key].dtype:
            found.append(f"{stage} stage: {key} is {value.dtype}, not {batch[key].dtype}")
    params = share["packed_seq_params"]
    if is_dataclass(params):
        named = {entry.name: getattr(params, entry.name) for entry in fields(params)}
        found += [
            f"{stage} stage: {name} is not on the device"
            for name, value in named.items()
            if name.startswith("cu_seqlens") and isinstance(value, Tensor) and not accelerator.holds(value)
        ]
    return found


def _try(accelerator: Accelerator, stack: Stack, batch: Batch, stage: Stage) -> tuple[Outcome, list[str]]:
    try:
        with enough_memory():
            share = stack.step(pinned(accelerator, batch), stage)
        misplaced = _misplaced(accelerator, batch, stage, share)
        host = {key: value.detach().cpu() for key, value in share.items() if isinstance(value, Tensor)}
        return steps.with_params(host, share["packed_seq_params"]), misplaced
    except Unready:
        raise
    except Exception as error:  # upstream code may raise anything
        return Outcome(error=f"{type(error).__name__}: {error}"), []


def _cost(accelerator: Accelerator, stack: Stack, batch: Batch) -> Cost:
    """Median time of a step on a batch that is pinned already, and how often one waits for the device."""

    def call() -> Any:
        return stack.step(dict(batch), "only")

    for _ in range(WARM_UP):
        call()
    times = [accelerator.milliseconds(call) for _ in range(REPETITIONS)]
    return Cost(median(times), accelerator.syncs(call))


def long_pack(cp: int, seed: int) -> Batch:
    """A pack as large as real ones."""
    rng = random.Random(seed)
    return packs.pack(packs.good_spans(rng, 2 * cp, COST_TOKENS // (2 * cp) * 2 * cp, COST_SEQUENCES))


def _costs(
    accelerator: Accelerator, stack: Stack, cp: int, seed: int, store: Path, rank: int
) -> tuple[Cost, Cost] | str:
    try:
        with enough_memory():
            batch = pinned(accelerator, long_pack(cp, seed))
            with parallel("gloo", store / "cost", rank, Layout(cp)):
                split = _cost(accelerator, stack, batch)
            if rank > 0:
                return (split, split)
            with parallel("gloo", store / "cost-alone", 0, Layout(1)):
                return _cost(accelerator, stack, batch), split
    except Unready:
        raise
    except Exception as error:  # upstream code may raise anything
        return f"{type(error).__name__}: {error}"


def _on_rank(
    accelerator: Accelerator, source: Source, cps: Sequence[int], seed: int, store: Path, rank: int
) -> Tried:
    accelerator.start(rank)
    stack, loaded = source.load()
    if stack is None:
        return Tried(loaded)
    cases = {cp: steps.named(stack, packs.good_packs(random.Random(seed + cp), cp)) for cp in cps}
    outcomes: dict[int, steps.Outcomes] = {}
    misplaced: dict[int, tuple[str, ...]] = {}
    for cp in (cp for cp in cps if rank < cp):
        with parallel("gloo", store / f"cp{cp}", rank, Layout(cp)):
            tried = {
                (name, stage): _try(accelerator, stack, batch, stage)
                for name, batch in cases[cp].items()
                for stage in STAGES
            }
        outcomes[cp] = {where: outcome for where, (outcome, _) in tried.items()}
        misplaced[cp] = tuple(
            f"{name}, {fault}" for (name, _), (_, faults) in tried.items() for fault in faults
        )
    smallest = min(cps)
    costs = _costs(accelerator, stack, smallest, seed, store, rank) if rank < smallest else ""
    return Tried(loaded, cases, outcomes, misplaced, costs)


def _split_checks(cp: int, tried: Sequence[Tried]) -> list[Check]:
    tokens: list[str] = []
    metadata: list[str] = []
    stepped = False
    for name, batch in tried[0].cases[cp].items():
        for stage in STAGES:
            ranks = [one.outcomes[cp][name, stage] for one in tried[:cp]]
            broken = next((outcome.error for outcome in ranks if outcome.share is None), "")
            if broken:
                tokens.append(f"{name}, {stage} stage: {broken}")
                continue
            stepped = True
            tokens += steps.token_faults(name, stage, batch, ranks)
            metadata += steps.metadata_faults(name, stage, batch, ranks)
    if not stepped:
        rest = [Check(name, cp, "not run", detail="the step fails on every pack") for name in NAMES[1:3]]
        return [counted(TOKENS, cp, tokens), *rest]
    misplaced = [fault for one in tried[:cp] for fault in one.misplaced[cp]]
    return [counted(TOKENS, cp, tokens), counted(PLACES, cp, misplaced), counted(METADATA, cp, metadata)]


def _cost_check(cp: int, tried: Sequence[Tried]) -> Check:
    costs = tried[0].costs
    if isinstance(costs, str):
        return Check(COST, cp, "failed", None, COST_BOUND_MS, costs)
    alone, split = costs
    return bounded(COST, cp, split.milliseconds, COST_BOUND_MS, f"CP={cp}: {split}; CP=1: {alone}")


def check_split(
    accelerator: Accelerator, source: Source, cps: Sequence[int], seed: int
) -> tuple[list[Check], Loaded | None]:
    """The step at each size of `cps`, all above 1, its cost at the smallest; how the stack was loaded,
    None where no rank got so far.
    """
    try:
        with TemporaryDirectory(prefix="cpfix-store-") as store:
            work = partial(_on_rank, accelerator, source, tuple(cps), seed, Path(store))
            tried: list[Tried] = accelerator.run(max(cps), work, TIMEOUT_S)
    except RankFailed as error:
        why = unready(error)
        if why is not None:
            return [Check(name, None, "not run", detail=why) for name in NAMES], None
        return [Check(name, None, "failed", detail=last_line(error)) for name in NAMES], None
    loaded = tried[0].loaded
    if loaded.broken is not None:
        return [], loaded
    return [check for cp in cps for check in _split_checks(cp, tried)] + [
        _cost_check(min(cps), tried)
    ], loaded

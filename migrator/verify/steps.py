"""Does the data step hand each context parallel rank its part of a pack, whole metadata, and refuse what
can't be split?
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast, get_args

import torch
from torch import Tensor

from migrator.verify import packs
from migrator.verify.check import Check, counted
from migrator.verify.data import bounds_of
from migrator.verify.ranks import RankFailed, last_line, run_ranks
from migrator.verify.reference import lengths, partition_index, zigzag_index
from migrator.verify.stack import Batch, Stack, Stage
from migrator.verify.tiny_gpt import Layout, initialize, packed_bounds

TIMEOUT_S = 60.0
STAGES = cast(tuple[Stage, ...], get_args(Stage))
HELD = {  # tensors of a pack that each pipeline stage works on
    "only": ("tokens", "position_ids", "labels", "loss_mask"),
    "first": ("tokens", "position_ids"),
    "middle": (),
    "last": ("labels", "loss_mask"),
}


@dataclass(frozen=True)
class Outcome:
    """What one rank's step made of one batch at one stage."""

    share: Mapping[str, Any] | None = None  # tensors
    bounds: tuple[int, ...] | None = None  # interval bounds of the PackedSeqParams, None where there are none
    valid: tuple[int, ...] = ()
    error: str = ""


Outcomes = Mapping[tuple[str, str], Outcome]  # by (case, stage)


def _try(stack: Stack, batch: Batch, stage: Stage) -> Outcome:
    try:
        share = stack.step(_copy(batch), stage)
        tensors = {key: value for key, value in share.items() if isinstance(value, Tensor)}
    except Exception as error:  # upstream code may raise anything
        return Outcome(error=f"{type(error).__name__}: {error}")
    return with_params(tensors, share["packed_seq_params"])


def with_params(tensors: Mapping[str, Any], params: Any) -> Outcome:
    """What a step handed out: tensors on the host, and a PackedSeqParams or None."""
    if params is None:
        return Outcome(tensors)
    try:
        padded, valid = packed_bounds(params)
    except ValueError as error:
        return Outcome(tensors, error=str(error))
    return Outcome(tensors, tuple(padded.tolist()), tuple(valid))


def _copy(batch: Batch) -> Batch:
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in batch.items()}


def _on_rank(
    stack: Stack, cases: Mapping[str, Batch], stages: Sequence[Stage], cp: int, rank: int
) -> Outcomes:
    initialize(Layout(cp))
    return {(name, stage): _try(stack, batch, stage) for name, batch in cases.items() for stage in stages}


def _all_ranks(stack: Stack, cases: Mapping[str, Batch], stages: Sequence[Stage], cp: int) -> list[Outcomes]:
    """One process tries all cases in turn, so that anything kept from one batch to the next would show."""
    return run_ranks(cp, partial(_on_rank, stack, cases, stages, cp), TIMEOUT_S)


def _losses(shares: Sequence[Tensor], whole: Tensor) -> str:
    """How many tokens of `whole` [1, t] no rank has, and how many are there twice."""
    seen = Counter(token for share in shares for token in share[0].tolist())
    lost = sum(count == 0 for count in (seen[token] for token in whole[0].tolist()))
    doubled = sum(max(0, count - 1) for count in seen.values())
    return (
        f"{lost} tokens are lost and {doubled} come twice" if lost or doubled else "the wrong rank has them"
    )


def token_faults(case: str, stage: str, batch: Batch, ranks: Sequence[Outcome]) -> list[str]:
    """Tensors of the batch that the ranks don't hold exactly as the reference partition says."""
    cp, bounds = len(ranks), bounds_of(batch)
    total = batch["tokens"].shape[1]
    faults = []
    for key in HELD[stage]:
        shares = [dict(outcome.share or {}).get(key) for outcome in ranks]
        held = [share for share in shares if share is not None]
        if len(held) < cp:
            faults.append(f"{case}, {stage} stage: {key} is missing")
            continue
        wanted = [batch[key][:, partition_index(bounds, total, cp, rank).long()] for rank in range(cp)]
        if not all(torch.equal(a, b) for a, b in zip(held, wanted, strict=True)):
            told = _losses(held, batch[key]) if key == "tokens" else "not split like the tokens"
            faults.append(f"{case}, {stage} stage: {key}: {told}")
    return faults


def metadata_faults(case: str, stage: str, batch: Batch, ranks: Sequence[Outcome]) -> list[str]:
    """Ranks whose PackedSeqParams are not exactly the padded intervals of the batch."""
    bounds = bounds_of(batch)
    where = f"{case}, {stage} stage"
    for rank, outcome in enumerate(ranks):
        if outcome.error:
            return [f"{where}: {outcome.error}"]
        if outcome.bounds is None:
            return [f"{where}: no packed_seq_params, so documents attend to each other"]
        if list(outcome.bounds) != bounds.tolist():
            return [
                f"{where}: rank {rank} has intervals {outcome.bounds[:8]}..., not {bounds.tolist()[:8]}..."
            ]
        if list(outcome.valid) != lengths(bounds):
            return [f"{where}: lengths {outcome.valid[:8]}... are not the padded ones, NaN may come beyond"]
    return []


def named(stack: Stack, cases: Mapping[str, Batch]) -> Mapping[str, Batch]:
    """The packs, and where the stack takes them under other names, each of them under these too."""
    return packs.with_core_names(cases) if stack.core_names else cases


def _good(stack: Stack, cp: int, rng: random.Random) -> list[Check]:
    cases = named(stack, packs.good_packs(rng, cp))
    names = ("step: every token exactly once", "step: metadata on every stage")
    try:
        outcomes = _all_ranks(stack, cases, STAGES, cp)
    except RankFailed as error:
        return [Check(name, cp, "failed", detail=last_line(error)) for name in names]
    tokens: list[str] = []
    metadata: list[str] = []
    for case, batch in cases.items():
        for stage in STAGES:
            ranks = [outcome[case, stage] for outcome in outcomes]
            broken = next((outcome.error for outcome in ranks if outcome.share is None), "")
            if broken:
                tokens.append(f"{case}, {stage} stage: {broken}")
                continue
            tokens += token_faults(case, stage, batch, ranks)
            metadata += metadata_faults(case, stage, batch, ranks)
    if tokens and not metadata and all(o.share is None for ranks in outcomes for o in ranks.values()):
        return [
            counted(names[0], cp, tokens),
            Check(names[1], cp, "not run", detail="the step fails on every pack"),
        ]
    return [counted(names[0], cp, tokens), counted(names[1], cp, metadata)]


def refusal_faults(stack: Stack, cases: Mapping[str, Batch], stages: Sequence[Stage], cp: int) -> list[str]:
    """Bad packs that some rank accepts, or refuses by an error that doesn't tell what is wrong."""
    faults = []
    outcomes = _all_ranks(stack, cases, stages, cp)
    for case in cases:
        for stage in stages:
            ranks = [outcome[case, stage] for outcome in outcomes]
            accepting = [rank for rank, outcome in enumerate(ranks) if outcome.share is not None]
            if accepting:
                alone = "" if len(accepting) == cp else f" by rank {accepting[0]} alone, its peers would hang"
                faults.append(f"{case}, {stage} stage: accepted{alone}")
            elif not _says_why(ranks[0].error):
                faults.append(f"{case}, {stage} stage: refused by {ranks[0].error}")
    return faults


def _says_why(error: str) -> bool:
    """Is it a refusal, not a crash on the way?"""
    return (
        error.startswith(("ValueError", "RuntimeError", "AssertionError"))
        and "is invalid for input" not in error
    )


def _bad(stack: Stack, cp: int, rng: random.Random) -> Check:
    name = "step: bad packs are refused on every rank"
    try:
        return counted(name, cp, refusal_faults(stack, named(stack, packs.bad_packs(rng, cp)), STAGES, cp))
    except RankFailed as error:
        return Check(name, cp, "failed", detail=last_line(error))


def zigzag(value: Tensor, key: str, cp: int, rank: int) -> Tensor:
    """The slice of a tensor that isn't packed: along dim 2 of an attention mask, else along dim 1."""
    dim = 2 if key == "attention_mask" else 1
    return value.index_select(dim, zigzag_index(value.shape[dim], cp, rank))


def _unpacked(stack: Stack, cp: int, rng: random.Random) -> Check:
    name = "step: a batch that is not packed is split as ever"
    batch = packs.plain_batch(rng, cp)
    try:
        outcomes = _all_ranks(stack, {"plain": batch}, ("only",), cp)
    except RankFailed as error:
        return Check(name, cp, "failed", detail=last_line(error))
    faults = []
    for rank, outcome in enumerate(outcomes):
        got = outcome["plain", "only"]
        if got.share is None:
            return Check(name, cp, "failed", detail=got.error)
        faults += [
            f"rank {rank}: {key}"
            for key in (*HELD["only"], *({"attention_mask"} & got.share.keys()))
            if key not in got.share or not torch.equal(got.share[key], zigzag(batch[key], key, cp, rank))
        ]
    return counted(name, cp, faults)


def _planned(stack: Stack, batch: Batch, cp: int, _: int) -> Outcome:
    initialize(Layout(cp))
    assert stack.plan is not None
    try:
        return with_params({}, stack.plan(_copy(batch)))
    except Exception as error:  # upstream code may raise anything
        return Outcome(error=f"{type(error).__name__}: {error}")


def _plan(stack: Stack, cp: int, rng: random.Random) -> Check:
    name = "step: schedule plans have the metadata"
    batch = packs.good_packs(rng, cp)["a pack"]
    try:
        outcomes = run_ranks(cp, partial(_planned, stack, batch, cp), TIMEOUT_S)
    except RankFailed as error:
        return Check(name, cp, "failed", detail=last_line(error))
    return counted(name, cp, metadata_faults("a pack", "only", batch, outcomes))


def _single(stack: Stack, rng: random.Random) -> Check:
    """Without context parallelism lengths need not divide, and the step must leave the pack alone."""
    name, case = "step: packs of any length pass at CP=1", "odd lengths"
    batch = packs.pack([2 * rng.randint(1, 9) + 1 for _ in range(5)])
    try:
        (outcomes,) = _all_ranks(stack, {case: batch}, ("only",), 1)
    except RankFailed as error:
        return Check(name, 1, "failed", detail=last_line(error))
    got = outcomes[case, "only"]
    if got.share is None:
        return Check(name, 1, "failed", detail=got.error)
    changed = [
        key for key in HELD["only"] if key not in got.share or not torch.equal(got.share[key], batch[key])
    ]
    return counted(
        name, 1, [f"{key} has changed" for key in changed] + metadata_faults(case, "only", batch, [got])
    )


def check_steps(stack: Stack, cps: Sequence[int], seed: int) -> list[Check]:
    """The step checks for CP=1 and each context parallel size."""
    results = [_single(stack, random.Random(seed))]
    for cp in (cp for cp in cps if cp > 1):
        rng = random.Random(seed + cp)
        results += [*_good(stack, cp, rng), _bad(stack, cp, rng), _unpacked(stack, cp, rng)]
        results += [_plan(stack, cp, rng)] if stack.plan is not None else []
    return results

"""Does the generic slicer leave packed batches and metadata alone, and go on slicing what isn't packed?"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from migrator.verify import packs
from migrator.verify.check import Check, counted
from migrator.verify.data import bounds_of
from migrator.verify.ranks import RankFailed, last_line, run_ranks
from migrator.verify.reference import partition_index
from migrator.verify.stack import Batch
from migrator.verify.steps import HELD, TIMEOUT_S, zigzag
from migrator.verify.tiny_gpt import Layout, initialize

Slice = Callable[[Batch], Any]


def _core_function() -> Callable[..., Any]:
    function: Callable[..., Any] = import_module("megatron.core.utils").get_batch_on_this_cp_rank
    return function


def splits_packs() -> bool:
    """Does the installed Megatron-Core's generic slicer send packed batches to a THD split (0.18 on)?"""
    return "is_hybrid_cp" in inspect.signature(_core_function()).parameters


def core_slicer() -> Slice:
    """Megatron-Core's `get_batch_on_this_cp_rank`, with its context parallel group where it takes one."""
    function = _core_function()
    if "cp_group" not in inspect.signature(function).parameters:
        return lambda batch: function(batch)
    state = import_module("megatron.core.parallel_state")
    if not splits_packs():
        return lambda batch: function(batch, cp_group=state.get_context_parallel_group())
    return lambda batch: function(batch, is_hybrid_cp=False, cp_group=state.get_context_parallel_group())


def _whole(batch: Batch, slicer: Slice, cp: int, rank: int) -> str:
    """A whole pack has to be refused, or split sequence by sequence."""
    try:
        share = slicer(dict(batch))
    except Exception as error:  # upstream code may raise anything
        refused = isinstance(error, (ValueError, RuntimeError)) and "is invalid for input" not in str(error)
        return "" if refused else f"{type(error).__name__}: {error}"
    if not torch.equal(share["cu_seqlens"], batch["cu_seqlens"]):
        return "cu_seqlens itself is sliced"
    index = partition_index(bounds_of(batch), batch["tokens"].shape[1], cp, rank).long()
    wrong = [key for key in HELD["only"] if not torch.equal(share[key], batch[key][:, index])]
    if not wrong:
        return ""
    whole = all(torch.equal(share[key], batch[key]) for key in wrong)
    return (
        "passed on whole, every rank would train on all of it" if whole else "split across sequence borders"
    )


def _split(batch: Batch, slicer: Slice, cp: int, rank: int) -> str:
    """This rank's part of a pack has to be left alone."""
    index = partition_index(bounds_of(batch), batch["tokens"].shape[1], cp, rank).long()
    mine = batch | {key: batch[key][:, index] for key in HELD["only"]}
    try:
        share = slicer(dict(mine))
    except Exception as error:  # upstream code may raise anything
        return f"{type(error).__name__}: {error}"
    changed = [k for k, v in mine.items() if isinstance(v, Tensor) and not torch.equal(share[k], v)]
    return f"{', '.join(changed)}: sliced a second time" if changed else ""


def _plain(batch: Batch, slicer: Slice, cp: int, rank: int) -> str:
    """A batch that isn't packed has to be sliced, its placeholders not."""
    try:
        share = slicer(dict(batch))
    except Exception as error:  # upstream code may raise anything
        return f"{type(error).__name__}: {error}"
    for key, value in batch.items():
        if isinstance(value, Tensor):
            placeholder = key == "attention_mask" and value.dim() == 1
            if not torch.equal(share[key], value if placeholder else zigzag(value, key, cp, rank)):
                return f"{key} is not sliced as ever"
    return ""


def _cases(cp: int, seed: int, own_thd: bool) -> tuple[dict[str, Batch], dict[str, Batch]]:
    """Packs and other batches, by what is special about them.

    A slicer that splits packs itself gets them as its own data code makes them: the padded cu_seqlens by
    themselves, no -1 behind them. Nothing gives it a placeholder mask without a pack.
    """
    good = packs.good_packs(random.Random(seed), cp)
    plain = packs.plain_batch(random.Random(seed), cp)
    others = {"plain": plain, "plain, cu_seqlens None": plain | {"cu_seqlens": None, "max_seqlen": None}}
    if own_thd:
        whole = {"cu_seqlens_padded": None}
        return {k: v | whole | {"cu_seqlens": bounds_of(v)[None]} for k, v in good.items()}, others
    mask = {"attention_mask": torch.ones(1, dtype=torch.int64)}
    return good, others | {"plain, placeholder mask": plain | mask}


def _on_rank(make: Callable[[], Slice], cp: int, seed: int, own_thd: bool, rank: int) -> list[list[str]]:
    initialize(Layout(cp))
    slicer = make()
    good, others = _cases(cp, seed, own_thd)
    no_mask = {name: pack | {"attention_mask": None, "token_count": None} for name, pack in good.items()}
    kept = (*HELD["only"], "cu_seqlens", "cu_seqlens_padded")
    bare = {  # nothing left that a view could stumble over
        name: {key: pack[key] for key in kept if key in pack} for name, pack in good.items()
    }
    variants = {"": good, " without a mask": no_mask, ", cu_seqlens only": bare}
    whole = [
        f"{name}{how}: {fault}"
        for how, cases in variants.items()
        for name, pack in cases.items()
        if (fault := _whole(pack, slicer, cp, rank))
    ]
    split = [f"{name}: {fault}" for name, pack in good.items() if (fault := _split(pack, slicer, cp, rank))]
    sliced = [
        f"{name}: {fault}" for name, batch in others.items() if (fault := _plain(batch, slicer, cp, rank))
    ]
    return [whole, split, sliced]


def check_slicer(
    what: str, make: Callable[[], Slice], cps: Sequence[int], seed: int, own_thd: bool
) -> list[Check]:
    """The checks of one generic slicer; `make` is called on each rank.

    `own_thd`: it splits packed batches itself (Megatron-Core 0.18 on), so nobody hands it one that is already
    split.
    """
    titles = (
        f"{what}: whole packs are never cut across",
        f"{what}: split packs are left alone",
        f"{what}: other batches",
    )
    results = []
    for cp in (cp for cp in cps if cp > 1):
        try:
            ranks = run_ranks(cp, partial(_on_rank, make, cp, seed, own_thd), TIMEOUT_S)
        except RankFailed as error:
            results += [Check(title, cp, "failed", detail=last_line(error)) for title in titles]
            continue
        for number, title in enumerate(titles):
            if number == 1 and own_thd:
                continue
            faults = list(dict.fromkeys(fault for rank in ranks for fault in rank[number]))
            results.append(counted(title, cp, faults))
    return results

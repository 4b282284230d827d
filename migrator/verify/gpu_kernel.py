"""Does Transformer Engine's index kernel, as it is installed, give the reference partition?"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from migrator.verify import packs
from migrator.verify.accelerator import Accelerator, Kernel, unready
from migrator.verify.check import Check, counted
from migrator.verify.data import bounds_of
from migrator.verify.ranks import RankFailed, last_line
from migrator.verify.reference import partition_index

NAME = "gpu: index kernel of Transformer Engine"
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Tried:
    """What the kernel did wrong, by context parallel size, or why there is none."""

    missing: str = ""
    faults: Mapping[int, Sequence[str]] = field(default_factory=dict)


def _faults(accelerator: Accelerator, kernel: Kernel, device: torch.device, cp: int, seed: int) -> list[str]:
    faults = []
    for name, pack in packs.good_packs(random.Random(seed + cp), cp).items():
        bounds = bounds_of(pack)
        total = int(bounds[-1])
        for rank in range(cp):
            got = kernel(accelerator.put(bounds, device), total, cp, rank)
            if not accelerator.holds(got):
                faults.append(f"{name}, rank {rank}: it is not on the device")
            elif not torch.equal(got.cpu().int(), partition_index(bounds, total, cp, rank)):
                faults.append(f"{name}, rank {rank}: not the reference partition")
    return faults


def _on_rank(accelerator: Accelerator, cps: Sequence[int], seed: int, rank: int) -> Tried:
    device = accelerator.start(rank)
    try:
        kernel = accelerator.kernel()
    except Exception as error:  # a library that doesn't load may raise anything
        return Tried(f"{type(error).__name__}: {error}".splitlines()[0])
    return Tried("", {cp: _faults(accelerator, kernel, device, cp, seed) for cp in cps})


def check_kernel(accelerator: Accelerator, cps: Sequence[int], seed: int) -> tuple[list[Check], str]:
    """The kernel at each size of `cps`, all above 1; why nothing that needs it can be tried, or ""."""
    try:
        (tried,) = accelerator.run(1, partial(_on_rank, accelerator, cps, seed), TIMEOUT_S)
    except RankFailed as error:
        why = unready(error)
        if why is not None:
            return [Check(NAME, None, "not run", detail=why)], why
        return [Check(NAME, None, "failed", detail=last_line(error))], ""
    if tried.missing:
        return [Check(NAME, None, "not run", detail=tried.missing)], tried.missing
    return [counted(NAME, cp, tried.faults[cp]) for cp in cps], ""

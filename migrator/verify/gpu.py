"""The gpu level: Transformer Engine's own index kernel against the reference."""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib import import_module

import torch

from migrator.verify import packs
from migrator.verify.check import Check, counted
from migrator.verify.data import bounds_of
from migrator.verify.reference import partition_index

KERNEL = "gpu: index kernel of Transformer Engine"
PARITY = "gpu: parity of CP=2 with CP=1, Transformer Engine attention"


def check_gpu(cps: Sequence[int], seed: int) -> list[Check]:
    """What can be checked with the GPUs that torch sees."""
    count = torch.cuda.device_count()
    if count == 0:
        return [Check(name, None, "not run", detail="0 GPUs found") for name in (KERNEL, PARITY)]
    parity = "1 GPUs found" if count == 1 else "not written yet"
    return [*_kernel(cps, seed), Check(PARITY, None, "not run", detail=parity)]


def _kernel(cps: Sequence[int], seed: int) -> list[Check]:
    try:
        kernel = import_module("transformer_engine_torch").thd_get_partitioned_indices
    except (ImportError, AttributeError) as error:
        return [Check(KERNEL, None, "not run", detail=f"{type(error).__name__}: {error}")]
    results = []
    for cp in (cp for cp in cps if cp > 1):
        faults = []
        for name, pack in packs.good_packs(random.Random(seed), cp).items():
            bounds = bounds_of(pack)
            total = int(bounds[-1])
            for rank in range(cp):
                got = kernel(bounds.cuda(), total, cp, rank).cpu()
                if not torch.equal(got.int(), partition_index(bounds, total, cp, rank)):
                    faults.append(f"{name}, rank {rank}: not the reference partition")
        results.append(counted(KERNEL, cp, faults))
    return results

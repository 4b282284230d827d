"""Does the stack compute at CP > 1 what it computes at CP=1, with Transformer Engine's attention in bf16?

Both train on the same packs, those made for the larger size, so that only the split, the attention across
ranks and the reduction differ. That the packs are right is shown on the CPU, in fp32.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from migrator.verify import data
from migrator.verify.accelerator import Accelerator, enough_memory, parallel, pinned, unready
from migrator.verify.check import Check, bounded, worst_loss
from migrator.verify.gpu_stacks import Loaded, Source
from migrator.verify.ranks import RankFailed, last_line
from migrator.verify.stack import Batch, Stack
from migrator.verify.tiny_gpt import Layout, Width, build, relative_error, whole_gradients

LOSS = "gpu: parity with CP=1, loss"
GRADIENTS = "gpu: parity with CP=1, gradients"
# Relative. Measured on a CPU with this model, CP 2 and 4. With an attention that rounds as fused kernels do,
# at every size alike: 2e-7 in a pack's loss, 3e-3 in a parameter's gradient (ten seeds). With fp32 inside of
# the attention at CP=1 and bf16 at the larger size, more than two real kernels differ: 8e-4 and 2.1e-2 (six
# seeds). bf16 against fp32 altogether: 1.5e-3 and 2.8e-2. The smallest wrong cases: 4.6e-2 in the loss (a
# local mean), 0.33 in gradients (packs that don't divide).
BOUNDS = {LOSS: 5e-3, GRADIENTS: 1e-1}
TIMEOUT_S = 200.0
WIDTH = Width(hidden=256, heads=4, groups=2, head=64, ffn=512)  # every attention kernel takes heads of 64


@dataclass(frozen=True)
class Result:
    """Of all packs."""

    losses: tuple[float, ...]  # the mean of each pack, as it is logged
    gradients: Mapping[str, Tensor]  # of the summed loss, fp32 on the host


@dataclass(frozen=True)
class Tried:
    """What one rank computed."""

    loaded: Loaded
    split: Result | None = None
    alone: Result | None = None  # without context parallelism, by rank 0


def _train(
    accelerator: Accelerator,
    stack: Stack,
    batches: Sequence[Batch],
    layout: Layout,
    state: Any,
    device: torch.device,
) -> Result:
    """Losses and gradients of each pack, the gradients added up in fp32 as training does."""
    model = build(layout, WIDTH, accelerator.attention(), accelerator.dtype).to(device)
    losses: list[float] = []
    total: dict[str, Tensor] = {}
    for batch in batches:
        model.zero_grad(set_to_none=True)
        summed, mean = stack.loss(model, pinned(accelerator, batch))
        summed.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        losses.append(mean)
        for name, gradient in whole_gradients(model, layout, state).items():
            total[name] = total[name] + gradient if name in total else gradient
    return Result(tuple(losses), {name: gradient.cpu() for name, gradient in total.items()})


def _packs(stack: Stack, folder: Path, cp: int, seed: int) -> list[Batch]:
    written = data.write(stack, folder, False, seed)
    return stack.batches(written.folder, False, cp, False)


def _on_rank(accelerator: Accelerator, source: Source, cp: int, seed: int, place: Path, rank: int) -> Tried:
    device = accelerator.start(rank)
    stack, loaded = source.load()
    if stack is None:
        return Tried(loaded)
    packed = place / "packs"
    if rank == 0:  # before there is a group: the data sets of a stack wait for each other in one
        packed.write_bytes(pickle.dumps(_packs(stack, place / "data", cp, seed)))
    with enough_memory(), parallel(accelerator.backend, place / "store", rank, Layout(cp), device) as state:
        batches: list[Batch] = pickle.loads(packed.read_bytes())
        split = _train(accelerator, stack, batches, Layout(cp), state, device)
    if rank > 0:
        return Tried(loaded, split)
    alone = place / "store-alone"
    with enough_memory(), parallel(accelerator.backend, alone, 0, Layout(), device) as state:
        return Tried(loaded, split, _train(accelerator, stack, batches, Layout(), state, device))


def _compare(cp: int, tried: Sequence[Tried]) -> list[Check]:
    want = tried[0].alone
    got = [one.split for one in tried if one.split is not None]
    assert want is not None
    assert len(got) == cp
    loss = max(worst_loss(result.losses, want.losses) for result in got)
    gradients, where = max(relative_error(result.gradients, want.gradients) for result in got)
    return [
        bounded(LOSS, cp, loss, BOUNDS[LOSS]),
        bounded(GRADIENTS, cp, gradients, BOUNDS[GRADIENTS], f"largest in {where}"),
    ]


def check_parity(accelerator: Accelerator, source: Source, cp: int, seed: int) -> list[Check]:
    """Loss and every gradient at context parallel size `cp`, one device a rank."""
    if accelerator.count < cp:
        return _none(cp, f"{accelerator.count} GPUs found, {cp} are needed")
    try:
        with TemporaryDirectory(prefix="cpfix-parity-") as place:
            work = partial(_on_rank, accelerator, source, cp, seed, Path(place))
            tried: list[Tried] = accelerator.run(cp, work, TIMEOUT_S)
    except RankFailed as error:
        why = unready(error)
        if why is not None:
            return _none(cp, why)
        return [Check(name, cp, "failed", None, bound, last_line(error)) for name, bound in BOUNDS.items()]
    broken = tried[0].loaded.broken
    return _compare(cp, tried) if broken is None else [broken, *_none(cp, "the stack cannot be imported")]


def _none(cp: int, why: str) -> list[Check]:
    return [Check(name, cp, "not run", detail=why) for name in BOUNDS]

"""Twenty optimizer steps at each context parallel size on the same packs; which rank gets which token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from migrator.verify.check import Check, bounded, worst_loss
from migrator.verify.data import DataSet, bounds_of, write
from migrator.verify.ranks import RankFailed, last_line, run_ranks
from migrator.verify.reference import zigzag_index
from migrator.verify.stack import Batch, Stack
from migrator.verify.tiny_gpt import Layout, build, initialize

STEPS = 20
RATE = 2e-3
BOUND = 1e-4  # relative, fp32, anywhere on the curve: rounding differences grow with each step
TIMEOUT_S = 120.0
Show = Callable[[str, object], None]


def _train(stack: Stack, batches: Sequence[Batch], layout: Layout, _: int) -> list[float]:
    """Logged mean loss of each step, one pack a step; gradients summed over ranks, divided by the targets."""
    state = initialize(layout)
    model = build(layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    losses = []
    for number in range(STEPS):
        batch = batches[number % len(batches)]
        summed, mean = stack.loss(model, dict(batch))
        optimizer.zero_grad()
        summed.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=state.get_context_parallel_group())
                parameter.grad /= float(batch["loss_mask"].sum())
        optimizer.step()
        losses.append(mean)
    return losses


def _curve(stack: Stack, data: DataSet, cp: int, largest: int) -> list[float] | str:
    """Losses, or why there are none. All sizes train on the packs that the largest needs: others differ."""
    try:
        batches = stack.batches(data.folder, data.chat, largest, False)
        return run_ranks(cp, partial(_train, stack, batches, Layout(cp)), TIMEOUT_S)[0]
    except RankFailed as error:
        return last_line(error)
    except Exception as error:  # upstream code may raise anything
        return f"{type(error).__name__}: {error}"


def check_curves(stack: Stack, folder: Path, cps: Sequence[int], seed: int, show: Show) -> list[Check]:
    """The loss curve of every context parallel size against the one without. Shows "curves": {cp: [loss]}."""
    name = f"curves: {STEPS} optimizer steps"
    sizes = [1, *(cp for cp in cps if cp > 1)]
    data = write(stack, folder, False, seed)
    tried = {cp: _curve(stack, data, cp, sizes[-1]) for cp in sizes}
    curves = {cp: found for cp, found in tried.items() if not isinstance(found, str)}
    results = [
        Check(name, cp, "failed", None, BOUND, why) for cp, why in tried.items() if isinstance(why, str)
    ]
    for cp, losses in curves.items():
        if cp > 1 and 1 in curves:
            results.append(bounded(name, cp, worst_loss(losses, curves[1]), BOUND))
    show("curves", {str(cp): losses for cp, losses in curves.items()})
    return results


def _held(stack: Stack, batch: Batch, cp: int, _: int) -> list[int]:
    initialize(Layout(cp))
    numbered = dict(batch) | {"tokens": torch.arange(batch["tokens"].shape[1])[None]}
    positions: list[int] = stack.step(numbered, "only")["tokens"][0].tolist()
    return positions


def show_split(stack: Stack, folder: Path, cps: Sequence[int], seed: int, show: Show) -> list[Check]:
    """Show who gets which token of a pack; the checks of that are in `steps`.

    "split": {cp: {"bounds": [n + 1], "now": [rank of each token, -1 for none], "whole": [the same for a pack
    that is cut as one sequence]}}.
    """
    data = write(stack, folder, False, seed)
    pictures = {}
    for cp in (cp for cp in cps if cp > 1):
        try:
            batches = stack.batches(data.folder, False, cp, False)
            batch = max(batches, key=lambda batch: len(bounds_of(batch)))  # where the cuts are seen best
            shares = run_ranks(cp, partial(_held, stack, batch, cp), TIMEOUT_S)
        except Exception:  # nothing to draw: the other checks say why
            continue
        total = batch["tokens"].shape[1]
        now, whole = [-1] * total, [-1] * total
        for rank, share in enumerate(shares):
            for position in share:
                now[position] = rank
            for position in zigzag_index(total, cp, rank).tolist():
                whole[position] = rank
        pictures[str(cp)] = {"bounds": bounds_of(batch).tolist(), "now": now, "whole": whole}
    show("split", pictures)
    return []

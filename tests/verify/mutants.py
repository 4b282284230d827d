"""A child process: right and wrong stacks around the real Megatron-Core model, what the checks say of each.

python mutants.py MEGATRON_CORE_ROOT SEED OUT.json
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from migrator.verify import core_stack, curves, data, parity, slicer, steps, stubs
from migrator.verify.check import Check, to_json
from migrator.verify.data import bounds_of
from migrator.verify.reference import kernel_index, lengths, partition_index, zigzag_index
from migrator.verify.samples import EOS
from migrator.verify.stack import Batch, Stack, Stage
from tests.verify import slicers
from tests.verify.slicers import state

Mutant = Callable[[Stack], Stack]
Checks = Callable[[Stack, Path, int], list[Check]]
CP = 2


def on_batches(change: Callable[[Batch, int], Batch], from_cp: int = 2) -> Mutant:
    """The stack's packs changed, at context parallel sizes from `from_cp` on."""

    def mutate(stack: Stack) -> Stack:
        def batches(folder: Path, chat: bool, cp: int, pad_cu_seqlens: bool) -> list[Batch]:
            found = stack.batches(folder, chat, cp, pad_cu_seqlens)
            return [change(batch, number) for number, batch in enumerate(found)] if cp >= from_cp else found

        return dataclasses.replace(stack, batches=batches)

    return mutate


def on_params(change: Callable[[Any], Any]) -> Mutant:
    """PackedSeqParams changed, in the step and for whole batches alike."""

    def mutate(stack: Stack) -> Stack:
        def step(batch: Batch, stage: Stage) -> Batch:
            share = stack.step(batch, stage)
            return share | {"packed_seq_params": change(share["packed_seq_params"])}

        return with_step(dataclasses.replace(stack, params=lambda batch: change(stack.params(batch))), step)

    return mutate


def with_step(stack: Stack, step: Callable[[Batch, Stage], Batch]) -> Stack:
    """The stack with another data step, in its loss and logits too."""

    def run(function: Callable[[nn.Module, Batch], Any]) -> Callable[[nn.Module, Batch], Any]:
        return lambda model, batch: with_attribute(core_stack, "step", step, lambda: function(model, batch))

    return dataclasses.replace(stack, step=step, loss=run(stack.loss), logits=run(stack.logits))


def with_attribute(owner: Any, name: str, value: Any, call: Callable[[], Any]) -> Any:
    """`call()` while `owner` has another attribute."""
    with stubs.replaced(owner, **{name: value}):
        return call()


def splitting(index: Callable[[Batch, int, int], Tensor], refuse: bool = True) -> Mutant:
    """The step with another index of this rank's tokens."""

    def mutate(stack: Stack) -> Stack:
        def step(batch: Batch, stage: Stage) -> Batch:
            if batch.get("cu_seqlens") is None:
                return core_stack.step(batch, stage)
            cp, rank = state().get_context_parallel_world_size(), state().get_context_parallel_rank()
            if refuse:
                core_stack.check_pack(batch, cp)
            rows = index(batch, cp, rank).long()
            share: Batch = {
                key: batch[key][:, rows] if key in steps.HELD[stage] else None for key in core_stack.SPLIT
            }
            return share | {"attention_mask": None, "packed_seq_params": core_stack.params(batch)}

        return with_step(stack, step)

    return mutate


def around_step(change: Callable[[Batch, Stage, Callable[[Batch, Stage], Batch]], Batch]) -> Mutant:
    """Something else around the right step."""
    right = core_stack.step
    return lambda stack: with_step(stack, lambda batch, stage: change(batch, stage, right))


def pads_as_targets(batch: Batch, _: int) -> Batch:
    """Every pad is a target."""
    return batch | {"loss_mask": batch["loss_mask"] | (batch["labels"] == EOS).long()}


def drop_target(batch: Batch, number: int) -> Batch:
    """The first target of the first pack is none."""
    mask = batch["loss_mask"].clone()
    if number == 0:
        mask[0, int(mask[0].argmax())] = 0
    return batch | {"loss_mask": mask}


def drop_after_eos(batch: Batch, _: int) -> Batch:
    """No target behind an EOS."""
    return batch | {"loss_mask": batch["loss_mask"] * (batch["tokens"] != EOS)}


def unpadded(params: Any) -> Any:
    """Lengths without the last token of each sequence, as if inferred from EOS."""
    if params is None:
        return None
    spans = [max(0, length - 1) for length in lengths(params.cu_seqlens_q)]
    found = torch.tensor([0, *torch.tensor(spans).cumsum(0).tolist()], dtype=torch.int32)
    return dataclasses.replace(params, cu_seqlens_q=found, cu_seqlens_kv=found)


def with_sentinel(params: Any) -> Any:
    """A -1 left at the end."""
    if params is None:
        return None
    left = torch.cat([params.cu_seqlens_q, torch.tensor([-1], dtype=torch.int32)])
    fields = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")
    return dataclasses.replace(params, **dict.fromkeys(fields, left))


def one_long_sequence(params: Any) -> Any:
    """All documents of a pack as one."""
    if params is None:
        return None
    whole = params.cu_seqlens_q[[0, -1]]
    fields = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")
    total = int(whole[-1])
    return dataclasses.replace(
        params, **dict.fromkeys(fields, whole), max_seqlen_q=total, max_seqlen_kv=total
    )


def cached(cache: dict[int, Tensor]) -> Callable[[Batch, int, int], Tensor]:
    """An index that is kept for all packs of one size."""

    def index(batch: Batch, cp: int, rank: int) -> Tensor:
        total = batch["tokens"].shape[1]
        if total not in cache:
            cache[total] = partition_index(bounds_of(batch), total, cp, rank)
        return cache[total]

    return index


def raw_kernel(batch: Batch, cp: int, rank: int) -> Tensor:
    """The kernel's index with all trailing -1."""
    return kernel_index(batch["cu_seqlens"][0], batch["tokens"].shape[1], cp, rank)


def middle_without_metadata(batch: Batch, stage: Stage, right: Callable[[Batch, Stage], Batch]) -> Batch:
    share = right(batch, stage)
    return share | {"packed_seq_params": None} if stage == "middle" else share


def shifted_after_split(batch: Batch, stage: Stage, right: Callable[[Batch, Stage], Batch]) -> Batch:
    share = right(batch, stage)
    return share | {"labels": None if share["labels"] is None else share["labels"].roll(-1, 1)}


def emptied_without_sentinel(batch: Batch, stage: Stage, right: Callable[[Batch, Stage], Batch]) -> Batch:
    share = right(batch, stage)
    params = share["packed_seq_params"]
    if params is None or int(batch["cu_seqlens"].min()) < 0:
        return share
    none = params.cu_seqlens_q[:0]
    return share | {
        "packed_seq_params": dataclasses.replace(params, cu_seqlens_q=none, cu_seqlens_q_padded=none)
    }


def only_rank_0_refuses(batch: Batch, stage: Stage, right: Callable[[Batch, Stage], Batch]) -> Batch:
    try:
        return right(batch, stage)
    except ValueError:
        if state().get_context_parallel_rank() == 0:
            raise
        return right(batch | {"cu_seqlens": None}, stage) | {"packed_seq_params": None}


def crashes_on_bad(batch: Batch, stage: Stage, right: Callable[[Batch, Stage], Batch]) -> Batch:
    try:
        return right(batch, stage)
    except ValueError as error:
        raise IndexError("tuple index out of range") from error


def contiguous(batch: Batch, stage: Stage, right: Callable[[Batch, Stage], Batch]) -> Batch:
    share = right(batch, stage)
    if batch.get("cu_seqlens") is not None:
        return share
    cp, rank = state().get_context_parallel_world_size(), state().get_context_parallel_rank()
    return share | {key: batch[key].chunk(cp, 1)[rank] for key in core_stack.SPLIT}


def refuses_odd_lengths(batch: Batch, stage: Stage, right: Callable[[Batch, Stage], Batch]) -> Batch:
    core_stack.check_pack(batch, max(CP, state().get_context_parallel_world_size()))
    return right(batch, stage)


def fails_to_pack(stack: Stack) -> Stack:
    def batches(folder: Path, chat: bool, cp: int, pad_cu_seqlens: bool) -> list[Batch]:
        if cp > 1:
            raise TypeError("unsupported operand type(s) for +: 'Tensor' and 'list'")
        return stack.batches(folder, chat, cp, pad_cu_seqlens)

    return dataclasses.replace(stack, batches=batches)


def loses_a_pack(stack: Stack) -> Stack:
    def batches(folder: Path, chat: bool, cp: int, pad_cu_seqlens: bool) -> list[Batch]:
        return stack.batches(folder, chat, cp, pad_cu_seqlens)[: -1 if cp > 1 else None]

    return dataclasses.replace(stack, batches=batches)


def packs_for_one(stack: Stack) -> Stack:
    """Packs that are not prepadded, whatever the context parallel size."""
    return dataclasses.replace(
        stack, batches=lambda folder, chat, cp, pad: stack.batches(folder, chat, 1, pad)
    )


def local_mean(stack: Stack) -> Stack:
    """A mean over this rank's tokens only is what is logged."""

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
        summed, _ = stack.loss(model, batch)
        mask = stack.step(batch, "only")["loss_mask"]
        return summed, float(summed) / max(1, int(mask.sum()))

    return dataclasses.replace(stack, loss=loss)


def slightly_off(stack: Stack) -> Stack:
    """Gradients that are off by two parts in ten thousand, behind a right loss."""

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
        summed, mean = stack.loss(model, batch)
        return summed * 1.0002, mean

    return dataclasses.replace(stack, loss=loss)


def zigzag(batch: Batch, cp: int, rank: int) -> Tensor:
    """The whole pack as one sequence."""
    return zigzag_index(batch["tokens"].shape[1], cp, rank)


DATA: Mapping[str, Mutant] = {
    "right": lambda stack: stack,
    "not prepadded": packs_for_one,
    "pads are targets": on_batches(pads_as_targets),
    "a target is missing": on_batches(drop_target),
    "targets behind EOS are missing with CP only": on_batches(drop_after_eos),
    "targets behind EOS are always missing": on_batches(drop_after_eos, from_cp=1),
    "a pack is lost": loses_a_pack,
    "packing fails": fails_to_pack,
    "labels are not shifted": on_batches(lambda batch, _: batch | {"labels": batch["tokens"]}),
    "positions count on": on_batches(
        lambda batch, _: batch | {"position_ids": torch.arange(batch["tokens"].shape[1])[None]}
    ),
    "max_seqlen too small": on_params(lambda p: p and dataclasses.replace(p, max_seqlen_kv=1)),
    "a sentinel is left": on_params(with_sentinel),
    "unpadded lengths": on_params(unpadded),
    "argmin is wrong": on_batches(lambda b, _: b | {"cu_seqlens_argmin": b["cu_seqlens_argmin"] - 1}),
}
STEPS: Mapping[str, Mutant] = {
    "right": lambda stack: stack,
    "a row without -1 is emptied": around_step(emptied_without_sentinel),
    "zigzag over the whole pack": splitting(zigzag),
    "the index is kept": splitting(cached({})),
    "sentinels in the index call": splitting(raw_kernel),
    "bad packs are accepted": splitting(raw_kernel, refuse=False),
    "labels are shifted after the split": around_step(shifted_after_split),
    "middle stage without metadata": around_step(middle_without_metadata),
    "unpadded lengths": on_params(unpadded),
    "only rank 0 refuses": around_step(only_rank_0_refuses),
    "crashes on bad packs": around_step(crashes_on_bad),
    "other batches are cut into contiguous parts": around_step(contiguous),
    "odd lengths are refused at CP=1": around_step(refuses_odd_lengths),
}
PARITY: Mapping[str, Mutant] = {
    "right": lambda stack: stack,
    "zigzag over the whole pack": splitting(zigzag),
    "pads are targets": on_batches(pads_as_targets),
    "unpadded lengths": on_params(unpadded),
    "a local mean is logged": local_mean,
    "gradients are slightly off": slightly_off,
    "not prepadded": packs_for_one,
}
LEAK: Mapping[str, Mutant] = {
    "right": lambda stack: stack,
    "documents see each other": on_params(one_long_sequence),
    "zigzag over the whole pack": splitting(zigzag),
}
CURVES: Mapping[str, Mutant] = {
    "right": lambda stack: stack,
    "zigzag over the whole pack": splitting(zigzag),
    "packing fails": fails_to_pack,
}


PICTURES: dict[str, Any] = {}


def shown(name: str, picture: object) -> None:
    """Keep the last picture of each name."""
    PICTURES[name] = picture


GROUPS: Mapping[str, tuple[Mapping[str, Mutant], Checks]] = {
    "data": (DATA, lambda stack, folder, seed: data.check_data(stack, folder, [CP], seed)),
    "step": (STEPS, lambda stack, _, seed: steps.check_steps(stack, [CP], seed)),
    "parity": (PARITY, lambda stack, folder, seed: parity.check_parity(stack, folder, [CP], seed, False)),
    "curves": (CURVES, lambda stack, folder, seed: curves.check_curves(stack, folder, [CP], seed, shown)),
    "leak": (LEAK, lambda stack, folder, seed: parity.check_leak(stack, folder, [CP], seed)),
}


def main(root: str, seed: int, out: Path) -> None:
    """Run every mutant and write {group: {mutant: [check]}}."""
    sys.path.insert(0, root)
    stubs.cpu_torch()
    stubs.cpu_kernel()
    for name in ("megatron.core.models.gpt.gpt_model", "megatron.core.models.gpt.gpt_layer_specs"):
        import_module(name)
    found: dict[str, dict[str, Any]] = {}
    for group, (mutants, checks) in GROUPS.items():
        found[group] = {}
        for name, mutate in mutants.items():
            with tempfile.TemporaryDirectory() as folder:
                got = checks(
                    mutate(core_stack.load()), Path(folder) / "checks", random.Random(seed).randrange(2**31)
                )
            found[group][name] = [to_json(check) for check in got]
    found["slicer"] = {
        name: [to_json(check) for check in slicer.check_slicer("slicer", make, [CP], seed, own_thd=False)]
        for name, make in slicers.SLICERS.items()
    }
    found["THD slicer"] = {
        name: [to_json(check) for check in slicer.check_slicer("slicer", make, [CP], seed, own_thd=True)]
        for name, make in slicers.THD_SLICERS.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        right = core_stack.load()
        curves.check_curves(right, Path(folder) / "curves", [CP], seed, shown)
        curves.show_split(right, Path(folder) / "split", [CP], seed, shown)
    out.write_text(json.dumps(found | {"pictures": PICTURES}))


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
    except Exception:
        traceback.print_exc()
        raise

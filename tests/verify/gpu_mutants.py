"""A child process: right and wrong kernels and stacks on a CPU in the GPUs' place; what the gpu level says.

python gpu_mutants.py MEGATRON_CORE_ROOT SEED OUT.json
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from migrator.verify import core_stack, gpu_kernel, gpu_parity, gpu_split, gpu_stacks
from migrator.verify.accelerator import Accelerator, Call, Kernel, Unready
from migrator.verify.check import Check, to_json
from migrator.verify.gpu_stacks import Loaded, Source
from migrator.verify.ranks import run_forked
from migrator.verify.reference import kernel_index, zigzag_index
from migrator.verify.stack import Batch, Stack, Stage
from tests.verify import mutants
from tests.verify.emulated import emulated, kernel_on_device, start, to_device
from tests.verify.mutants import Mutant

CP = 2


def right(stack: Stack) -> Stack:
    """Nothing is wrong."""
    return stack


# --- kernels


def whole_pack(cu_seqlens: Tensor, total: int, cp_size: int, cp_rank: int) -> Tensor:
    """The pack as one sequence."""
    return to_device(zigzag_index(total, cp_size, cp_rank))


def another_rank(cu_seqlens: Tensor, total: int, cp_size: int, cp_rank: int) -> Tensor:
    """Ranks counted from the end."""
    return kernel_on_device(cu_seqlens, total, cp_size, cp_size - 1 - cp_rank)


def another_order(cu_seqlens: Tensor, total: int, cp_size: int, cp_rank: int) -> Tensor:
    """The right positions, backwards."""
    return kernel_on_device(cu_seqlens, total, cp_size, cp_rank).flip(0)


def on_host(cu_seqlens: Tensor, total: int, cp_size: int, cp_rank: int) -> Tensor:
    """The right index, not on the device."""
    return kernel_index(cu_seqlens, total, cp_size, cp_rank)


def crashes(cu_seqlens: Tensor, total: int, cp_size: int, cp_rank: int) -> Tensor:
    """An error of the kernel."""
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


KERNELS: Mapping[str, Kernel] = {
    "right": kernel_on_device,
    "the whole pack as one sequence": whole_pack,
    "another rank's": another_rank,
    "another order": another_order,
    "on the host": on_host,
    "crashes": crashes,
}


def given(kernel: Kernel) -> Kernel:
    """Loads without trouble."""
    return kernel


def missing() -> Kernel:
    """No Transformer Engine."""
    raise ModuleNotFoundError("No module named 'transformer_engine'")


def unusable(_: int) -> torch.device:
    """A device that another process holds."""
    raise Unready("cuda:0: all CUDA-capable devices are busy or unavailable")


# --- steps


def moved(batch: Batch) -> Batch:
    """A batch on the device."""
    return {key: to_device(value) if isinstance(value, Tensor) else value for key, value in batch.items()}


def device_first(mutate: Mutant) -> Mutant:
    """The mutant's step on tensors that it has moved to the device."""

    def change(stack: Stack) -> Stack:
        inner = mutate(stack)
        return dataclasses.replace(inner, step=lambda batch, stage: inner.step(moved(batch), stage))

    return change


def after_step(change: Callable[[Batch], Batch]) -> Mutant:
    """What the right step returns, changed."""
    return device_first(mutants.around_step(lambda batch, stage, step: change(step(batch, stage))))


def loss_mask_on_host(share: Batch) -> Batch:
    return share | {"loss_mask": None if share["loss_mask"] is None else share["loss_mask"].cpu()}


def labels_as_int32(share: Batch) -> Batch:
    return share | {"labels": None if share["labels"] is None else share["labels"].int()}


def metadata_on_host(share: Batch) -> Batch:
    params = share["packed_seq_params"]
    return share | {"packed_seq_params": dataclasses.replace(params, cu_seqlens_q=params.cu_seqlens_q.cpu())}


def fails(batch: Batch, stage: Stage, step: object) -> Batch:
    raise IndexError("tuple index out of range")


def runs_out_of_memory(batch: Batch, stage: Stage, step: object) -> Batch:
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")


def fails_in_the_middle(batch: Batch, stage: Stage, step: Callable[[Batch, Stage], Batch]) -> Batch:
    if stage == "middle":
        raise IndexError("tuple index out of range")
    return step(batch, stage)


STEPS: Mapping[str, Mutant] = {
    "right": device_first(right),
    "zigzag over the whole pack": device_first(mutants.splitting(mutants.zigzag)),
    "the index is kept": device_first(mutants.splitting(mutants.cached({}))),
    "labels are shifted after the split": device_first(mutants.around_step(mutants.shifted_after_split)),
    "middle stage without metadata": device_first(mutants.around_step(mutants.middle_without_metadata)),
    "unpadded lengths": device_first(mutants.on_params(mutants.unpadded)),
    "a sentinel is left": device_first(mutants.on_params(mutants.with_sentinel)),
    "all stays on the host": right,
    "the loss mask stays on the host": after_step(loss_mask_on_host),
    "the metadata stays on the host": after_step(metadata_on_host),
    "labels in another dtype": after_step(labels_as_int32),
    "the step fails": device_first(mutants.around_step(fails)),
    "the step fails in the middle": device_first(mutants.around_step(fails_in_the_middle)),
}


# --- training


def only_at_cp(change: Callable[[Tensor, float], tuple[Tensor, float]]) -> Mutant:
    """Loss as it is trained on and as it is logged, changed under context parallelism."""

    def mutate(stack: Stack) -> Stack:
        def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
            summed, mean = stack.loss(model, batch)
            split = mutants.state().get_context_parallel_world_size() > 1
            return change(summed, mean) if split else (summed, mean)

        return dataclasses.replace(stack, loss=loss)

    return mutate


def one_rank_is_nan(summed: Tensor, mean: float) -> tuple[Tensor, float]:
    return summed, float("nan") if mutants.state().get_context_parallel_rank() == 1 else mean


right_step = core_stack.step


def long_at_cp(batch: Batch, stage: Stage) -> Batch:
    """Documents see each other, under context parallelism."""
    share = right_step(batch, stage)
    if mutants.state().get_context_parallel_world_size() == 1:
        return share
    whole = batch | {"cu_seqlens": batch["cu_seqlens"][:, :1].new_tensor([[0, batch["tokens"].shape[1], -1]])}
    return share | {"packed_seq_params": core_stack.params(whole)}


PARITY: Mapping[str, Mutant] = {
    "right": right,
    "zigzag over the whole pack": mutants.splitting(mutants.zigzag),
    "one long sequence at CP > 1": lambda stack: mutants.with_step(stack, long_at_cp),
    "unpadded lengths": mutants.on_params(mutants.unpadded),
    "a mean over too many tokens is logged": only_at_cp(lambda summed, mean: (summed, mean / 2)),
    "one rank logs NaN": only_at_cp(one_rank_is_nan),
    "gradients of half the loss": only_at_cp(lambda summed, mean: (summed / 2, mean)),
    "gradients off by a fifth": only_at_cp(lambda summed, mean: (summed * 1.2, mean)),
    "not prepadded": mutants.packs_for_one,
    "packing fails": mutants.fails_to_pack,
}


# --- all of them


def accelerator(**changed: Any) -> Accelerator:
    """Forked ranks, a clock that always shows the same."""
    steady = dataclasses.replace(
        emulated(count=2, run=run_forked), milliseconds=clock(0.25), syncs=three_syncs
    )
    return dataclasses.replace(steady, **changed)


def clock(value: float) -> Callable[[Call], float]:
    """Every call takes so many milliseconds."""

    def milliseconds(call: Call) -> float:
        call()
        return value

    return milliseconds


def three_syncs(call: Call) -> int:
    """As if each call waited three times."""
    call()
    return 3


def source(mutate: Mutant) -> Source:
    """Megatron-Core in this package's own frame, changed."""
    return Source("core", lambda: (mutate(core_stack.load()), Loaded("core")))


def split(device: Accelerator, mutate: Mutant, seed: int) -> list[Check]:
    """Without how the stack was loaded."""
    return gpu_split.check_split(device, source(mutate), [CP], seed)[0]


def main(root: str, seed: int, out: Path) -> None:
    """Run every mutant and write {group: {mutant: [check]}}."""
    sys.path.insert(0, root)
    start(0)
    for name in ("megatron.core.models.gpt.gpt_model", "megatron.core.models.gpt.gpt_layer_specs"):
        import_module(name)
    device = accelerator()
    steady = STEPS["right"]
    found: dict[str, dict[str, list[Check]]] = {
        "kernel": {
            name: gpu_kernel.check_kernel(accelerator(kernel=partial(given, kernel)), [CP, 4], seed)[0]
            for name, kernel in KERNELS.items()
        },
        "split": {name: split(device, mutate, seed) for name, mutate in STEPS.items()},
        "cost": {"right": split(device, steady, seed)},
        "parity": {
            name: gpu_parity.check_parity(device, source(mutate), CP, seed) for name, mutate in PARITY.items()
        },
        "fresh": {"right": gpu_parity.check_parity(emulated(), gpu_stacks.CORE, CP, seed)},
    }
    found["kernel"]["missing"] = gpu_kernel.check_kernel(accelerator(kernel=missing), [CP], seed)[0]
    found["kernel"]["unusable"] = gpu_kernel.check_kernel(accelerator(start=unusable), [CP], seed)[0]
    full = device_first(mutants.around_step(runs_out_of_memory))
    found["split"]["out of memory"] = split(device, full, seed)
    found["split"]["unusable"] = split(accelerator(start=unusable), steady, seed)
    found["cost"]["half a second"] = split(accelerator(milliseconds=clock(501.0)), steady, seed)
    found["parity"]["unusable"] = gpu_parity.check_parity(
        accelerator(start=unusable), source(right), CP, seed
    )
    out.write_text(
        json.dumps(
            {group: {k: [to_json(c) for c in v] for k, v in one.items()} for group, one in found.items()}
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))

"""The cpu level: import what is installed, with stubs where need be, and list the groups of checks to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch

from migrator.verify import bridge_stack, data, nemo_stack, parity, slicer, steps, stubs
from migrator.verify.check import Check
from migrator.verify.stack import Stack
from migrator.verify.static import find_module

Group = tuple[str, Callable[[], Sequence[Check]]]
Say = Callable[[str], None]
STACKS = {  # what to load, by the module that tells whether it is installed
    "nemo.collections.llm.gpt.model.base": nemo_stack,
    "megatron.bridge.training.gpt_step": bridge_stack,
}


def groups(scratch: Path, cps: Sequence[int], seed: int, say: Say) -> Iterator[Group]:
    """Names and bodies of the groups of checks, in order. `say` is told each stub."""
    torch.set_num_threads(1)  # ranks are forked: no thread pool may be running by then
    for name in stubs.cpu_torch():
        say(f"{name} (CPU tensors)")
    say(stubs.cpu_kernel())
    if find_module("megatron.core.utils") is None:
        yield "imports", lambda: [Check("imports", None, "not run", detail="megatron.core is not installed")]
        return
    yield "core slicer", partial(_core, cps, seed)
    found = [module for name, module in STACKS.items() if find_module(name) is not None]
    if not found:
        yield (
            "stack",
            lambda: [Check("stack", None, "not run", detail="neither NeMo nor Megatron-Bridge is installed")],
        )
    for module in found:
        stack = _load(module, say)
        if isinstance(stack, Check):
            yield stack.name, partial(_same, stack)
        else:
            yield from _stack_groups(stack, scratch / stack.name.replace(" ", "-"), cps, seed)


def _same(check: Check) -> Sequence[Check]:
    return [check]


def _core(cps: Sequence[int], seed: int) -> Sequence[Check]:
    utils = import_module("megatron.core.utils")
    own_thd = hasattr(utils, "get_sft_batch_on_this_cp_rank") or hasattr(
        utils, "get_thd_batch_on_this_cp_rank"
    )
    return slicer.check_slicer("core slicer", slicer.core_slicer, cps, seed, own_thd)


def _load(module: object, say: Say) -> Stack | Check:
    """The stack's functions, or why it can't be imported."""
    optional: Sequence[str] = getattr(module, "OPTIONAL")  # noqa: B009  # a module of `STACKS`
    finder = stubs.install_stubs(getattr(module, "stub_names")(stubs.missing(optional)))  # noqa: B009
    name = getattr(module, "NAME")  # noqa: B009
    try:
        stack: Stack = getattr(module, "load")()  # noqa: B009
    except Exception as error:  # upstream code may raise anything
        return Check(f"{name}: import", None, "not run", detail=f"{type(error).__name__}: {error}")
    finally:
        for used in finder.used:
            say(f"{used} (stub)")
    return stack


def _stack_groups(stack: Stack, scratch: Path, cps: Sequence[int], seed: int) -> Iterator[Group]:
    scratch.mkdir(parents=True)
    chat = not data.supports_chat(stack, scratch / "chat-probe", seed)
    yield "data", partial(data.check_data, stack, scratch / "data", cps, seed)
    yield "step", partial(steps.check_steps, stack, cps, seed)
    yield "parity", partial(parity.check_parity, stack, scratch / "parity", cps, seed, chat)
    yield "leak", partial(parity.check_leak, stack, scratch / "leak", cps, seed)


def torch_sees_gpus() -> int:
    """Number of GPUs."""
    return torch.cuda.device_count() if find_spec("torch") else 0

"""The cpu level: import what is installed, with stubs where need be, and list the groups of checks to run."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

from migrator.verify import bridge_stack, core_stack, curves, data, nemo_stack, parity, slicer, steps, stubs
from migrator.verify.check import Check
from migrator.verify.curves import Show
from migrator.verify.stack import Stack
from migrator.verify.static import TARGETS, find_module

Group = tuple[str, Callable[[], Sequence[Check]]]
Say = Callable[[str], None]
STACKS = {  # what to load, by the module that tells whether it is installed
    "nemo.collections.llm.gpt.model.base": nemo_stack,
    "megatron.bridge.training.gpt_step": bridge_stack,
}
OWN = ("nemo.", "megatron.core.", "megatron.bridge.", "megatron.training.")  # other projects share `megatron`

# Imported before any stub is there: Megatron-Core looks at what it finds, torch's compiler at triton.
CORE_FIRST = (
    "torch._dynamo",
    "megatron.core.models.gpt.gpt_model",
    "megatron.core.models.gpt.gpt_layer_specs",
)


def groups(scratch: Path, cps: Sequence[int], seed: int, say: Say, show: Show) -> Iterator[Group]:
    """Names and bodies of the groups of checks, in order. `say` is told each stub, `show` what to draw."""
    for name in stubs.cpu_torch():
        say(f"{name} (CPU tensors)")
    say(stubs.cpu_kernel())
    if find_module("megatron.core.utils") is None:
        absent = Check("megatron-core: import", None, "not run", detail="megatron.core is not installed")
        yield "imports", lambda: [absent]
        return
    stacks: list[Stack] = []
    broken: list[Check] = []
    try:
        for name in CORE_FIRST:
            import_module(name)
    except Exception as error:  # upstream code may raise anything
        failed = import_failure("megatron-core: import", error)
        yield "imports", lambda: [failed]
        return
    stubs.lend_kernel("megatron.core.utils")
    for name, module in STACKS.items():
        if find_module(name) is not None:
            loaded = load(module, say)
            stacks += [loaded] if isinstance(loaded, Stack) else []
            broken += [loaded] if isinstance(loaded, Check) else []
    alone = not stacks and not broken
    if alone:
        stacks.append(core_stack.load())
        broken.append(Check("stack", None, "not run", detail="neither NeMo nor Megatron-Bridge is installed"))
    yield "imports", lambda: broken
    yield "core slicer", partial(_core, cps, seed)
    for stack in stacks:
        prefix = f"{stack.name}, " if len(stacks) > 1 else ""
        place = scratch / stack.name.replace(" ", "-")
        place.mkdir(parents=True)
        for name, checks in _stack_groups(stack, place, cps, seed, alone, partial(_shown, show, prefix)):
            yield prefix + name, partial(_named, prefix, checks)


def _core(cps: Sequence[int], seed: int) -> Sequence[Check]:
    return slicer.check_slicer("core slicer", slicer.core_slicer, cps, seed, slicer.splits_packs())


def import_failure(name: str, error: Exception) -> Check:
    """A failed import: the stack's own fault where a file that cpfix patches raised it or asks for a name
    that the stack lacks; else something is missing around it, and nothing can be said.
    """
    files = [
        frame.filename
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename
    ]
    if isinstance(error, ImportError):
        own = f"{error.name}.".startswith(OWN)
    else:
        own = bool(files) and Path(files[-1]).as_posix().endswith(TARGETS)
    return Check(name, None, "failed" if own else "not run", detail=f"{type(error).__name__}: {error}")


def load(module: object, say: Say) -> Stack | Check:
    """The stack's functions, or why it can't be imported."""
    optional: Sequence[str] = getattr(module, "OPTIONAL")  # noqa: B009  # a module of `STACKS`
    finder = stubs.install_stubs(getattr(module, "stub_names")(stubs.missing(optional)))  # noqa: B009
    name = getattr(module, "NAME")  # noqa: B009
    try:
        stack: Stack = getattr(module, "load")()  # noqa: B009
    except Exception as error:  # upstream code may raise anything
        return import_failure(f"{name}: import", error)
    finally:
        for used in finder.used:
            say(f"{used} (stub)")
    return stack


def _named(prefix: str, checks: Callable[[], Sequence[Check]]) -> Sequence[Check]:
    return [replace(check, name=prefix + check.name) for check in checks()]


def _shown(show: Show, prefix: str, name: str, data: object) -> None:
    show(prefix + name, data)


def _stack_groups(
    stack: Stack, scratch: Path, cps: Sequence[int], seed: int, alone: bool, show: Show
) -> Iterator[Group]:
    chat = not data.supports_chat(stack, scratch / "chat-probe", seed)
    if not alone:  # else these would only check this package's own functions
        yield "data", partial(data.check_data, stack, scratch / "data", cps, seed)
        yield "step", partial(steps.check_steps, stack, cps, seed)
    yield "parity", partial(parity.check_parity, stack, scratch / "parity", cps, seed, chat)
    yield "leak", partial(parity.check_leak, stack, scratch / "leak", cps, seed)
    yield "curves", partial(curves.check_curves, stack, scratch / "curves", cps, seed, show)
    yield "split", partial(curves.show_split, stack, scratch / "split", cps, seed, show)

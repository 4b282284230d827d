"""What a rank of the gpu level needs to load a stack: it can be sent to a new process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module

from migrator.verify import core_stack, cpu
from migrator.verify.check import Check
from migrator.verify.stack import Stack
from migrator.verify.static import find_module


@dataclass(frozen=True)
class Loaded:
    """How loading a stack went."""

    name: str = ""
    stubs: tuple[str, ...] = ()
    broken: Check | None = None  # why there is no stack


@dataclass(frozen=True)
class Source:
    """A stack that isn't loaded yet."""

    name: str
    load: Callable[[], tuple[Stack | None, Loaded]]  # None where `Loaded.broken` says why


def load(name: str) -> tuple[Stack | None, Loaded]:
    """Import the stack that `cpu.STACKS` has under `name`, Megatron-Core by itself under ""."""
    try:
        for first in cpu.CORE_FIRST:
            import_module(first)
    except Exception as error:  # upstream code may raise anything
        return None, Loaded(broken=cpu.import_failure("megatron-core: import", error))
    if not name:
        stack = core_stack.load()
        return stack, Loaded(stack.name)
    stubs: list[str] = []
    found = cpu.load(cpu.STACKS[name], stubs.append)
    if isinstance(found, Check):
        return None, Loaded(found.name, tuple(stubs), found)
    return found, Loaded(found.name, tuple(stubs))


CORE = Source("megatron-core", partial(load, ""))


def installed() -> list[Source]:
    """Each stack that is installed; imports none of them."""
    return [
        Source(module.NAME, partial(load, name))
        for name, module in cpu.STACKS.items()
        if find_module(name) is not None
    ]

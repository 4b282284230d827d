"""The gpu level: Transformer Engine's index kernel, the real step on device tensors, and training in bf16
with a GPU for each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from migrator.verify import gpu_kernel, gpu_parity, gpu_split, gpu_stacks
from migrator.verify.accelerator import Accelerator
from migrator.verify.check import Check
from migrator.verify.gpu_stacks import Source
from migrator.verify.static import find_module

STACK_CHECKS = (*gpu_split.NAMES, *gpu_parity.BOUNDS)


def check_gpu(
    accelerator: Accelerator,
    cps: Sequence[int],
    seed: int,
    say: Callable[[str], None],
    sources: Sequence[Source] | None = None,
) -> Iterator[Check]:
    """All that can be checked on the devices there are, and what can't. `say` is told each stub.

    sources: the stacks, by default those that are installed.
    """
    sizes = tuple(sorted({cp for cp in cps if cp > 1}))
    if accelerator.count == 0 or not sizes:
        why = "0 GPUs found" if accelerator.count == 0 else "no context parallel size above 1 was asked for"
        yield from _none((gpu_kernel.NAME, *STACK_CHECKS), why)
        return
    found, missing = gpu_kernel.check_kernel(accelerator, sizes, seed)
    yield from found
    if missing:
        yield from _none(STACK_CHECKS, missing)
    elif find_module("megatron.core.utils") is None:
        yield from _none(STACK_CHECKS, "megatron.core is not installed")
    else:
        yield from _stacks(
            accelerator, sizes, seed, say, gpu_stacks.installed() if sources is None else sources
        )


def _none(names: Sequence[str], why: str) -> Iterator[Check]:
    return (Check(name, None, "not run", detail=why) for name in names)


def _stacks(
    accelerator: Accelerator,
    sizes: Sequence[int],
    seed: int,
    say: Callable[[str], None],
    sources: Sequence[Source],
) -> Iterator[Check]:
    if not sources:
        yield from _none(gpu_split.NAMES, "neither NeMo nor Megatron-Bridge is installed")
        yield from _parity(accelerator, gpu_stacks.CORE, sizes, seed)
    for source in sources:
        checks, loaded = gpu_split.check_split(accelerator, source, sizes, seed)
        prefix = f"{loaded.name if loaded else source.name}, " if len(sources) > 1 else ""
        for stub in loaded.stubs if loaded else ():
            say(stub)
        if loaded is not None and loaded.broken is not None:
            yield loaded.broken
            yield from _named(prefix, _none(STACK_CHECKS, "the stack cannot be imported"))
        else:
            yield from _named(prefix, checks)
            yield from _named(prefix, _parity(accelerator, source, sizes, seed))


def _parity(accelerator: Accelerator, source: Source, sizes: Sequence[int], seed: int) -> Iterator[Check]:
    for cp in sizes:
        yield from gpu_parity.check_parity(accelerator, source, cp, seed)


def _named(prefix: str, checks: Iterable[Check]) -> Iterator[Check]:
    return (replace(check, name=prefix + check.name) for check in checks)

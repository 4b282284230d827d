"""Stand-ins for what a CPU or a bare interpreter lacks. Each one that is used is named in the report."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import torch

from migrator.verify.reference import kernel_index

KERNEL = "transformer_engine_torch"


class _Named(type):
    """Every public attribute of a stub class is another one: `ops.Sequential`."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Named(name, (_Stub,), {"__module__": cls.__module__})


class _Stub(metaclass=_Named):
    """Takes any arguments, does nothing, can be subclassed and subscripted."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __class_getitem__(cls, _: object) -> type:
        return cls


class _StubModule(ModuleType):
    """A module in which every public name is a class of its own."""

    __version__ = "2.9.0"  # of a Transformer Engine that has all that upstream asks for

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _Named(name, (_Stub,), {"__module__": self.__name__})
        setattr(self, name, value)
        return value


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves a stub for each of `names`, and for what lies below it."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self.used: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a stub, None for every other module."""
        known = next(
            (name for name in self.names if fullname == name or fullname.startswith(name + ".")), None
        )
        if known is None:
            return None
        if known not in self.used:
            self.used.append(known)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty stub module."""
        return _StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def missing(names: Iterable[str]) -> tuple[str, ...]:
    """Those top-level packages of `names` that Python cannot find."""

    def found(name: str) -> bool:
        try:
            return importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            return False

    return tuple(name for name in names if not found(name))


def install_stubs(names: Iterable[str]) -> StubFinder:
    """Serve stubs for `names`, ahead of every real finder. Returns the finder, whose `used` grows with
    use.
    """
    finder = StubFinder(names)
    sys.meta_path.insert(0, finder)
    return finder


def bare_package(name: str) -> ModuleType:
    """Register package `name` with its real `__path__` but without running its `__init__`; parents must be
    there.

    Raises ModuleNotFoundError where it isn't on the path.
    """
    if name in sys.modules:
        return sys.modules[name]
    parent, _, leaf = name.rpartition(".")
    spec = PathFinder.find_spec(name, sys.modules[parent].__path__ if parent else None)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"No package named {name!r}", name=name)
    module = ModuleType(name)
    module.__path__ = list(spec.submodule_search_locations)
    module.__spec__ = spec
    sys.modules[name] = module
    if parent:
        setattr(sys.modules[parent], leaf, module)
    return module


def _kernel(cu_seqlens: torch.Tensor, total: int, cp_size: int, cp_rank: int) -> torch.Tensor:
    return kernel_index(cu_seqlens, int(total), int(cp_size), int(cp_rank))


def cpu_kernel() -> str:
    """Make `transformer_engine_torch.thd_get_partitioned_indices` work without a GPU; says how."""
    try:
        module = import_module(KERNEL)
        said = f"{KERNEL}.thd_get_partitioned_indices (the installed one needs a GPU)"
    except ImportError:
        module = sys.modules[KERNEL] = ModuleType(KERNEL)
        module.__spec__ = ModuleSpec(KERNEL, None)
        said = f"{KERNEL} (index kernel only)"
    setattr(module, "thd_get_partitioned_indices", _kernel)  # noqa: B010  # a ModuleType has no such attribute
    return said


def lend_kernel(name: str) -> None:
    """Give the imported module `name` the index kernel as `tex`, where it found no Transformer Engine to take
    it from.
    """
    module = import_module(name)
    if getattr(module, "tex", module) is None:
        setattr(module, "tex", sys.modules[KERNEL])  # noqa: B010  # a ModuleType has no such attribute


def cpu_torch() -> tuple[str, ...]:
    """Let code that names CUDA run on CPU tensors: devices, `.cuda()`, pinned memory. Says what was
    replaced.
    """
    cpu = torch.device("cpu")
    real_tensor = torch.tensor

    def tensor(*args: Any, **kwargs: Any) -> torch.Tensor:
        return real_tensor(*args, **{key: value for key, value in kwargs.items() if key != "pin_memory"})

    def same(self: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return self

    replaced = {
        "torch.cuda.current_device": (torch.cuda, "current_device", lambda: cpu),
        "torch.cuda.synchronize": (torch.cuda, "synchronize", lambda *_: None),
        "torch.tensor(pin_memory=)": (torch, "tensor", tensor),
        "Tensor.cuda": (torch.Tensor, "cuda", same),
        "Tensor.pin_memory": (torch.Tensor, "pin_memory", same),
    }
    for owner, name, value in replaced.values():
        setattr(owner, name, value)
    return tuple(replaced)


@contextmanager
def replaced(owner: Any, **values: object) -> Iterator[None]:
    """Attributes of `owner` set to `values`, and back afterwards."""
    old = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in old.items():
            setattr(owner, name, value)

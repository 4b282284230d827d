"""A pytest plugin for a child process: upstream's test files run on real modules, without what those import.

Copied beside a checkout and loaded with `-p upstream_stubs`. Modules of the checkout itself are real; what is
not installed becomes a module of inert classes; packages whose `__init__` imports everything are entered
without it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

ABSENT = {
    *("lightning", "hydra", "omegaconf", "fiddle", "nemo_run", "datasets", "transformers", "wandb", "wrapt"),
    *("huggingface_hub", "cloudpickle", "torchmetrics", "pandas", "einops", "sentencepiece", "tqdm", "nemo"),
    *("megatron", "modelopt", "transformer_engine", "triton"),
}
BARE = (
    "nemo",
    "nemo.utils",
    "nemo.collections",
    "nemo.collections.llm",
    "nemo.collections.llm.gpt",
    "nemo.collections.llm.gpt.data",
    "nemo.collections.llm.gpt.model",
    "megatron.core",
    "megatron.bridge",
    "megatron.bridge.data",
    "megatron.bridge.data.datasets",
    "megatron.bridge.data.packing",
    "megatron.bridge.training",
    "megatron.bridge.training.utils",
)
# real ones that take seconds to import, for names that only stand in annotations
HEAVY = ("megatron.core.models", "megatron.core.transformer")


class _Inert(type):
    """A class that has every attribute, and whose instances can be called, as decorators too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return inert(name)


def inert(name: str) -> Any:
    """A new inert class."""

    def start(self: object, *_: object, **__: object) -> None:
        pass

    def call(self: object, given: object = None, *_: object, **__: object) -> object:
        return given

    return _Inert(name, (), {"__init__": start, "__call__": call})


class _Absent(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, unchanged if name == "tqdm" else inert(name))
        return self.__dict__[name]


def unchanged(rows: Iterable[object], **_: object) -> Iterator[object]:
    """Stands in for tqdm."""
    return iter(rows)


class _Finder(MetaPathFinder, Loader):
    """Asked last: only what nobody else finds is a stand-in."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        known = fullname.partition(".")[0] in ABSENT and fullname != "transformer_engine"
        return ModuleSpec(fullname, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _Absent(spec.name)
        if spec.name == "triton":  # Megatron-Core 0.18 asks which one it is
            module.__dict__["__version__"] = "3.4.0"
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def _enter(name: str) -> None:
    folders = [str(Path(entry, *name.split("."))) for entry in sys.path]
    there = [folder for folder in folders if Path(folder, "__init__.py").is_file()]
    if there:
        package = ModuleType(name)
        package.__path__ = there
        sys.modules[name] = package
        parent, _, leaf = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], leaf, package)


for _name in BARE:
    _enter(_name)
sys.meta_path.append(_Finder())
for _name in HEAVY:
    sys.modules[_name] = importlib.util.module_from_spec(ModuleSpec(_name, _Finder(), is_package=True))

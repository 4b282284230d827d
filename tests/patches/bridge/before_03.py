"""Megatron-Bridge before 0.3, patched or not, imported for real: only what it leans on is a stand-in."""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import pairwise
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch

from fixtures import fetch
from migrator import plan, series
from migrator.version_file import read_version
from tests.patches.bridge.real_code import thd_get_partitioned_indices

PROJECT = "megatron-bridge"
ALL = ("prepad", "pipeline-metadata", "padded-params", "thd-split")
WHEELS = ("0.1.0rc1", "0.1.0rc2", "0.1.0rc4", "0.2.0rc0", "0.2.0rc1", "0.2.0rc6")  # one of each shape
RELEASE = "0.2.2"  # a git tag only: a look-alike stands in for it ...
LOOK_ALIKE = Path(__file__).parents[3] / "fixtures" / "trees" / "megatron_bridge-0.2.2"
CHECKOUT = "checkout"  # ... and a checkout of 0.2.x, where CPFIX_UPSTREAM is one
CORE = "0.14.0"
EOS = 2


def checkout() -> Path | None:
    """The import root of the checkout that CPFIX_UPSTREAM names, if it is one of Megatron-Bridge 0.2.x."""
    for root in (
        Path(os.environ.get("CPFIX_UPSTREAM", "")) / "src",
        Path(os.environ.get("CPFIX_UPSTREAM", "")),
    ):
        file = root / "megatron/bridge/package_info.py"
        if file.is_file() and read_version(file.read_bytes())[0].startswith("0.2"):
            return root
    return None


RELEASES = (RELEASE, CHECKOUT) if checkout() else (RELEASE,)
VERSIONS = (*WHEELS, *RELEASES)

_STAND_INS = (
    "megatron",
    "modelopt",
    "datasets",
    "tqdm",
    "transformers",
    "omegaconf",
    "nvidia_resiliency_ext",
)
_REAL = (
    "data.builders.finetuning_dataset",
    "data.datasets.packed_sequence",
    "data.datasets.packing_utils",
    "data.datasets.sft",
    "data.datasets.utils",
    "training.config",
    "training.gpt_step",
    "training.llava_step",
    "training.vlm_step",
    "training.utils.packed_seq_utils",
    "training.utils.padding_utils",
)


def tree(version: str) -> Path:
    """The import root of a release, unpatched."""
    if version == CHECKOUT:
        root = checkout()
        assert root is not None
        return root
    return LOOK_ALIKE if version == RELEASE else fetch.path(PROJECT, version)


@cache
def patched(version: str, file: str, patches: tuple[str, ...] = ALL) -> bytes:
    """A file with the named patches applied to it by the engine."""
    files = plan.files_of(tree(version), plan.Journal({}, lambda record: b""))
    number = RELEASE if version == CHECKOUT else version
    ours = [p for p in series.load().of(PROJECT) if p.id in patches]
    edits = [e for p in ours for e in plan.edits_for(p, number, files) if e.file == file]
    raw = (tree(version) / file).read_bytes()
    return plan.patched(raw, edits, file) if edits else raw


@cache
def _code(version: str, file: str, patches: tuple[str, ...]) -> CodeType:
    return compile(patched(version, file, patches), file, "exec", dont_inherit=True)


class Anything:
    """What an imported name is where it doesn't matter."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass


class StandIn(ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (Anything,), {})
        setattr(self, name, value)
        return value


@dataclass
class Parallel:
    """The rank that is played, as `megatron.core.parallel_state` tells of it."""

    cp: int = 1
    rank: int = 0
    stage: str = "only"  # "first", "middle", "last" or "only"

    def names(self) -> dict[str, Any]:
        """The functions of the module."""
        return {
            "get_context_parallel_world_size": lambda: self.cp,
            "get_context_parallel_rank": lambda: self.rank,
            "is_pipeline_first_stage": lambda: self.stage in ("first", "only"),
            "is_pipeline_last_stage": lambda: self.stage in ("last", "only"),
        }


class Bridge(Loader, MetaPathFinder):
    """A release of Megatron-Bridge that can be imported."""

    def __init__(self, version: str, patches: tuple[str, ...], parallel: Parallel) -> None:
        self.version, self.patches, self.parallel = version, patches, parallel
        self.index_calls = 0
        self.has_transformer_engine = True

    def __getattr__(self, name: str) -> Any:
        """The module of that last name."""
        for known in _REAL:
            if known.endswith(f".{name}"):
                return importlib.import_module(f"megatron.bridge.{known}")
        raise AttributeError(name)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Every module below a stand-in's name is found."""
        names = (*_STAND_INS, "transformer_engine_torch") if self.has_transformer_engine else _STAND_INS
        if fullname.split(".")[0] in names:
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty one, of a kind that has every name unless it is to be filled."""
        return ModuleType(spec.name) if self._file(spec.name) else StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Fill it."""
        name = module.__name__
        if file := self._file(name):
            exec(_code(self.version, file, self.patches), module.__dict__)
        vars(module).update(self._given(name))

    def _file(self, name: str) -> str:
        file = name.replace(".", "/") + ".py"
        known = name.removeprefix("megatron.bridge.") in _REAL
        return file if known and (tree(self.version) / file).exists() else ""

    def _given(self, name: str) -> dict[str, Any]:
        def index(*args: Any) -> torch.Tensor:
            self.index_calls += 1
            found: torch.Tensor = thd_get_partitioned_indices(*args)
            return found.int()

        match name:
            case "megatron.core":
                return {"parallel_state": SimpleNamespace(**self.parallel.names())}
            case "megatron.core.utils":
                sliced = _from_core("utils.py", "get_batch_on_this_cp_rank", self.parallel)
                return {"get_batch_on_this_cp_rank": sliced, "get_model_config": lambda model: model.config}
            case "megatron.core.packed_seq_params":
                return {
                    "PackedSeqParams": _from_core("packed_seq_params.py", "PackedSeqParams", self.parallel)
                }
            case "megatron.core.msc_utils":
                return {"MultiStorageClientFeature": SimpleNamespace(is_enabled=lambda: False)}
            case "megatron.bridge.utils.common_utils":
                return {"get_rank_safe": lambda: 0, "print_rank_0": print}
            case "transformer_engine_torch":
                return {"thd_get_partitioned_indices": index}
            case "tqdm":
                return {"tqdm": lambda items, **_: items}
        return {}


def _from_core(file: str, name: str, parallel: Parallel) -> Any:
    """A function or class of the real Megatron-Core."""
    names: dict[str, Any] = {
        "torch": torch,
        "Tensor": torch.Tensor,
        "Dict": dict,
        "Any": Any,
        "dataclass": dataclass,
    }
    names["parallel_state"] = SimpleNamespace(**parallel.names())
    exec(_core_code(file, name), names)
    return names[name]


@cache
def _core_code(file: str, name: str) -> CodeType:
    source = (fetch.path("megatron-core", CORE) / "megatron/core" / file).read_text()
    node = next(n for n in ast.parse(source).body if getattr(n, "name", "") == name)
    return compile(ast.Module([node], []), file, "exec", dont_inherit=True)


@contextmanager
def bridge(version: str, patches: Iterable[str] = ALL, **parallel: Any) -> Iterator[Bridge]:
    """The release, importable until the end: `found.gpt_step` and so on are its modules."""
    found = Bridge(version, tuple(p for p in ALL if p in set(patches)), Parallel(**parallel))
    names = (*_STAND_INS, "transformer_engine_torch")
    aside = {name: sys.modules.pop(name) for name in [*sys.modules] if name.split(".")[0] in names}
    sys.meta_path.insert(0, found)
    try:
        with mock.patch.object(torch.Tensor, "cuda", lambda self, *_, **__: self):
            yield found
    finally:
        sys.meta_path.remove(found)
        for name in [n for n in sys.modules if n.split(".")[0] in names]:
            del sys.modules[name]
        sys.modules.update(aside)


class Tokenizer:
    """Words are numbers, and so are tokens."""

    eos_id = EOS

    def text_to_ids(self, text: str) -> list[int]:
        """The numbers in a text."""
        return [int(word) for word in text.split()]


@dataclass(frozen=True)
class Sample:
    """A line of the data: tokens from 10 up, and inner EOS. The first token is no other sample's."""

    context: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def tokens(self) -> list[int]:
        """As they are trained on."""
        return [*self.context, *self.answer, EOS]

    @property
    def line(self) -> str:
        """As JSON."""
        texts = (" ".join(map(str, part)) for part in (self.context, self.answer))
        return json.dumps(dict(zip(("input", "output"), texts, strict=True)))


def draw_samples(draw: Any, count: int, longest: int, inner_eos: bool = True) -> list[Sample]:
    """Samples of 3 to `longest` tokens."""
    found = []
    for number in range(count):
        size = draw.randint(2, longest - 1)
        words = [EOS if inner_eos and draw.random() < 0.1 else draw.randint(10, 99) for _ in range(size)]
        cut = draw.randint(1, size - 1)
        found.append(Sample((100 + number, *words[1:cut]), tuple(words[cut:])))
    return found


def write_samples(folder: Path, **files: Sequence[Sample]) -> None:
    """Each as NAME.jsonl."""
    for name, samples in files.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{sample.line}\n" for sample in samples))


def builder(
    found: Bridge, folder: Path, size: int, seq_length: int = 0, options: Any = None, **specs: Any
) -> Any:
    """The real builder of the data sets in a folder; `specs` are those of PackedSequenceSpecs."""
    packing = found.packed_sequence.PackedSequenceSpecs(
        packed_sequence_size=size, tokenizer_model_name="numbers", **specs
    )
    return found.finetuning_dataset.FinetuningDatasetBuilder(
        dataset_root=folder,
        tokenizer=Tokenizer(),
        seq_length=seq_length or size,
        packed_sequence_specs=packing,
        dataset_kwargs=options,
        do_test=False,
    )


def sequences(pack: Any) -> list[tuple[list[int], list[int]]]:
    """The tokens and the loss mask of each sequence of a stored pack."""
    bounds = [*pack["seq_start_id"], len(pack["input_ids"])]
    return [
        (list(pack["input_ids"][start:end]), [int(value) for value in pack["loss_mask"][start:end]])
        for start, end in pairwise(bounds)
    ]


def chunks(lengths: Sequence[int], cp: int, rank: int) -> list[int]:
    """The tokens that a rank is to have: of each sequence chunk r and chunk 2 * cp - 1 - r."""
    found: list[int] = []
    start = 0
    for length in lengths:
        chunk = length // (2 * cp)
        for part in (rank, 2 * cp - 1 - rank):
            found += range(start + part * chunk, start + (part + 1) * chunk)
        start += length
    return found


def packing_config(found: Bridge, size: int = 1, **others: Any) -> Any:
    """A run's configuration, as far as the steps ask: a data set with packs of `size`, and `others`."""
    kind = found.config.FinetuningDatasetConfig
    dataset = kind.__new__(kind)
    dataset.packed_sequence_specs = SimpleNamespace(packed_sequence_size=size)
    return SimpleNamespace(dataset=dataset, **others)


def packed_batches(
    found: Bridge, folder: Path, draw: Any, size: int, pad_cu_seqlens: bool = False
) -> list[dict[str, Any]]:
    """The batches of packs of fresh samples, packed by the real code for the run's size."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    write_samples(
        folder, training=draw_samples(draw, 20, size // 3), validation=draw_samples(draw, 2, size // 3)
    )
    options = {"pad_to_max_length": True} if pad_cu_seqlens else None
    made = builder(found, folder, size, options=options, pad_cu_seqlens=pad_cu_seqlens)
    dataset = made.build()[0]
    return [dataset.collate_fn([dataset[at]]) for at in range(len(dataset.indexed_dataset))]

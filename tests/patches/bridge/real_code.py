"""Modules of the real Megatron-Bridge wheels, patched or not, run with stand-ins for what they import."""

from __future__ import annotations

import ast
import importlib
import io
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np

from fixtures import fetch
from migrator import plan, series

PROJECT = "megatron-bridge"
VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "0.4.1", "0.4.2", "0.5.0", "0.5.1", "0.6.0", "0.6.2")
BEFORE_06 = ("0.3.0", "0.4.2", "0.5.0", "0.5.1")  # one of each shape, and then the last one
SHAPES = (*BEFORE_06, "0.6.2")

GPT_STEP = "megatron/bridge/training/gpt_step.py"
LLAVA_STEP = "megatron/bridge/training/llava_step.py"
PARAMS = "megatron/bridge/training/utils/packed_seq_utils.py"
LOADERS = "megatron/bridge/data/loaders.py"

_REAL = {*sys.stdlib_module_names, "torch", "numpy", "packaging"}


def is_06(version: str) -> bool:
    """From 0.6 on the data code lies in other files."""
    return version.startswith("0.6")


def packed_dataset_file(version: str) -> str:
    """The file that defines `GPTSFTPackedDataset`."""
    return f"megatron/bridge/data/{'packing/gpt_sft' if is_06(version) else 'datasets/sft'}.py"


def packing_file(version: str) -> str:
    """The file that defines `create_hist` and `fill_packing_strategy`."""
    return f"megatron/bridge/data/{'packing/algorithms' if is_06(version) else 'datasets/packing_utils'}.py"


def tokenize_file(version: str) -> str:
    """The file that defines `tokenize_dataset`."""
    return f"megatron/bridge/data/{'packing/offline' if is_06(version) else 'datasets/packed_sequence'}.py"


@cache
def source(version: str, file: str, patches: tuple[str, ...] = ()) -> bytes:
    """A file of a wheel with the named patches applied to it by the engine, in the order of the series."""
    raw = (fetch.path(PROJECT, version) / file).read_bytes()
    ours = series.load().of(PROJECT)
    edits = []
    for patch in ours:
        if patch.id in patches:
            here = plan.edits_for(patch, version)
            assert here, f"{patch.id} has no edit for {version}"
            edits += [edit for edit in here if edit.file == file]
    assert {p.id for p in ours} >= set(patches)
    return plan.patched(raw, edits, file)


def load(version: str, file: str, patches: Iterable[str] = (), **stand_ins: Any) -> Any:
    """The file as a module; every imported name that `stand_ins` does not give is a dummy."""
    tree = ast.parse(source(version, file, tuple(sorted(patches))))
    module = ModuleType(Path(file).stem)
    names: dict[str, Any] = {"MultiStorageClientFeature": SimpleNamespace(is_enabled=lambda: False)}
    names |= {"tqdm": lambda items, **_: items, "safe_load_npy": _load_npy, **stand_ins}
    kept: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "__future__":
            module.__dict__.update(_imported(node, names))
        else:
            kept.append(node)
    exec(compile(ast.Module(kept, []), file, "exec", dont_inherit=True), module.__dict__)
    return module


def _imported(node: ast.Import | ast.ImportFrom, names: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for alias in node.names:
        bound = alias.asname or alias.name.split(".")[0]
        origin = alias.name if isinstance(node, ast.Import) else node.module or ""
        if bound in names:
            found[bound] = names[bound]
        elif origin.split(".")[0] in _REAL:
            whole = importlib.import_module(origin if alias.asname else origin.split(".")[0])
            found[bound] = (
                whole
                if isinstance(node, ast.Import)
                else getattr(importlib.import_module(origin), alias.name)
            )
        else:  # a class: it may stand in an annotation such as `Name | None`
            found[bound] = MagicMock() if isinstance(node, ast.Import) else type(alias.name, (), {})
    return found


def _load_npy(raw: bytes) -> np.ndarray[Any, Any]:
    loaded: np.ndarray[Any, Any] = np.load(io.BytesIO(raw), allow_pickle=True)
    return loaded


class Tokenizer:
    """EOS is 2 and fills up sequences as well."""

    eos_id = eod = 2


EOS = Tokenizer.eos_id


def packed_dataset(
    version: str,
    patches: Iterable[str],
    path: Path,
    rows: Sequence[dict[str, Any]],
    size: int,
    **options: Any,
) -> Any:
    """A real `GPTSFTPackedDataset` of a file with these rows."""
    np.save(path, np.array(rows, dtype=object), allow_pickle=True)
    stand_ins = {}
    if is_06(version):
        base = load(version, "megatron/bridge/data/datasets/gpt_sft.py")
        stand_ins["GPTSFTDataset"] = base.GPTSFTDataset
    module = load(version, packed_dataset_file(version), patches, **stand_ins)
    defaults = {"prompt_template": "{input} {output}", "label_key": "output", "truncation_field": "input"}
    return module.GPTSFTPackedDataset(str(path), Tokenizer(), max_seq_length=size, **defaults, **options)


def pack(sequences: Sequence[Sequence[int]], masks: Sequence[Sequence[int]] | None = None) -> dict[str, Any]:
    """A row of a packed file; `masks` are aligned with the labels and as long as the stored sequences."""
    starts = [0]
    for sequence in sequences[:-1]:
        starts.append(starts[-1] + len(sequence))
    masks = masks or [[1] * (len(s) - 1) + [0] for s in sequences]
    return {
        "input_ids": [token for sequence in sequences for token in sequence],
        "loss_mask": [value for mask in masks for value in mask],
        "seq_start_id": starts,
    }


class Group:
    """A process group as far as the steps ask."""

    def __init__(self, size: int = 1, rank: int = 0, stage: str = "only") -> None:
        self._size, self._rank, self.stage = size, rank, stage

    def size(self) -> int:
        """Number of ranks."""
        return self._size

    def rank(self) -> int:
        """This rank."""
        return self._rank


def groups(cp: int = 1, cp_rank: int = 0, stage: str = "only") -> SimpleNamespace:
    """A process group collection; `stage` is "first", "middle", "last" or "only"."""
    return SimpleNamespace(cp=Group(cp, cp_rank), pp=Group(stage=stage), tp=Group())


def step_stand_ins(cp_rank: int = 0) -> dict[str, Any]:
    """What `gpt_step` and `llava_step` import and need in `get_batch`."""
    return {
        "is_pp_first_stage": lambda pp: pp.stage in ("first", "only"),
        "is_pp_last_stage": lambda pp: pp.stage in ("last", "only"),
        "is_te_min_version": lambda _: True,
        "get_batch_on_this_cp_rank": lambda batch, **_: batch,
        "parallel_state": SimpleNamespace(get_context_parallel_rank=lambda: cp_rank),
    }


def thd_get_partitioned_indices(cu_seqlens: Any, total: int, cp_size: int, rank: int) -> Any:
    """What the index kernel of Transformer Engine computes, garbage for garbage included.

    It divides each offset by the number of ranks, rounding to zero, and finds a token by bisection.
    """
    import torch

    ends = [int(end / cp_size) for end in cu_seqlens.tolist()]
    found = []
    for token in range(total // cp_size):
        left, right = 1, len(ends) - 1
        while left < right:
            middle = (left + right) // 2
            left, right = (middle + 1, right) if ends[middle] <= token else (left, middle)
        start = ends[left - 1]
        half = int((ends[left] - start) / 2)
        within = token - start
        chunks = rank if within < half else 2 * (cp_size - 1) - rank
        found.append(within + start * cp_size + half * chunks)
    return torch.tensor(found)

"""The functions of NeMo that the patches touch, one release of each shape."""

from __future__ import annotations

import collections
import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.patches.real_code import define

CORE = {"2.3.3": "0.12.3", "2.4.1": "0.13.1", "2.5.0rc0": "0.14.0", "2.5.3": "0.14.0", "2.7.3": "0.16.1"}
VERSIONS = tuple(CORE)
MODEL = "nemo/collections/llm/gpt/model"
DATA = "nemo/collections/llm/gpt/data"
DISTILL = "nemo/collections/llm/modelopt/distill/model.py"


def core_slicer(version: str, patched: bool) -> Callable[..., Any]:
    """Megatron-Core's `get_batch_on_this_cp_rank`; needs the stand-in `megatron.core`."""
    from megatron.core import parallel_state

    names = {"torch": torch, "parallel_state": parallel_state}
    names |= {"get_pg_size": lambda group: group.size(), "get_pg_rank": lambda group: group.rank()}
    file, name = "megatron/core/utils.py", "get_batch_on_this_cp_rank"
    found: Callable[..., Any] = define("megatron-core", version, file, patched, name, **names)[name]
    return found


def slicer(version: str, patched: bool) -> Callable[..., Any]:
    """The slicing function of NeMo 2.3."""
    name = "get_batch_on_this_context_parallel_rank"
    found: Callable[..., Any] = define("nemo", version, f"{MODEL}/base.py", patched, name, torch=torch)[name]
    return found


def step(version: str, patched: bool) -> Callable[..., dict[str, Any]]:
    """`gpt_data_step`; it slices plain batches with the slicer of its stack."""
    names: dict[str, Any] = {"torch": torch}
    if not version.startswith("2.3"):
        names["get_batch_on_this_cp_rank"] = core_slicer(CORE[version], patched)
    found: Callable[..., dict[str, Any]] = define(
        "nemo", version, f"{MODEL}/base.py", patched, "gpt_data_step", **names
    )["gpt_data_step"]
    return found


class ChatTemplate:
    """A Hugging Face tokenizer whose template marks what the assistant says: token ids as text."""

    chat_template = "{% generation %}"

    def apply_chat_template(self, chat: list[dict[str, str]], **_: Any) -> dict[str, list[int]]:
        """`input_ids`, and `assistant_masks` of the same length."""
        ids, mask = [], []
        for turn in chat:
            words = [int(word) for word in turn["content"].split()]
            ids += words
            mask += [int(turn["role"] == "assistant")] * len(words)
        return {"input_ids": ids, "assistant_masks": mask}


class Tokenizer:
    """Text is blank-separated token ids; EOS pads as well."""

    eos_id, bos_id = 2, 1
    tokenizer = ChatTemplate()

    def text_to_ids(self, text: str) -> list[int]:
        """Token ids."""
        return [int(word) for word in text.split()]


class Lines:
    """A file of JSON lines, in place of the memory-mapped one."""

    def __init__(self, dataset_paths: list[str], **_: Any) -> None:
        self.lines = Path(dataset_paths[0]).read_text(encoding="utf-8").splitlines()

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> Any:
        return json.loads(self.lines[index])


def datasets(version: str, patched: bool) -> dict[str, Any]:
    """`create_sft_dataset` and the data sets that it makes: plain, packed and chat."""
    given: dict[str, Any] = {"np": np, "torch": torch, "json": json, "re": re, "math": math, "Path": Path}
    given |= {"Dataset": object, "logger": logging.getLogger("nemo"), "_JSONLMemMapDataset": Lines}
    if not version.startswith("2.3"):
        helpers = {"re": re, "torch": torch}
        given |= define("nemo", version, f"{DATA}/utils.py", False, "_chat_preprocess", **helpers)
    return define("nemo", version, f"{DATA}/core.py", patched, "create_sft_dataset", **given)


def packing(version: str, patched: bool, **stand_ins: Any) -> dict[str, Any]:
    """`prepare_packed_sequence_data` and `PackedSequenceSpecs`, and what they pack with."""
    given = {"np": np, "tqdm": lambda items, **_: items, "collections": collections}
    given |= {"logging": logging.getLogger("nemo")}
    names = "create_hist create_packing_strategy fill_packing_strategy first_fit_shuffle first_fit_decreasing"
    utils = define("nemo", version, "nemo/utils/sequence_packing_utils.py", patched, names, **given)
    given |= {name: utils[name] for name in names.split()}
    given |= {"json": json, "Path": Path, "dataclass": dataclass}
    given |= {"create_sft_dataset": datasets(version, patched)["create_sft_dataset"], **stand_ins}
    names = "prepare_packed_sequence_data PackedSequenceSpecs"
    return define("nemo", version, f"{DATA}/packed_sequence.py", patched, names, **given)


class LightningDataModule:
    """Lightning's base class: the trainer is there once it is attached."""

    trainer: Any = None


class Loader:
    """A data loader of one micro batch at a time."""

    def __init__(self, dataset: Any, collate_fn: Callable[..., Any], mode: str, **_: Any) -> None:
        self.dataset, self.collate_fn, self.mode = dataset, collate_fn, mode

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for index in range(len(self.dataset)):
            yield self.collate_fn([self.dataset[index]])


def data_module(version: str, patched: bool) -> type[Any]:
    """`FineTuningDataModule`."""
    given: dict[str, Any] = {"math": math, "lru_cache": lru_cache, "Path": Path, "AutoTokenizer": type(None)}
    given |= {"pl": SimpleNamespace(LightningDataModule=LightningDataModule), "WrappedDataLoader": Loader}
    given |= {"logging": logging.getLogger("nemo"), "rank_zero_info": print}
    given |= {"MegatronDataSampler": SimpleNamespace}
    given |= {"create_sft_dataset": datasets(version, patched)["create_sft_dataset"]}
    name = "FineTuningDataModule"
    found: type[Any] = define("nemo", version, f"{DATA}/fine_tuning.py", patched, name, **given)[name]
    return found


def trainer(cp_size: int, tp_size: int = 1, sequence_parallel: bool = False) -> Any:
    """A trainer as it is attached to a data module."""
    strategy = SimpleNamespace(
        context_parallel_size=cp_size,
        tensor_model_parallel_size=tp_size,
        sequence_parallel=sequence_parallel,
    )
    return SimpleNamespace(strategy=strategy, global_step=0, max_steps=2)


def save_packs(path: Path, packs: Sequence[dict[str, Any]]) -> Path:
    """A packed file of `input_ids`, `loss_mask` and `seq_start_id`."""
    np.save(path, np.array(packs, dtype=object), allow_pickle=True)
    return path

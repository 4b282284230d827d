"""The functions of NeMo that the patches touch, one release of each shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.patches.real_code import define

CORE = {"2.3.3": "0.12.3", "2.4.1": "0.13.1", "2.5.0rc0": "0.14.0", "2.5.3": "0.14.0", "2.7.3": "0.16.1"}
VERSIONS = tuple(CORE)
MODEL = "nemo/collections/llm/gpt/model"
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

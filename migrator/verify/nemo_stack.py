"""NeMo's own packing, data step, forward step and loss reduction."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from migrator.verify.samples import LIMIT, PACK, ToyTokenizer
from migrator.verify.stack import Batch, Recorder, Stack, Stage, share_of
from migrator.verify.stubs import bare_package, replaced

# Their __init__ files import every model and data module there is.
BARE = (
    "nemo",
    "nemo.collections",
    "nemo.collections.llm",
    "nemo.collections.llm.gpt",
    "nemo.collections.llm.gpt.model",
    "nemo.collections.llm.gpt.data",
)
BARE_UNTIL_2_3 = (  # its loss reduction still borrows a function from there
    "nemo.collections.nlp",
    "nemo.collections.nlp.modules",
    "nemo.collections.nlp.modules.common",
    "nemo.collections.nlp.modules.common.megatron",
)
NAME = "nemo"
# Experiment management and telemetry: nothing here calls them.
OPTIONAL = ("nemo_run", "nvidia_resiliency_ext", "nv_one_logger")
TELEMETRY = "nemo.lightning.one_logger_callback"  # builds its exporter when imported


def stub_names(missing: Iterable[str]) -> tuple[str, ...]:
    """What to stub, given which of `OPTIONAL` are missing."""
    return tuple(TELEMETRY if name == "nv_one_logger" else name for name in missing)


def _accepted(function: Any, **kwargs: object) -> dict[str, object]:
    """Those of `kwargs` that `function` has a parameter for."""
    parameters = inspect.signature(function).parameters
    return {key: value for key, value in kwargs.items() if key in parameters}


def load() -> Stack:
    """Import the installed NeMo and wrap it. Raises ImportError where that can't be done."""
    for name in BARE:
        bare_package(name)
    with suppress(ModuleNotFoundError):  # gone in later releases
        for name in BARE_UNTIL_2_3:
            bare_package(name)
    base = import_module("nemo.collections.llm.gpt.model.base")
    core = import_module("nemo.collections.llm.gpt.data.core")
    packing = import_module("nemo.collections.llm.gpt.data.packed_sequence")
    tuning = import_module("nemo.collections.llm.gpt.data.fine_tuning")
    strategy = import_module("nemo.lightning.pytorch.strategies").MegatronStrategy
    parallel = import_module("nemo.lightning.megatron_parallel")
    info = import_module("nemo.package_info")

    chat_kwargs = {"chat": True, "use_hf_tokenizer_chat_template": True}

    def unpacked(folder: Path, chat: bool) -> list[Mapping[str, Any]]:
        if chat and len(_accepted(core.create_sft_dataset, **chat_kwargs)) < len(chat_kwargs):
            raise LookupError("it has no data set for chat templates")
        kwargs = _accepted(core.create_sft_dataset, memmap_workers=1, **(chat_kwargs if chat else {}))
        path = folder / "training.jsonl"
        items = core.create_sft_dataset(path, ToyTokenizer(), seq_length=LIMIT, is_test=True, **kwargs)
        return [items[index] for index in range(len(items))]

    def module(folder: Path, chat: bool, cp: int, pad_cu_seqlens: bool) -> Any:
        kwargs: dict[str, object] = {"pad_to_max_length": True} if pad_cu_seqlens else {}
        data = tuning.FineTuningDataModule(
            folder,
            seq_length=LIMIT,
            tokenizer=ToyTokenizer(),
            micro_batch_size=1,
            global_batch_size=1,
            memmap_workers=1,
            num_workers=0,
            pin_memory=False,
            packed_sequence_specs=packing.PackedSequenceSpecs(
                packed_sequence_size=PACK, tokenizer_model_name="toy", pad_cu_seqlens=pad_cu_seqlens
            ),
            dataset_kwargs=kwargs | (chat_kwargs if chat else {}),
        )
        data.trainer = SimpleNamespace(
            strategy=strategy(context_parallel_size=cp), max_steps=1, global_step=0
        )
        return data

    def batches(folder: Path, chat: bool, cp: int, pad_cu_seqlens: bool) -> list[Batch]:
        data = module(folder, chat, cp, pad_cu_seqlens)
        np.random.seed(0)
        data.prepare_data()
        data.setup("fit")
        packs = data._create_dataset(
            data.train_path_packed, pack_metadata_path=data.pack_metadata, is_test=True, **data.dataset_kwargs
        )
        return [dict(batch) for batch in data._create_dataloader(packs, mode="train")]

    def data_step(batch: Batch, stage: Stage = "only") -> Batch:
        state = import_module("megatron.core.parallel_state")
        first, last = stage in ("only", "first"), stage in ("only", "last")
        with replaced(
            state,
            is_pipeline_first_stage=lambda *_, **__: first,
            is_pipeline_last_stage=lambda *_, **__: last,
        ):
            share: Batch = base.gpt_data_step(iter([(dict(batch), 0, 0)]))
        return share

    def step(batch: Batch, stage: Stage) -> Batch:
        share = data_step(batch, stage)
        model = Recorder()
        base.gpt_forward_step(model, share)
        return share_of(model.arguments, share.get("loss_mask"))

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
        share = data_step(batch)
        reduction = parallel.MaskedTokenLossReduction()
        summed, _, logged = reduction.forward(share, base.gpt_forward_step(model, share))
        return summed, float(torch.as_tensor(reduction.reduce([logged])))

    def logits(model: nn.Module, batch: Batch) -> Tensor:
        out: Tensor = base.gpt_forward_step(model, data_step(batch) | {"labels": None})
        return out

    name = f"nemo {info.__version__}"
    return Stack(name, unpacked, batches, base.get_packed_seq_params, step, loss, logits)

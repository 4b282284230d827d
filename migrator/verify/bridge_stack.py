"""Megatron-Bridge's own packing, data step, forward step and loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import fields
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from migrator.verify.samples import LIMIT, PACK, ToyTokenizer
from migrator.verify.stack import Batch, Recorder, Stack, Stage, share_of
from migrator.verify.stubs import replaced

NAME = "megatron-bridge"
# Imported unconditionally by modules that packing doesn't reach.
OPTIONAL = ("modelopt", "wandb", "nvidia_resiliency_ext", "triton", "transformer_engine", "megatron.energon")
CHAT = {"chat": True, "use_hf_tokenizer_chat_template": True}


class _Quiet:
    """Timers that do nothing."""

    def __call__(self, *_: object, **__: object) -> _Quiet:
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def start(self) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""


def stub_names(missing: Iterable[str]) -> tuple[str, ...]:
    """What to stub, given which of `OPTIONAL` are missing."""
    return tuple(missing)


def _first(*names: str) -> Any:
    """The first of these modules that the installed release has. Raises ModuleNotFoundError without one."""
    for name in names[:-1]:
        with suppress(ModuleNotFoundError):
            return import_module(name)
    return import_module(names[-1])


def _unpacked(folder: Path, chat: bool, limit: int = LIMIT) -> list[Mapping[str, Any]]:
    """The items of the data set that packing starts from, of at most `limit` stored tokens."""
    kwargs: dict[str, Any] = {"seq_length": limit, "memmap_workers": 1, "is_test": True}
    builders = _first("megatron.bridge.data.builders.gpt_sft", "megatron.bridge.data.datasets.sft")
    path = folder / "training.jsonl"
    if hasattr(builders, "build_gpt_sft_split"):  # 0.6
        items = builders.build_gpt_sft_split(
            path,
            tokenizer=ToyTokenizer(),
            seed=0,
            packed_sequence_size=-1,
            dataset_kwargs=dict(CHAT) if chat else {},
            **kwargs,
        )
    else:
        if chat and not CHAT.keys() <= inspect.signature(builders.create_sft_dataset).parameters.keys():
            raise LookupError("it has no data set for chat templates")
        items = builders.create_sft_dataset(path, ToyTokenizer(), **kwargs, **(CHAT if chat else {}))
    return [items[index] for index in range(len(items))]


def _micro_batches(collate: Callable[[list[Any]], Batch], rows: list[Any], one_by_one: bool) -> list[Batch]:
    """A batch per pack: collated one by one, or, as fine-tuning does by default from 0.3 on, all together and
    then split, which fills the shorter ones up.
    """
    try:
        together = _first("megatron.bridge.data.batch_utils", "megatron.bridge.data.finetuning")
    except ModuleNotFoundError:
        one_by_one = True
    if one_by_one:
        return [dict(collate([row])) for row in rows]
    return [dict(batch) for batch in together.split_batch_into_microbatches(dict(collate(rows)), len(rows))]


def load() -> Stack:
    """Import the installed Megatron-Bridge and wrap it. Raises ImportError where that can't be done."""
    step_module = import_module("megatron.bridge.training.gpt_step")
    packing = _first("megatron.bridge.data.packing", "megatron.bridge.data.datasets.packed_sequence")
    builders = _first(
        "megatron.bridge.data.builders.gpt_sft", "megatron.bridge.data.builders.finetuning_dataset"
    )
    config = import_module("megatron.bridge.training.config")
    info = import_module("megatron.bridge.package_info")
    state = import_module("megatron.core.parallel_state")
    params_function = step_module.get_packed_seq_params
    common = getattr(step_module, "_forward_step_common", step_module.forward_step)
    config_class = getattr(config, "GPTSFTDatasetConfig", config.FinetuningDatasetConfig)
    offline = "offline_packing_specs" in {field.name for field in fields(config_class)}

    def specs(cp: int, pad_cu_seqlens: bool) -> dict[str, Any]:
        knobs = {field.name for field in fields(packing.PackedSequenceSpecs)}
        found = packing.PackedSequenceSpecs(
            packed_sequence_size=PACK,
            tokenizer_model_name="toy",
            pad_cu_seqlens=pad_cu_seqlens,
            # up to 0.2 there is no such knob; unpatched packs don't fit then
            **({"pad_seq_to_mult": 2 * cp if cp > 1 else 1} if "pad_seq_to_mult" in knobs else {}),
        )
        if offline:
            return {"offline_packing_specs": found, "enable_offline_packing": True}
        return {"packed_sequence_specs": found}

    def batches(folder: Path, chat: bool, cp: int, pad_cu_seqlens: bool) -> list[Batch]:
        builder = builders.FinetuningDatasetBuilder(
            folder,
            ToyTokenizer(),
            seq_length=LIMIT,
            memmap_workers=1,
            **specs(cp, pad_cu_seqlens),
            dataset_kwargs=({"pad_to_max_length": True} if pad_cu_seqlens else {}) | (CHAT if chat else {}),
            do_test=False,
        )
        np.random.seed(0)
        packs = builder.build()[0]
        return _micro_batches(packs.collate_fn, [packs[index] for index in range(len(packs))], pad_cu_seqlens)

    def global_state(model: Any) -> Any:
        cp = state.get_context_parallel_world_size()
        dataset = config_class(dataset_root="", seq_length=LIMIT, **specs(cp, False))
        checks = SimpleNamespace(check_for_nan_in_loss=False, check_for_spiky_loss=False)
        cfg = SimpleNamespace(dataset=dataset, model=model.config, rerun_state_machine=checks)
        return SimpleNamespace(cfg=cfg, timers=_Quiet(), straggler_timer=_Quiet())

    def recorder(**more: Any) -> Recorder:
        sizes = {
            "context_parallel_size": state.get_context_parallel_world_size(),
            "tensor_model_parallel_size": 1,
            "sequence_parallel": False,
            "mtp_num_layers": None,
        }
        return Recorder(config=SimpleNamespace(**sizes, **more), pg_collection=None, module=None)

    def forward(model: Any, batch: Batch, stage: Stage = "only", plan: bool = False) -> tuple[Any, Any]:
        first, last = stage in ("only", "first"), stage in ("only", "last")
        with ExitStack() as stack:
            for owner, name, value in (
                (step_module, "is_pp_first_stage", first),
                (step_module, "is_pp_last_stage", last),
                (state, "is_pipeline_first_stage", first),
                (state, "is_pipeline_last_stage", last),
            ):
                if hasattr(owner, name):
                    stack.enter_context(replaced(owner, **{name: lambda *_, _value=value, **__: _value}))
            out: tuple[Any, Any] = common(global_state(model), iter([dict(batch)]), model, plan)
        return out

    def step(batch: Batch, stage: Stage) -> Batch:
        model = recorder()
        _, mask = forward(model, batch, stage)
        # before 0.2.0 the step hands out the loss function with the mask in it
        return share_of(model.arguments, mask.args[0] if isinstance(mask, partial) else mask)

    def plan(batch: Batch) -> Any:
        model = recorder(overlap_moe_expert_parallel_comm=True)
        forward(model, batch, plan=True)
        return model.arguments.get("packed_seq_params")

    def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
        out, function = step_module.forward_step(global_state(model), iter([dict(batch)]), model)
        summed, _, logged = function(out)
        (value,) = logged.values()  # sum and number of tokens of this rank, as the training loop adds them up
        total = torch.as_tensor(value).clone()
        dist.all_reduce(total, group=state.get_data_parallel_group(with_context_parallel=True))
        return summed, float(total[0] / total[1])

    def logits(model: nn.Module, batch: Batch) -> Tensor:
        out: Tensor = forward(model, dict(batch) | {"labels": None})[0]
        return out

    builds_plans = "build_schedule_plan" in inspect.getsource(common)
    return Stack(
        f"{NAME} {info.__version__}",
        _unpacked,
        batches,
        params_function,
        step,
        loss,
        logits,
        plan if builds_plans else None,
        partial(_unpacked, limit=LIMIT + 1) if offline else None,
        hasattr(step_module, "_CURRENT_PACKED_SEQ_PARAM_KEYS"),
    )

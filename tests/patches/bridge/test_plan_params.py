"""`plan-params`: the real forward steps hand packed_seq_params to build_schedule_plan."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.patches.bridge.real_code import GPT_STEP, LLAVA_STEP, SHAPES, groups, is_06, load, source

PATCH = ("plan-params",)
VLM_STEP = "megatron/bridge/training/vlm_step.py"
QWEN_STEP = "megatron/bridge/models/qwen_vl/qwen3_vl_step.py"
STEPFUN_STEP = "megatron/bridge/models/stepfun/step37_flickr8k_step.py"


class Nothing:
    """A timer, and a context manager."""

    def __call__(self, *_: Any, **__: Any) -> Nothing:
        return self

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


class Model:
    """It keeps what its schedule plan was built with."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def build_schedule_plan(self, *_: Any, **given: Any) -> str:
        self.given = given
        return "plan"


def plan(
    version: str, file: str, patches: tuple[str, ...], batch: tuple[Any, ...], **stand_ins: Any
) -> dict[str, Any]:
    config = SimpleNamespace(overlap_moe_expert_parallel_comm=True, seq_length=8, mtp_num_layers=None)
    run_state = SimpleNamespace(check_for_nan_in_loss=False, check_for_spiky_loss=False)
    cfg = SimpleNamespace(dataset=SimpleNamespace(), rerun_state_machine=run_state)
    state = SimpleNamespace(timers=Nothing(), straggler_timer=Nothing(), cfg=cfg)
    step = load(
        version,
        file,
        patches,
        get_model_config=lambda _: config,
        get_pg_collection=lambda _: groups(),
        get_packed_seq_params=lambda metadata: ("params", sorted(metadata)),
        get_model_chunk_vp_stage=lambda _: None,
        accumulate_flops_metadata=lambda *_, **__: None,
        get_attr_wrapped_model=lambda *_, **__: None,
        _create_loss_function=lambda *_: None,
        **stand_ins,
    )
    step.get_batch = lambda *_, **__: batch
    model = Model()
    forward = getattr(step, "_forward_step_common", None) or step.forward_step
    assert forward(state, None, model, True)[0] == "plan"
    return model.given


def gpt(version: str, cu_seqlens: Any) -> tuple[Any, ...]:
    data = (torch.ones(1, 8),) * 5
    if is_06(version):
        return (*data, None if cu_seqlens is None else {"cu_seqlens": cu_seqlens})
    return (*data, cu_seqlens, None, None, None, None)


def llava(version: str, cu_seqlens: Any) -> tuple[Any, ...]:
    data = (None, None, *(torch.ones(1, 8),) * 5)
    if is_06(version):
        return (*data, None if cu_seqlens is None else {"cu_seqlens": cu_seqlens})
    return (*data, cu_seqlens, None, None)


def vlm(version: str, cu_seqlens: Any) -> tuple[Any, ...]:
    data = (torch.ones(1, 8),) * 5
    if is_06(version):
        return (*data, None if cu_seqlens is None else {"cu_seqlens_q": cu_seqlens}, None)
    return (*data, cu_seqlens, None, None)


@pytest.mark.parametrize("version", SHAPES)
@pytest.mark.parametrize(("file", "batch"), [(GPT_STEP, gpt), (LLAVA_STEP, llava), (VLM_STEP, vlm)])
def test_the_plan_gets_the_parameters(version: str, file: str, batch: Any) -> None:
    packed = batch(version, torch.tensor([0, 8]))
    assert plan(version, file, PATCH, packed)["packed_seq_params"][0] == "params"
    assert plan(version, file, PATCH, batch(version, None))["packed_seq_params"] is None
    assert "packed_seq_params" not in plan(version, file, (), packed)


@pytest.mark.parametrize(
    ("version", "file"), [("0.4.2", QWEN_STEP), ("0.5.1", QWEN_STEP), ("0.6.2", STEPFUN_STEP)]
)
def test_other_steps(version: str, file: str) -> None:
    """Their forward steps need vision data; the call is what the patch changes."""
    assert source(version, file, PATCH).count(b'packed_seq_params=forward_args.get("packed_seq_params")') == 1
    assert b'packed_seq_params=forward_args.get("packed_seq_params")' not in source(version, file)

# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from megatron.bridge.training import gpt_step, llava_step, vlm_step


GROUP = SimpleNamespace(rank=lambda: 0, size=lambda: 1)
GROUPS = SimpleNamespace(pp=GROUP, cp=GROUP, tp=GROUP)


class Model:
    """It keeps what its schedule plan is built with."""

    config = SimpleNamespace(mtp_num_layers=None, overlap_moe_expert_parallel_comm=True, seq_length=128)

    def build_schedule_plan(self, *_: Any, **given: Any) -> str:
        self.given = given
        return "plan"


def params_of_plan(monkeypatch: pytest.MonkeyPatch, step: Any, batch: dict[str, Any], in_batch: bool) -> Any:
    """The packed_seq_params that the schedule plan of a batch is built with, on a CPU."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor, **_: tensor)
    monkeypatch.setattr(step, "get_pg_collection", lambda _: GROUPS)
    if step is not vlm_step:
        monkeypatch.setattr(step, "get_batch_on_this_cp_rank", lambda batch, **_: batch)
    model = Model()
    cfg = SimpleNamespace(dataset=SimpleNamespace(pack_sequences_in_batch=in_batch), model=Model.config)
    cfg.rerun_state_machine = MagicMock()
    state: Any = SimpleNamespace(cfg=cfg, timers=MagicMock(), straggler_timer=MagicMock())
    plan, _ = step.forward_step(state, iter([batch]), model, return_schedule_plan=True)
    assert plan == "plan"
    return model.given["packed_seq_params"]


def unpacked(step: Any) -> dict[str, Any]:
    """Two sequences of 12 tokens as the step reads them, one of them shorter."""
    keys = ("input_ids" if step is llava_step else "tokens", "labels", "loss_mask", "position_ids")
    batch: dict[str, Any] = {key: torch.arange(1, 25).view(2, 12) for key in keys}
    batch |= {"attention_mask": None, "visual_inputs": None}
    if step is llava_step:
        batch |= {"tokens": None, "pixel_values": torch.ones(1), "num_patches": torch.ones(1)}
    return batch


def packed(step: Any) -> dict[str, Any]:
    """A pack of two sequences of 12 tokens; vlm_step makes it itself."""
    if step is vlm_step:
        return unpacked(step)
    return {
        **{key: value if value is None else value.view(1, -1) for key, value in unpacked(step).items()},
        "cu_seqlens": torch.tensor([[0, 12, 24, -1]], dtype=torch.int32),
        "cu_seqlens_argmin": torch.tensor([[3]]),
        "max_seqlen": torch.tensor([[12]], dtype=torch.int32),
    }


@pytest.mark.parametrize("step", [gpt_step, llava_step, vlm_step])
def test_the_schedule_plan_knows_the_sequences_of_the_pack(monkeypatch: pytest.MonkeyPatch, step: Any) -> None:
    params = params_of_plan(monkeypatch, step, packed(step), in_batch=step is vlm_step)
    assert params.cu_seqlens_q.tolist() == [0, 12, 24]


@pytest.mark.parametrize("step", [gpt_step, llava_step, vlm_step])
def test_without_packing_it_is_given_none(monkeypatch: pytest.MonkeyPatch, step: Any) -> None:
    assert params_of_plan(monkeypatch, step, unpacked(step), in_batch=False) is None

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

    config = SimpleNamespace(mtp_num_layers=None, overlap_moe_expert_parallel_comm=True, seq_length=24)

    def build_schedule_plan(self, *_: Any, **given: Any) -> str:
        self.given = given
        return "plan"


def params_of_plan(monkeypatch: pytest.MonkeyPatch, step: Any, **metadata: torch.Tensor) -> Any:
    """The packed_seq_params that the schedule plan of 24 tokens is built with, on a CPU."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor, **_: tensor)
    monkeypatch.setattr(step, "get_pg_collection", lambda _: GROUPS)
    if step is not vlm_step:
        monkeypatch.setattr(step, "get_batch_on_this_cp_rank", lambda batch, **_: batch)
    model = Model()
    cfg = SimpleNamespace(dataset=SimpleNamespace(), model=Model.config, rerun_state_machine=MagicMock())
    state: Any = SimpleNamespace(cfg=cfg, timers=MagicMock(), straggler_timer=MagicMock())
    keys = ("tokens", "labels", "loss_mask", "position_ids")
    batch: dict[str, Any] = {key: torch.arange(24).unsqueeze(0) for key in keys}
    batch |= {"attention_mask": None, "visual_inputs": None}
    plan, _ = step.forward_step(state, iter([batch | metadata]), model, return_schedule_plan=True)
    assert plan == "plan"
    return model.given["packed_seq_params"]


@pytest.mark.parametrize("step", [gpt_step, llava_step, vlm_step])
def test_the_schedule_plan_knows_the_sequences_of_the_pack(monkeypatch: pytest.MonkeyPatch, step: Any) -> None:
    bounds, longest = torch.tensor([0, 8, 12, 24], dtype=torch.int32), torch.tensor(12)
    metadata = {"cu_seqlens_q": bounds, "cu_seqlens_kv": bounds, "max_seqlen_q": longest, "max_seqlen_kv": longest}
    assert params_of_plan(monkeypatch, step, **metadata).cu_seqlens_q.tolist() == [0, 8, 12, 24]


@pytest.mark.parametrize("step", [gpt_step, llava_step, vlm_step])
def test_without_packing_it_is_given_none(monkeypatch: pytest.MonkeyPatch, step: Any) -> None:
    assert params_of_plan(monkeypatch, step) is None

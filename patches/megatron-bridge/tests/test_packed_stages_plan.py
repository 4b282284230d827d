# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from megatron.bridge.training import gpt_step


@pytest.fixture(autouse=True)
def only_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model without pipeline parallelism, on a CPU."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor, **_: tensor)
    monkeypatch.setattr(gpt_step.parallel_state, "is_pipeline_first_stage", lambda: True)
    monkeypatch.setattr(gpt_step.parallel_state, "is_pipeline_last_stage", lambda: True)
    monkeypatch.setattr(gpt_step.parallel_state, "get_context_parallel_world_size", lambda: 1)


class Model:
    """It keeps what its schedule plan is built with."""

    config = SimpleNamespace(mtp_num_layers=None, overlap_moe_expert_parallel_comm=True)

    def build_schedule_plan(self, *_: Any, **given: Any) -> str:
        self.given = given
        return "plan"


def batch() -> dict[str, Any]:
    """24 tokens that are no pack."""
    return {key: torch.arange(24).unsqueeze(0) for key in ("tokens", "labels", "loss_mask", "position_ids")}


def params_of_plan(batch: dict[str, Any]) -> Any:
    """The packed_seq_params that the schedule plan of a batch is built with."""
    state, model = MagicMock(), Model()
    specs = SimpleNamespace(packed_sequence_size=24)
    state.cfg.dataset = SimpleNamespace(packed_sequence_specs=specs)
    plan, _ = gpt_step.forward_step(state, iter([{"attention_mask": None, **batch}]), model, return_schedule_plan=True)
    assert plan == "plan"
    return model.given["packed_seq_params"]


def test_the_schedule_plan_knows_the_sequences_of_the_pack() -> None:
    packed = {
        **batch(),
        "cu_seqlens": torch.tensor([[0, 8, 12, 24, -1]], dtype=torch.int32),
        "cu_seqlens_argmin": torch.tensor([[4]]),
        "max_seqlen": torch.tensor([[12]], dtype=torch.int32),
    }
    assert params_of_plan(packed).cu_seqlens_q.tolist() == [0, 8, 12, 24]


def test_without_packing_it_is_given_none() -> None:
    assert params_of_plan(batch()) is None

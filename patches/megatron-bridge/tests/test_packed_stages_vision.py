# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from megatron.core import parallel_state

from megatron.bridge.training import llava_step, vlm_step


STEPS = [pytest.param(llava_step, 7, id="llava_step"), pytest.param(vlm_step, 5, id="vlm_step")]
METADATA = ("cu_seqlens", "cu_seqlens_argmin", "max_seqlen")


class Model:
    """It keeps what its schedule plan is built with."""

    config = SimpleNamespace(mtp_num_layers=None, overlap_moe_expert_parallel_comm=True)

    def build_schedule_plan(self, *_: Any, **given: Any) -> str:
        self.given = given
        return "plan"


def on_stage(monkeypatch: pytest.MonkeyPatch, only: bool) -> None:
    """The only pipeline stage, or one that is neither the first nor the last; on a CPU."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor, **_: tensor)
    monkeypatch.setattr(parallel_state, "is_pipeline_first_stage", lambda **_: only)
    monkeypatch.setattr(parallel_state, "is_pipeline_last_stage", lambda **_: only)
    monkeypatch.setattr(parallel_state, "get_context_parallel_world_size", lambda: 1)


def packed(step: Any) -> dict[str, Any]:
    """A pack of three sequences as the step reads them."""
    keys = ("input_ids" if step is llava_step else "tokens", "labels", "loss_mask", "position_ids")
    images = {"pixel_values": torch.ones(1), "num_patches": torch.ones(1)} if step is llava_step else {}
    return {
        **{key: torch.arange(24).unsqueeze(0) for key in keys},
        **images,
        "attention_mask": None,
        "visual_inputs": None,
        "cu_seqlens": torch.tensor([[0, 8, 12, 24, -1]], dtype=torch.int32),
        "cu_seqlens_argmin": torch.tensor([[4]]),
        "max_seqlen": torch.tensor([[12]], dtype=torch.int32),
    }


def config(pack_size: int) -> Any:
    """A run's configuration; packing is on for sizes above 0."""
    specs = SimpleNamespace(packed_sequence_size=pack_size)
    return SimpleNamespace(
        dataset=SimpleNamespace(packed_sequence_specs=specs),
        model=SimpleNamespace(seq_length=24, pipeline_model_parallel_size=1),
        rerun_state_machine=SimpleNamespace(check_for_nan_in_loss=False, check_for_spiky_loss=False),
    )


@pytest.mark.parametrize(("step", "first"), STEPS)
def test_a_stage_without_tokens_knows_the_sequences_of_the_pack(
    monkeypatch: pytest.MonkeyPatch, step: Any, first: int
) -> None:
    on_stage(monkeypatch, only=False)
    found = step.get_batch(iter([packed(step)]), config(24))
    assert all(value is None for value in found[:first])
    assert [value.tolist() for value in found[first : first + 3]] == [packed(step)[key].tolist() for key in METADATA]


@pytest.mark.parametrize(("step", "first"), STEPS)
def test_without_packing_it_reads_nothing(monkeypatch: pytest.MonkeyPatch, step: Any, first: int) -> None:
    on_stage(monkeypatch, only=False)
    batches = iter([packed(step)])
    assert all(value is None for value in step.get_batch(batches, config(0)))
    assert len(list(batches)) == 1


@pytest.mark.parametrize(("step", "first"), STEPS)
def test_the_schedule_plan_knows_them_too(monkeypatch: pytest.MonkeyPatch, step: Any, first: int) -> None:
    on_stage(monkeypatch, only=True)
    state, model = MagicMock(), Model()
    state.cfg = config(24)
    plan, _ = step.forward_step(state, iter([packed(step)]), model, return_schedule_plan=True)
    assert plan == "plan"
    assert model.given["packed_seq_params"].cu_seqlens_q.tolist() == [0, 8, 12, 24]

"""`pipeline-metadata` before 0.3: the real steps on a stage in the middle, and the schedule plan."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from tests.patches.bridge.before_03 import (
    ALL,
    RELEASES,
    VERSIONS,
    Bridge,
    bridge,
    packed_batches,
    packing_config,
)

PATCH = ("pipeline-metadata",)
WITH_PLAN = [v for v in VERSIONS if v not in ("0.1.0rc1", "0.1.0rc2", "0.2.0rc0")]
METADATA = ("cu_seqlens", "cu_seqlens_argmin", "max_seqlen")


class Model(MagicMock):
    """What the steps hand to the model."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.config = SimpleNamespace(mtp_num_layers=None, overlap_moe_expert_parallel_comm=True)

    def _get_child_mock(self, /, **kwargs: Any) -> MagicMock:
        return MagicMock(**kwargs)


def state(cfg: Any) -> Any:
    """A training state that is in nobody's way."""
    found = MagicMock()
    found.cfg = cfg
    cfg.rerun_state_machine = MagicMock()
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("cp", [1, 2])
def test_a_middle_stage_gets_the_metadata(version: str, cp: int, tmp_path: Path, draw: random.Random) -> None:
    with bridge(version, ALL, cp=cp) as found:
        cfg = packing_config(found)
        for batch in packed_batches(found, tmp_path, draw, 96):
            found.parallel.stage = "middle"
            values = found.gpt_step.get_batch(iter([batch]), cfg)
            assert values[:5] == (None,) * 5
            assert [value.tolist() for value in values[5:]] == [batch[key].tolist() for key in METADATA]
            model = Model()
            found.gpt_step.forward_step(state(cfg), iter([batch]), model)
            params = model.call_args.kwargs["packed_seq_params"]
            end = int(batch["cu_seqlens_argmin"])
            assert params.cu_seqlens_q.tolist() == batch["cu_seqlens"][0, :end].tolist()
            assert int(params.max_seqlen_q) == int(batch["max_seqlen"])
            assert model.call_args.kwargs["input_ids"] is None
            found.parallel.stage = "only"


@pytest.mark.parametrize("version", VERSIONS)
def test_unpatched_it_gets_nothing(version: str, tmp_path: Path, draw: random.Random) -> None:
    with bridge(version, ()) as found:
        batch = packed_batches(found, tmp_path, draw, 96)[0]
        found.parallel.stage = "middle"
        model = Model()
        found.gpt_step.forward_step(state(packing_config(found)), iter([batch]), model)
        assert "packed_seq_params" not in model.call_args.kwargs


def unread() -> Any:
    """A data loader that must not be asked."""
    raise AssertionError("a stage in the middle read a batch")
    yield


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("cp", [1, 2])
def test_without_packs_a_middle_stage_reads_nothing(version: str, cp: int) -> None:
    with bridge(version, ALL, cp=cp, stage="middle") as found:
        pretraining = SimpleNamespace(dataset=SimpleNamespace(sequence_length=64))
        for cfg in (packing_config(found, size=-1), packing_config(found, size=0), pretraining, MagicMock()):
            assert found.gpt_step.get_batch(unread(), cfg) == (None,) * 8
        unpacked = packing_config(found)
        unpacked.dataset.packed_sequence_specs = None
        assert found.gpt_step.get_batch(unread(), unpacked) == (None,) * 8
        assert found.gpt_step.get_batch(None, packing_config(found)) == (None,) * 8


@pytest.mark.parametrize("version", VERSIONS)
def test_a_data_set_with_its_own_loader_says_it_batch_by_batch(version: str) -> None:
    own = SimpleNamespace(dataset=SimpleNamespace(build_datasets=lambda: None))
    cu_seqlens = torch.tensor([[0, 4, 12, -1]])
    with bridge(version, ALL, stage="middle") as found:
        packed = {"tokens": torch.zeros(1, 12), "cu_seqlens": cu_seqlens, "max_seqlen": torch.tensor([[8]])}
        values = found.gpt_step.get_batch(iter([packed]), own)
        assert [value if value is None else value.tolist() for value in values[5:]] == [
            [[0, 4, 12, -1]],
            None,
            [[8]],
        ]
        for other in ({"tokens": torch.zeros(1, 12)}, {"tokens": torch.zeros(1, 12), "cu_seqlens": None}):
            assert found.gpt_step.get_batch(iter([other]), own) == (None,) * 8


def plan_params(found: Bridge, step: Any, batch: dict[str, Any], cfg: Any) -> Any:
    """The packed_seq_params that the schedule plan is built with."""
    model = Model()
    step.forward_step(state(cfg), iter([batch]), model, return_schedule_plan=True)
    assert not model.called
    assert set(model.build_schedule_plan.call_args.kwargs) >= {"labels", "loss_mask"}
    return model.build_schedule_plan.call_args.kwargs.get("packed_seq_params")


def with_visual_inputs(batch: dict[str, Any]) -> dict[str, Any]:
    """As vlm_step reads it."""
    return {**batch, "visual_inputs": None}


def with_images(batch: dict[str, Any]) -> dict[str, Any]:
    """As llava_step reads it."""
    own = {
        "input_ids": batch["tokens"],
        "pixel_values": torch.rand(1, 3, 4, 4),
        "num_patches": torch.tensor([1]),
    }
    return {key: value for key, value in {**batch, **own}.items() if key != "tokens"}


@pytest.mark.parametrize("version", WITH_PLAN)
def test_the_schedule_plan_knows_the_packs(version: str, tmp_path: Path, draw: random.Random) -> None:
    steps: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"gpt_step": dict}
    if version in RELEASES:
        steps |= {"vlm_step": with_visual_inputs, "llava_step": with_images}
    for patches in (ALL, PATCH, ()):
        with bridge(version, patches) as found:
            batch = packed_batches(found, tmp_path, draw, 128)[0]
            cfg = packing_config(found)
            cfg.model = SimpleNamespace(seq_length=128, pipeline_model_parallel_size=1)
            for name, shaped in steps.items():
                params = plan_params(found, getattr(found, name), shaped(batch), cfg)
                if patches:
                    end = int(batch["cu_seqlens_argmin"])
                    assert params.cu_seqlens_q.tolist() == batch["cu_seqlens"][0, :end].tolist()
                else:
                    assert params is None  # the defect
                plain = {k: v for k, v in batch.items() if k not in METADATA}
                assert plan_params(found, getattr(found, name), shaped(plain), cfg) is None


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("cp", [1, 2])
def test_middle_stages_of_the_vision_language_steps(
    version: str, cp: int, tmp_path: Path, draw: random.Random
) -> None:
    with bridge(version, ALL, cp=cp) as found:
        batch = packed_batches(found, tmp_path, draw, 96)[0]
        cfg = packing_config(found)
        found.parallel.stage = "middle"
        expected = [batch[key].tolist() for key in METADATA]
        *values, visual = found.vlm_step.get_batch(iter([with_visual_inputs(batch)]), cfg)
        assert (values[:5], visual) == ([None] * 5, None)
        assert [value.tolist() for value in values[5:]] == expected
        values = list(found.llava_step.get_batch(iter([with_images(batch)]), cfg))
        assert values[:7] == [None] * 7
        assert [value.tolist() for value in values[7:]] == expected
        off = packing_config(found, size=0)
        assert found.vlm_step.get_batch(unread(), off) == (None,) * 9
        assert found.llava_step.get_batch(unread(), off) == (None,) * 10
        bad = {**batch, "cu_seqlens": batch["cu_seqlens"] + (batch["cu_seqlens"] == 0).int() * cp}
        if cp > 1:
            for step in (found.vlm_step, found.llava_step, found.gpt_step):
                with pytest.raises(ValueError, match="must rise from 0"):
                    step.get_batch(iter([with_visual_inputs(bad)]), cfg)

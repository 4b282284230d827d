# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megatron.bridge.training import llava_step


METADATA = ("cu_seqlens", "cu_seqlens_argmin", "max_seqlen")


@pytest.fixture(autouse=True)
def three_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline of three stages, on a CPU."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor, **_: tensor)
    monkeypatch.setattr(llava_step, "is_pp_first_stage", lambda group: group.rank() == 0)
    monkeypatch.setattr(llava_step, "is_pp_last_stage", lambda group: group.rank() == 2)
    monkeypatch.setattr(llava_step, "get_batch_on_this_cp_rank", lambda batch, **_: batch)


def packed() -> dict[str, Any]:
    """A pack of three sequences with an image."""
    keys = ("input_ids", "labels", "loss_mask", "position_ids")
    return {
        **{key: torch.arange(24).unsqueeze(0) for key in keys},
        "tokens": None,
        "attention_mask": None,
        "pixel_values": torch.ones(1, 3, 2, 2),
        "num_patches": torch.ones(1),
        "cu_seqlens": torch.tensor([[0, 8, 12, 24, -1]], dtype=torch.int32),
        "cu_seqlens_argmin": torch.tensor([[4]]),
        "max_seqlen": torch.tensor([[12]], dtype=torch.int32),
    }


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_every_stage_knows_the_sequences_of_the_pack(stage: int) -> None:
    specs = SimpleNamespace(packed_sequence_size=24)
    cfg: Any = SimpleNamespace(dataset=SimpleNamespace(packed_sequence_specs=specs), model=None)
    groups = SimpleNamespace(
        pp=SimpleNamespace(rank=lambda: stage, size=lambda: 3), cp=SimpleNamespace(rank=lambda: 0, size=lambda: 1)
    )
    _, _, input_ids, labels, *_ = found = llava_step.get_batch(iter([packed()]), cfg, pg_collection=groups)
    assert (input_ids is not None) == (stage == 0)
    assert (labels is not None) == (stage == 2)
    assert [value.tolist() for value in found[7:]] == [packed()[key].tolist() for key in METADATA]

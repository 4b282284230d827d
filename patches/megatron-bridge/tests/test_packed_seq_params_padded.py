# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

from typing import Any

import pytest
import torch

from megatron.bridge.training.gpt_step import get_packed_seq_params


FIELDS = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")


@pytest.mark.parametrize("trailing", [0, 1, 5])
@pytest.mark.parametrize("argmin", [True, False])
def test_attention_is_told_the_padded_lengths_in_all_four_fields(trailing: int, argmin: bool) -> None:
    bounds = [0, 8, 12, 24]
    batch: dict[str, Any] = {
        "cu_seqlens": torch.tensor([bounds + [-1] * trailing], dtype=torch.int32),
        "max_seqlen": torch.tensor([[12]], dtype=torch.int32),
    }
    if argmin:
        batch["cu_seqlens_argmin"] = torch.tensor([[len(bounds) if trailing else 0]])
    params = get_packed_seq_params(batch)
    for field in FIELDS:
        assert getattr(params, field).tolist() == bounds, field
    assert int(params.max_seqlen_q) == int(params.max_seqlen_kv) == 12

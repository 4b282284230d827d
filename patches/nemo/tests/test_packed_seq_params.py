# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

from typing import Any

import pytest
import torch

from nemo.collections.llm.gpt.model.base import get_packed_seq_params


def batch(bounds: list[int], trailing: int, argmin: bool = True) -> dict[str, Any]:
    """What the step hands to the model, as far as it describes a pack."""
    return {
        "cu_seqlens": torch.tensor([bounds + [-1] * trailing], dtype=torch.int32),
        "max_seqlen": torch.tensor([[12]], dtype=torch.int32),
        **({"cu_seqlens_argmin": torch.tensor([[len(bounds) if trailing else 0]])} if argmin else {}),
    }


@pytest.mark.unit
@pytest.mark.parametrize("trailing", [0, 1, 5])
@pytest.mark.parametrize("argmin", [True, False])
def test_attention_is_told_the_padded_lengths_in_all_four_fields(trailing: int, argmin: bool) -> None:
    params = get_packed_seq_params(batch([0, 8, 12, 24], trailing, argmin))
    for field in ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded"):
        assert getattr(params, field).tolist() == [0, 8, 12, 24], field


@pytest.mark.unit
def test_the_longest_length_and_the_layout_are_passed_on() -> None:
    params = get_packed_seq_params(batch([0, 8, 12, 24], 1))
    assert int(params.max_seqlen_q) == int(params.max_seqlen_kv) == 12
    assert params.qkv_format == "thd"

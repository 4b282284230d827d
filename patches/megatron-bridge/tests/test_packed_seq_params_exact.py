# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

import pytest
import torch

from megatron.bridge.training.utils.packed_seq_utils import get_packed_seq_params


FIELDS = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")


@pytest.mark.parametrize("trailing", [1, 3])
def test_attention_is_given_the_padded_lengths_whatever_the_guessed_ones(trailing: int) -> None:
    # the last sequence ends in an EOS that fills nothing, so the guess is one token short
    params = get_packed_seq_params(
        {
            "cu_seqlens": torch.tensor([[0, 4, 12] + [-1] * trailing], dtype=torch.int32),
            "cu_seqlens_argmin": torch.tensor([[3]]),
            "cu_seqlens_unpadded": torch.tensor([[0, 3, 10] + [-1] * trailing], dtype=torch.int32),
            "cu_seqlens_unpadded_argmin": torch.tensor([[3]]),
            "max_seqlen": torch.tensor([[8]], dtype=torch.int32),
        }
    )
    for field in FIELDS:
        assert getattr(params, field).tolist() == [0, 4, 12], field
    assert int(params.max_seqlen_q) == int(params.max_seqlen_kv) == 8


@pytest.mark.parametrize("argmin", [None, 0, 3])
def test_a_row_without_sentinel_is_whole(argmin: int | None) -> None:
    batch = {
        "cu_seqlens": torch.tensor([[0, 4, 12]], dtype=torch.int32),
        "max_seqlen": torch.tensor([[8]], dtype=torch.int32),
    }
    if argmin is not None:
        batch["cu_seqlens_argmin"] = torch.tensor([[argmin]])
    params = get_packed_seq_params(batch)
    for field in FIELDS:
        assert getattr(params, field).tolist() == [0, 4, 12], field

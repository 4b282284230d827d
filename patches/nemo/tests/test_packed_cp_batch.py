# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

from typing import Any

import pytest
import torch
from megatron.core import parallel_state

from nemo.collections.llm.gpt.model.base import get_batch_on_this_context_parallel_rank

CP_SIZE, TOTAL = 2, 24
PER_TOKEN = ("tokens", "labels", "loss_mask", "position_ids")


@pytest.fixture(autouse=True)
def second_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two context parallel ranks, on a CPU."""
    monkeypatch.setattr(parallel_state, "get_context_parallel_world_size", lambda: CP_SIZE)
    monkeypatch.setattr(parallel_state, "get_context_parallel_rank", lambda: 1)
    plain = torch.tensor

    def unpinned(data: Any, pin_memory: bool = False, **how: Any) -> torch.Tensor:
        return plain(data, **how)

    monkeypatch.setattr(torch, "tensor", unpinned)


def packed_batch(tokens: int, bounds: list[int]) -> dict[str, Any]:
    """`tokens` tokens of a pack whose sequences have these bounds, and the number of targets in all of it."""
    return {
        **{key: torch.arange(tokens).unsqueeze(0) for key in PER_TOKEN},
        "attention_mask": torch.ones(1),
        "cu_seqlens": torch.tensor([bounds], dtype=torch.int32),
        "cu_seqlens_argmin": torch.tensor([[len(bounds) - 1]]),
        "max_seqlen": torch.tensor([[12]], dtype=torch.int32),
        "num_valid_tokens_in_ub": torch.tensor(17),
    }


# with a length of cu_seqlens that 2 * CP_SIZE divides, slicing it would raise nothing
@pytest.mark.unit
@pytest.mark.parametrize("bounds", [[0, 8, 12, 24, -1], [0, 8, 24, -1]])
def test_a_batch_that_is_split_already_passes_as_it_is(bounds: list[int]) -> None:
    batch = packed_batch(TOTAL // CP_SIZE, bounds)
    before = {key: value.clone() for key, value in batch.items()}
    after = get_batch_on_this_context_parallel_rank(batch)
    assert after.keys() == before.keys()
    for key, value in before.items():
        assert torch.equal(after[key], value), key


@pytest.mark.unit
def test_a_whole_packed_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="thd_get_partitioned_indices"):
        get_batch_on_this_context_parallel_rank(packed_batch(TOTAL, [0, 8, 12, 24, -1]))


@pytest.mark.unit
def test_placeholders_and_counts_of_an_unpacked_batch_stay() -> None:
    batch = {
        "tokens": torch.arange(8).unsqueeze(0),
        "labels": None,
        "attention_mask": torch.ones(1),
        "max_seqlen": torch.tensor([[8]]),
    }
    after = get_batch_on_this_context_parallel_rank(batch)
    assert after["tokens"].tolist() == [[2, 3, 4, 5]]
    assert after["labels"] is None
    assert after["attention_mask"].tolist() == [1.0]
    assert after["max_seqlen"].tolist() == [[8]]


@pytest.mark.unit
def test_an_unpacked_batch_is_sliced_and_its_targets_are_counted_as_before() -> None:
    batch = {
        "tokens": torch.arange(8).unsqueeze(0),
        "loss_mask": torch.tensor([[0, 1, 1, 0, 1, 1, 1, 1]]),
        "attention_mask": torch.arange(64).view(1, 1, 8, 8),
    }
    after = get_batch_on_this_context_parallel_rank(batch)
    assert after["tokens"].tolist() == [[2, 3, 4, 5]]
    assert after["attention_mask"][0, 0, :, 0].tolist() == [16, 24, 32, 40]
    assert int(after["num_valid_tokens_in_ub"]) == 6

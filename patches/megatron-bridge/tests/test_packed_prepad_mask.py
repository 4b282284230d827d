# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megatron.bridge.data.datasets import packed_sequence


EOS = 9


class Samples(list[Any]):
    """A data set as far as tokenize_dataset looks at it."""

    tokenizer = SimpleNamespace(eod=EOS)
    max_seq_length = 32

    def __init__(self, samples: list[dict[str, Any]], pad_seq_length_to_mult: int) -> None:
        super().__init__(samples)
        self.pad_seq_length_to_mult = pad_seq_length_to_mult


def tokenized(monkeypatch: pytest.MonkeyPatch, *samples: dict[str, Any]) -> list[dict[str, Any]]:
    """The samples, padded to a multiple of 4."""
    monkeypatch.setattr(
        packed_sequence,
        "create_sft_dataset",
        lambda pad_seq_length_to_mult, **_: Samples(list(samples), pad_seq_length_to_mult),
    )
    return list(packed_sequence.tokenize_dataset("path", SimpleNamespace(), 32, 0, pad_seq_to_mult=4))


@pytest.mark.parametrize("make", [list, torch.LongTensor])
def test_the_mask_of_a_chat_sample_is_padded_with_its_tokens(monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    (sample,) = tokenized(
        monkeypatch, {"input_ids": make([5, 6, 7, 8, 1, EOS]), "loss_mask": make([0, 0, 0, 1, 1, 1])}
    )
    assert [int(token) for token in sample["input_ids"]] == [5, 6, 7, 8, 1, EOS, EOS, EOS, EOS]
    assert [float(value) for value in sample["loss_mask"]] == [0, 0, 0, 1, 1, 1, 0, 0, 0]


def test_a_pad_of_a_sample_without_a_mask_is_no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    (sample,) = tokenized(
        monkeypatch, {"input_ids": [5, 6, 7, 8, 1, EOS], "context_ids": [5, 6], "answer_start_idx": 2}
    )
    assert len(sample["loss_mask"]) == len(sample["input_ids"]) == 9
    assert not any(sample["loss_mask"][6:])
    assert all(sample["loss_mask"][2:6])

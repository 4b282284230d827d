# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

from types import SimpleNamespace
from typing import Any

import pytest

from megatron.bridge.data.datasets import packed_sequence


EOS = 9


def tokenized(monkeypatch: pytest.MonkeyPatch, lengths: list[int], longest: int, **options: Any) -> list[Any]:
    """Samples of these lengths as they are stored for packing: one context token, and a real EOS at the end."""
    samples = [
        {"input_ids": [*range(100, 99 + length), EOS], "context_ids": [100], "answer_start_idx": 1}
        for length in lengths
    ]
    monkeypatch.setattr(packed_sequence, "create_sft_dataset", lambda *_, **__: samples)
    tokenizer: Any = SimpleNamespace(eos_id=EOS)
    return list(packed_sequence.tokenize_dataset("path", tokenizer, longest, 0, **options))


@pytest.mark.parametrize("longest", [61, 62, 63, 64])
@pytest.mark.parametrize("multiple", [4, 6, 16])
def test_what_the_model_runs_is_a_multiple(monkeypatch: pytest.MonkeyPatch, longest: int, multiple: int) -> None:
    lengths = [2, 5, 6, 59, 60, 61, 62, 63, 64, 65, 66, 200]
    limit = longest // multiple * multiple
    expected = [min(limit, -(-(length - 1) // multiple) * multiple) + 1 for length in lengths]
    found = tokenized(monkeypatch, lengths, longest, pad_seq_to_mult=multiple)
    assert [len(sample["input_ids"]) for sample in found] == expected
    assert [len(sample["loss_mask"]) for sample in found] == expected


def test_pads_are_no_targets_and_a_real_eos_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    (sample,) = tokenized(monkeypatch, [6], 64, pad_seq_to_mult=4)
    assert sample["input_ids"] == [100, 101, 102, 103, 104, EOS, EOS, EOS, EOS]
    assert [float(value) for value in sample["loss_mask"]] == [0, 1, 1, 1, 1, 1, 0, 0, 0]


def test_without_a_multiple_nothing_is_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [len(sample["input_ids"]) for sample in tokenized(monkeypatch, [5, 6, 7], 64)] == [5, 6, 7]

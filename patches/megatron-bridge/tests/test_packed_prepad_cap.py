# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from megatron.bridge.data.datasets import packed_sequence


EOS = 9


class Samples(list[Any]):
    """A data set as far as tokenize_dataset looks at it."""

    tokenizer = SimpleNamespace(eod=EOS)

    def __init__(self, samples: list[dict[str, Any]], longest: int, pad_seq_length_to_mult: int) -> None:
        super().__init__(samples)
        self.max_seq_length = longest
        self.pad_seq_length_to_mult = pad_seq_length_to_mult


def lengths(monkeypatch: pytest.MonkeyPatch, stored: list[int], longest: int, multiple: int | None) -> list[int]:
    """How many tokens of samples of these lengths are stored for packing."""
    samples = [
        {"input_ids": [*range(100, 99 + length), EOS], "context_ids": [100], "answer_start_idx": 1}
        for length in stored
    ]
    monkeypatch.setattr(
        packed_sequence,
        "create_sft_dataset",
        lambda pad_seq_length_to_mult, **_: Samples(samples, longest, pad_seq_length_to_mult),
    )
    found = packed_sequence.tokenize_dataset("path", SimpleNamespace(), longest, 0, pad_seq_to_mult=multiple)
    return [len(sample["input_ids"]) for sample in found]


@pytest.mark.parametrize("longest", [61, 62, 63, 64])
def test_what_the_model_runs_is_a_multiple_even_where_it_is_cut(monkeypatch: pytest.MonkeyPatch, longest: int) -> None:
    stored = [2, 5, 6, 59, 60, 61, 62, 63, 64, 65, 66, 200]
    limit = longest // 4 * 4
    expected = [min(limit, -(-(length - 1) // 4) * 4) + 1 for length in stored]
    assert lengths(monkeypatch, stored, longest, 4) == expected


def test_cut_samples_are_counted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    lengths(monkeypatch, [10, 21, 22, 60], 22, 4)
    assert "2 of 4 samples were cut to 21 tokens" in caplog.text


def test_no_multiple_is_no_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lengths(monkeypatch, [5, 6, 7], 20, None) == [5, 6, 7]

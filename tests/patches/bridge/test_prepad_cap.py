"""`prepad-cap`: the real tokenize_dataset on samples that are too long, and pad_seq_to_mult=None."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import pytest

from tests.patches.bridge.packing import packed, tokenized
from tests.patches.bridge.real_code import BEFORE_06, EOS, SHAPES, is_06, pack, packed_dataset

PATCH = ("prepad-cap",)


def sample(length: int) -> dict[str, Any]:
    tokens = [*range(100, 99 + length), EOS]
    return {"input_ids": tokens, "context_ids": tokens[:2], "answer_start_idx": 1}


def stored(
    version: str, patches: tuple[str, ...], lengths: list[int], multiple: int | None, size: int
) -> list[int]:
    dataset = tokenized(version, patches, [sample(length) for length in lengths], multiple, size)
    return [len(item["input_ids"]) for item in dataset]


@pytest.mark.parametrize("version", SHAPES)
@pytest.mark.parametrize(("multiple", "size"), [(4, 64), (4, 63), (6, 64), (16, 50), (8, 8), (3, 10)])
def test_every_length_is_a_multiple_within_the_limit(
    version: str, multiple: int, size: int, draw: random.Random
) -> None:
    lengths = [draw.randint(2, 2 * size) for _ in range(30)] + list(
        range(size - multiple, size + multiple + 3)
    )
    lengths = [length for length in lengths if length > 1]
    longest = size // multiple * multiple
    for length, found in zip(lengths, stored(version, PATCH, lengths, multiple, size), strict=True):
        runtime = min(longest, -(-(length - 1) // multiple) * multiple)
        assert found == runtime + 1


@pytest.mark.parametrize("version", BEFORE_06)
def test_what_went_wrong_before(version: str) -> None:
    assert stored(version, (), [64, 70], 4, 62) == [62, 62]  # 61 tokens for the model
    assert stored(version, PATCH, [64, 70], 4, 62) == [61, 61]


@pytest.mark.parametrize("version", SHAPES)
def test_tokens_are_kept_from_the_left_and_pads_follow(version: str) -> None:
    dataset = tokenized(version, PATCH, [sample(30), sample(6)], 4, 21)
    assert dataset[0]["input_ids"] == list(range(100, 121))
    assert dataset[1]["input_ids"] == [*range(100, 105), EOS, EOS, EOS, EOS]


@pytest.mark.parametrize("version", SHAPES)
def test_the_cut_samples_are_counted(version: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    stored(version, PATCH, [10, 21, 22, 23, 60], 4, 22)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("3 of 5 samples were cut to 21 tokens")
    assert "pad_seq_to_mult=4" in line
    caplog.clear()
    stored(version, (), [10, 21, 22, 23, 60], 4, 22)
    assert not caplog.records
    stored(version, PATCH, [10, 21], 4, 22)
    assert not caplog.records


@pytest.mark.parametrize("version", SHAPES)
def test_a_multiple_beyond_the_limit_is_an_error(version: str) -> None:
    with pytest.raises(ValueError, match=r"multiple|pad_seq_to_mult=32"):
        stored(version, PATCH, [10], 32, 20)


@pytest.mark.parametrize("version", SHAPES)
def test_no_multiple_means_no_padding(version: str, tmp_path: Path) -> None:
    assert stored(version, PATCH, [5, 6, 7], None, 20) == [5, 6, 7]
    assert stored(version, PATCH, [5, 6, 7], 1, 20) == [5, 6, 7]
    assert len(packed(version, PATCH, tokenized(version, PATCH, [sample(5)], None, 64))) == 1
    dataset = packed_dataset(version, PATCH, tmp_path / "p.npy", [pack([[7] * 6])], 32, pad_seq_to_mult=None)
    assert dataset.collate_fn([dataset[0]])["tokens"].shape == (1, 16)
    broken = packed_dataset(version, (), tmp_path / "p.npy", [pack([[7] * 6])], 32, pad_seq_to_mult=None)
    with pytest.raises(TypeError, match="'>' not supported"):
        broken.collate_fn([broken[0]])
    if not is_06(version):
        with pytest.raises(TypeError, match="'>' not supported"):
            stored(version, (), [5], None, 20)

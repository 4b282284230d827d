"""`prepad-loss-mask`: the real tokenize_dataset, create_hist and fill_packing_strategy on chat samples."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.patches.bridge.packing import packed, targets, tokenized
from tests.patches.bridge.real_code import BEFORE_06, EOS, load, pack, packed_dataset, tokenize_file

PATCH = ("prepad-loss-mask",)
KINDS: dict[str, Callable[[list[int]], Any]] = {"list": list, "tensor": torch.LongTensor, "array": np.array}


def chat(draw: random.Random, kind: str, first: int) -> dict[str, Any]:
    """A sample with a mask in any pattern; its tokens are all different."""
    length = draw.randint(3, 30)
    tokens = [*range(first, first + length - 1), EOS]
    mask = [draw.randint(0, 1) for _ in tokens]
    make = KINDS[kind]
    return {"input_ids": make(tokens), "context_ids": make(tokens[:2]), "loss_mask": make(mask)}


@pytest.mark.parametrize("version", BEFORE_06)
@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("multiple", [4, 6, 16])
def test_targets_of_chat_samples_stay_targets(
    version: str, kind: str, multiple: int, draw: random.Random
) -> None:
    samples = [chat(draw, kind, 100 * at) for at in range(1, 20)]
    expected = sorted(
        tuple(int(t) for t, m in list(zip(s["input_ids"], s["loss_mask"], strict=True))[1:] if m)
        for s in samples
    )
    dataset = tokenized(version, PATCH, [dict(s) for s in samples], multiple)
    for sample in dataset:
        assert (len(sample["input_ids"]) - 1) % multiple == 0
        assert len(sample["loss_mask"]) == len(sample["input_ids"])
        assert {type(value) for value in sample["loss_mask"]} == {bool}  # one type: Parquet files ask for it
    assert targets(packed(version, (), dataset)) == expected


@pytest.mark.parametrize("version", BEFORE_06)
def test_what_went_wrong_before(version: str) -> None:
    tokens, mask = [5, 6, 7, EOS], [0, 0, 1, 1]
    as_tensors = {"input_ids": torch.LongTensor(tokens), "loss_mask": torch.LongTensor(mask)}
    with pytest.raises(TypeError, match="unsupported operand"):
        tokenized(version, (), [as_tensors], 4)
    two_lengths = [{"input_ids": tokens, "loss_mask": mask}, {"input_ids": tokens[1:], "loss_mask": mask[1:]}]
    with pytest.raises(ValueError, match="inhomogeneous"):
        packed(version, (), tokenized(version, (), [dict(s) for s in two_lengths], 4))
    one_length = [{"input_ids": tokens[1:], "loss_mask": mask[1:]} for _ in range(3)]
    shifted = packed(version, (), tokenized(version, (), [dict(s) for s in one_length], 4))
    assert len(shifted[0]["loss_mask"]) != len(shifted[0]["input_ids"])
    assert targets(packed(version, (), tokenized(version, PATCH, one_length, 4))) == [(7, EOS)] * 3


@pytest.mark.parametrize("version", BEFORE_06)
def test_a_pad_of_a_plain_sample_is_no_target(version: str, draw: random.Random) -> None:
    samples, expected = [], []
    for at in range(1, 9):
        context, answer = draw.randint(1, 9), draw.randint(0, 9)
        tokens = [*range(100 * at, 100 * at + context + answer), EOS]
        samples.append({"input_ids": tokens, "context_ids": tokens[:context], "answer_start_idx": context})
        expected.append(tuple(tokens[context:]))
    assert targets(packed(version, (), tokenized(version, PATCH, [dict(s) for s in samples], 4))) == sorted(
        expected
    )
    broken = targets(packed(version, (), tokenized(version, (), [dict(s) for s in samples], 4)))
    assert sum(map(len, broken)) > sum(map(len, expected))


@pytest.mark.parametrize("version", BEFORE_06)
def test_a_mask_is_cut_with_its_tokens(version: str) -> None:
    sample = {"input_ids": list(range(100, 120)), "loss_mask": [0] * 5 + [1] * 15}
    (found,) = tokenized(version, PATCH, [sample], 4, size=16)
    assert len(found["loss_mask"]) == len(found["input_ids"]) < 20
    assert found["loss_mask"][:6] == [False] * 5 + [True]


@pytest.mark.parametrize("version", BEFORE_06)
def test_a_file_with_shifted_masks_is_refused(version: str, tmp_path: Path) -> None:
    rows = [pack([[5, 6, EOS, EOS], [7, 8, EOS, EOS]])]
    dataset = packed_dataset(version, PATCH, tmp_path / "old.npy", rows, 64)
    dataset.collate_fn([dataset[0]])
    rows[0]["loss_mask"] = rows[0]["loss_mask"][:6]
    dataset = packed_dataset(version, PATCH, tmp_path / "old.npy", rows, 64)
    with pytest.raises(ValueError, match=r"old\.npy holds 8 tokens with 6 loss mask entries"):
        dataset.collate_fn([dataset[0]])
    silent = packed_dataset(version, (), tmp_path / "old.npy", rows, 64)
    silent.collate_fn([silent[0]])


@pytest.mark.parametrize("version", BEFORE_06)
def test_nothing_is_touched_without_padding(version: str) -> None:
    sample = {"input_ids": torch.LongTensor([5, 6, EOS]), "loss_mask": torch.LongTensor([0, 1, 1])}
    (found,) = tokenized(version, PATCH, [dict(sample)], 1)
    assert found == sample


def test_upstream_pads_the_mask_from_0_6() -> None:
    module = load("0.6.2", tokenize_file("0.6.2"))
    data = {"input_ids": torch.LongTensor([5, 6, EOS]), "loss_mask": torch.LongTensor([0, 1, 1])}
    module._pre_pad_data_point(data, 16, 5, EOS)
    assert data == {"input_ids": [5, 6, EOS, EOS, EOS], "loss_mask": [0, 1, 1, 0, 0]}

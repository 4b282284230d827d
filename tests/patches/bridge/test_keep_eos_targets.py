"""`keep-eos-targets`: samples go through the real packing code into the real data set."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.patches.bridge.packing import packed, tokenized
from tests.patches.bridge.real_code import EOS, SHAPES, is_06, pack, packed_dataset

KEEP = "keep-eos-targets"
SIZE = 128


def patches_of(version: str) -> tuple[str, ...]:
    """What `--with keep-eos-targets` brings on this version."""
    return (KEEP, "prepad-cap") if is_06(version) else (KEEP, "prepad-cap", "prepad-loss-mask")


def batch_of(version: str, patches: tuple[str, ...], path: Path, rows: list[Any], **options: Any) -> Any:
    dataset = packed_dataset(version, patches, path, rows, SIZE, **options)
    return dataset.collate_fn([dataset[at] for at in range(len(rows))])


def targets(batch: dict[str, torch.Tensor]) -> list[tuple[int, int]]:
    """Each input token with the label that the loss counts for it, sorted."""
    counted = batch["loss_mask"].bool()
    return sorted(zip(batch["tokens"][counted].tolist(), batch["labels"][counted].tolist(), strict=True))


def answers(draw: random.Random, first: int) -> list[int]:
    """Tokens of several turns, each of which EOS ends; all others are another number each."""
    turns = []
    for turn in range(draw.randint(1, 4)):
        turns += [*range(first + 20 * turn, first + 20 * turn + draw.randint(1, 9)), EOS]
    return turns


def plain(draw: random.Random, first: int) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    context = [*range(first, first + draw.randint(1, 9)), *[EOS] * draw.randint(0, 1)]
    tokens = context + answers(draw, first + 20)
    sample = {"input_ids": tokens, "context_ids": context, "answer_start_idx": len(context)}
    expected = [(tokens[at - 1], tokens[at]) for at in range(len(context), len(tokens))]
    return sample | {"token_count": len(tokens)}, expected


def chat(draw: random.Random, first: int) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    tokens = answers(draw, first)
    mask = [draw.randint(0, 1) for _ in tokens]
    expected = [(tokens[at - 1], tokens[at]) for at in range(1, len(tokens)) if mask[at]]
    sample = {"input_ids": torch.LongTensor(tokens), "loss_mask": torch.BoolTensor(mask)}
    return sample | {"context_ids": torch.LongTensor(tokens[:1])}, expected


@pytest.mark.parametrize("version", SHAPES)
@pytest.mark.parametrize("kind", [plain, chat])
@pytest.mark.parametrize("multiple", [None, 1, 4, 6])
def test_exactly_the_answers_are_targets(
    version: str, kind: Any, multiple: int | None, tmp_path: Path, draw: random.Random
) -> None:
    samples, expected = zip(*(kind(draw, 1000 * at) for at in range(1, 12)), strict=True)

    def counted(patches: tuple[str, ...]) -> list[tuple[int, int]]:
        dataset = tokenized(version, patches, [dict(sample) for sample in samples], multiple, SIZE)
        rows = packed(version, patches, dataset, SIZE)
        return targets(batch_of(version, patches, tmp_path / "p.npy", rows, pad_seq_to_mult=multiple))

    right = sorted(target for targets_of_one in expected for target in targets_of_one)
    assert counted(patches_of(version)) == right
    others = tuple(name for name in patches_of(version) if name != KEEP)
    assert counted(others) == [target for target in right if target[0] != EOS]  # the defect


@pytest.mark.parametrize("version", SHAPES)
def test_the_defect_is_there(version: str, tmp_path: Path) -> None:
    rows = [pack([[5, EOS, 6, EOS, 7, EOS]])]
    assert targets(batch_of(version, (), tmp_path / "p.npy", rows)) == [(5, EOS), (6, EOS), (7, EOS)]
    everything = [(EOS, 6), (EOS, 7), (5, EOS), (6, EOS), (7, EOS)]
    assert targets(batch_of(version, patches_of(version), tmp_path / "p.npy", rows)) == everything


@pytest.mark.parametrize("version", SHAPES)
def test_a_file_of_before_has_pads_as_targets(version: str, tmp_path: Path) -> None:
    """Made from plain samples: context 5, answer 6 EOS 7 EOS, and three pads that the mask calls targets."""
    sequence = [5, 6, EOS, 7, EOS, EOS, EOS, EOS]
    rows = [pack([sequence, sequence], [[1] * 8, [1] * 8])]
    found = targets(batch_of(version, patches_of(version), tmp_path / "p.npy", rows, pad_seq_to_mult=7))
    assert found == sorted([(5, 6), (6, EOS), (EOS, 7), (7, EOS)] * 2)


@pytest.mark.parametrize("version", SHAPES)
def test_an_explicit_mask_has_the_say_over_eos(version: str, tmp_path: Path) -> None:
    """A real sequence that ends in two EOS, both targets, and one pad."""
    rows = [pack([[5, 6, EOS, EOS, EOS]], [[1, 1, 1, 0, 0]])]
    found = targets(batch_of(version, patches_of(version), tmp_path / "p.npy", rows))
    assert found == [(EOS, EOS), (5, 6), (6, EOS)]


@pytest.mark.parametrize("version", SHAPES)
def test_loss_on_everything(version: str, tmp_path: Path) -> None:
    """answer_only_loss=False: every token but the pads, whatever the mask says."""
    rows = [pack([[5, EOS, 6, EOS, EOS, EOS], [7, 8, EOS]], [[0, 0, 1, 0, 0, 0], [0, 1, 0]])]
    options = {"answer_only_loss": False, "pad_seq_to_mult": 1}
    found = targets(batch_of(version, patches_of(version), tmp_path / "p.npy", rows, **options))
    assert found == sorted([(5, EOS), (EOS, 6), (6, EOS), (7, 8), (8, EOS)])
    broken = targets(batch_of(version, (), tmp_path / "p.npy", rows, **options))
    assert (EOS, 6) not in broken


@pytest.mark.parametrize("version", SHAPES)
def test_sequences_of_nothing_but_eos(version: str, tmp_path: Path) -> None:
    rows = [pack([[EOS], [EOS, EOS, EOS], [5, 6]], [[0], [1, 0, 0], [1, 0]])]
    found = targets(batch_of(version, patches_of(version), tmp_path / "p.npy", rows))
    assert found == [(EOS, EOS), (5, 6)]


@pytest.mark.parametrize("version", SHAPES)
def test_behind_the_sequences_there_is_no_target(version: str, tmp_path: Path, draw: random.Random) -> None:
    rows = [pack([[5] * draw.randint(2, 20)]) for _ in range(3)]
    batch = batch_of(version, patches_of(version), tmp_path / "p.npy", rows, pad_to_max_length=True)
    assert batch["tokens"].shape == (3, SIZE)
    for mask, count in zip(batch["loss_mask"], batch["token_count"], strict=True):
        assert mask[:count].all()
        assert not mask[count:].any()

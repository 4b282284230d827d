"""`skip-packed`: the generic slicer leaves packed batches and metadata alone, and refuses a whole pack."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from migrator.model import State
from tests.patches import states
from tests.patches.nemo.stack import core_slicer
from tests.patches.real_code import new_code
from tests.patches.thd import SPLIT, Ranks, packed_batch, partition, plain_batch, random_lengths, same
from tests.sandbox import make_sandbox

CODE = new_code("megatron-core/skip_packed.py")
VERSIONS = ("0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1")
WITH_GROUP = ("0.16.1", "0.17.1")


@dataclass
class Group:
    """A process group."""

    cp_size: int
    cp_rank: int

    def size(self) -> int:
        """How many ranks it has."""
        return self.cp_size

    def rank(self) -> int:
        """Which of them this is."""
        return self.cp_rank


def split(batch: dict[str, Any], lengths: list[int], cp_size: int, rank: int) -> dict[str, Any]:
    index = partition(lengths, cp_size, rank)
    return {key: value[:, index] if key in SPLIT else value for key, value in batch.items()}


# --- the new code by itself


@pytest.mark.parametrize(
    ("key", "value", "is_metadata"),
    [
        ("cu_seqlens", torch.zeros(1, 8), True),
        ("cu_seqlens_argmin", torch.zeros(1, 1), True),
        ("cu_seqlens_unpadded", torch.zeros(1, 8), True),
        ("max_seqlen", torch.zeros(1), True),
        ("token_count", torch.zeros(4), True),
        ("token_count", [4, 4], True),
        ("num_valid_tokens_in_ub", torch.tensor(4), True),
        ("attention_mask", torch.ones(1), True),
        ("attention_mask", torch.ones(4), True),
        ("attention_mask", torch.ones(1, 1, 1, 1), True),
        ("attention_mask", torch.ones(1, 1, 8, 8), False),
        ("metadata", [{"id": 1}], True),
        ("anything", torch.tensor(1.0), True),
        ("anything", 3, True),
        ("tokens", torch.zeros(1, 8), False),
        ("loss_mask", torch.zeros(1, 8), False),
        ("decoder_input", torch.zeros(2, 8, 16), False),
    ],
)
def test_what_is_metadata(key: str, value: Any, is_metadata: bool) -> None:
    assert CODE._is_cp_metadata(key, value) is is_metadata


# --- the real slicer


@pytest.mark.parametrize("version", VERSIONS)
def test_plain_batches_are_sliced_as_before(version: str, rng: random.Random, ranks: Ranks) -> None:
    for cp_size in (1, 2, 4):
        for _ in ranks.each(cp_size):
            batch = plain_batch(rng, rng.randint(1, 3), 8 * rng.randint(1, 4))
            del batch["metadata"]
            batch["cu_seqlens"] = batch["labels_2"] = None
            batch["decoder_input"] = torch.rand(2, 16, 3)
            before, after = ({**batch} for _ in range(2))
            assert core_slicer(version, False)(before) is before
            assert core_slicer(version, True)(after) is after
            assert same(before, after)


@pytest.mark.parametrize("version", VERSIONS)
def test_metadata_is_never_sliced(version: str, rng: random.Random, ranks: Ranks) -> None:
    """Not in a plain batch either, where upstream crashes on it or, at a length that fits, permutes it."""
    ranks.cp_size = 2
    plain = plain_batch(rng, 1, 16)
    del plain["metadata"]
    metadata = {
        "attention_mask": torch.ones(1),
        "cu_seqlens": None,
        "cu_seqlens_padded": torch.IntTensor([[0, 4, 8, 16]]),
        "max_seqlen": torch.IntTensor([8]),
        "token_count": [16],
    }
    bare = core_slicer(version, True)(dict(plain))
    sliced = core_slicer(version, True)({**plain, **metadata})
    assert all(same(sliced[key], bare[key]) for key in SPLIT)
    assert all(sliced[key] is metadata[key] for key in metadata)
    for key in ("attention_mask", "max_seqlen", "token_count"):
        with pytest.raises((IndexError, AttributeError)):
            core_slicer(version, False)({**plain, key: metadata[key]})
    permuted = core_slicer(version, False)({**plain, "cu_seqlens_padded": metadata["cu_seqlens_padded"]})
    assert permuted["cu_seqlens_padded"].tolist() == [[0, 16]]  # no error


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("cp_size", [2, 4])
@pytest.mark.parametrize("sentinels", [0, 1, 5])
def test_a_batch_that_is_split_passes_untouched(
    version: str, cp_size: int, sentinels: int, rng: random.Random, ranks: Ranks
) -> None:
    lengths = random_lengths(rng, 2 * cp_size)
    for rank in ranks.each(cp_size):
        batch = split(packed_batch(rng, lengths, sentinels), lengths, cp_size, rank)
        if rng.random() < 0.5:
            batch["attention_mask"] = torch.ones(1, 1, 4, 4)
        if rng.random() < 0.5:
            batch["cu_seqlens"] = batch["cu_seqlens"][0]
        before = dict(batch)
        assert core_slicer(version, True)(batch) is batch
        assert list(batch) == list(before)
        assert all(batch[key] is before[key] for key in before)
        with pytest.raises((IndexError, RuntimeError, AttributeError)):
            core_slicer(version, False)(batch)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_middle_stage_passes(version: str, rng: random.Random, ranks: Ranks) -> None:
    ranks.cp_size = 2
    batch = packed_batch(rng, [0, 8, 24]) | dict.fromkeys(SPLIT)
    before = dict(batch)
    assert same(core_slicer(version, True)(batch), before)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("key", [*SPLIT, "decoder_input"])
def test_a_whole_pack_is_refused(version: str, key: str, rng: random.Random, ranks: Ranks) -> None:
    """Even if all but one of its tensors are split."""
    lengths = random_lengths(rng, 4)
    ranks.cp_size = 2
    whole = packed_batch(rng, lengths, sentinels=rng.choice([0, 1, 3]))
    whole["decoder_input"] = torch.rand(1, lengths[-1], 4)
    batch = split(whole, lengths, 2, 0)
    batch["decoder_input"] = whole["decoder_input"][:, partition(lengths, 2, 0)]
    assert core_slicer(version, True)(dict(batch))
    for spoiled in (whole, batch | {key: whole[key]}):
        with pytest.raises(ValueError, match="THD split"):
            core_slicer(version, True)(spoiled)
    with pytest.raises(ValueError, match="THD split"):  # it is split, but for another size
        core_slicer(version, True)(split(packed_batch(rng, [0, 8, 24]), [0, 8, 24], 4, 0))
    silent = {name: whole[name] for name in (*SPLIT, "decoder_input")}
    silent["cu_seqlens"] = torch.IntTensor([[0, 4, 8, lengths[-1]]])
    sliced = core_slicer(version, False)(silent)  # upstream: across sequence borders, and no error
    assert sliced["tokens"].size(1) == lengths[-1] // 2


@pytest.mark.parametrize("version", VERSIONS)
def test_one_rank_takes_packs_as_before(version: str, rng: random.Random, ranks: Ranks) -> None:
    batch = packed_batch(rng, random_lengths(rng, 3))
    for patched in (False, True):
        before = dict(batch)
        assert core_slicer(version, patched)(batch) is batch
        assert same(batch, before)


@pytest.mark.parametrize("version", WITH_GROUP)
def test_a_group_that_is_given_counts(version: str, rng: random.Random, ranks: Ranks) -> None:
    ranks.cp_size = 8
    for rank in range(2):
        batch = plain_batch(rng, 2, 16)
        del batch["metadata"]
        before, after = (
            core_slicer(version, patched)(dict(batch), cp_group=Group(2, rank)) for patched in (False, True)
        )
        assert same(before, after)
        assert before["tokens"].size(1) == 8
    whole = packed_batch(rng, [0, 8, 24])
    part = split(whole, [0, 8, 24], 2, 1)
    assert core_slicer(version, True)(part, cp_group=Group(2, 1)) is part
    with pytest.raises(ValueError, match="context parallel size 2: "):
        core_slicer(version, True)(whole, cp_group=Group(2, 1))
    ranks.cp_size = 2
    assert core_slicer(version, True)(whole, cp_group=Group(1, 0)) is whole


# --- states


@pytest.mark.parametrize("version", ["0.12.3", "0.15.3", "0.17.1"])
def test_needed_then_applied(version: str, tmp_path: Path) -> None:
    states.check_needed_then_applied("megatron-core/skip-packed", version, tmp_path)


@pytest.mark.parametrize("version", ["0.18.0", "0.18.2", "0.19.0", "0.19.2"])
def test_releases_that_send_packs_elsewhere_are_left_alone(version: str, tmp_path: Path) -> None:
    root = make_sandbox(tmp_path, {"megatron-core": version})
    found = states.state(root, "megatron-core/skip-packed")
    assert found.state is State.FIXED_UPSTREAM
    assert "megatron/core/utils.py" in found.reason


def test_a_release_that_lost_its_fix_is_not_fine(tmp_path: Path) -> None:
    old, file = "get_sft_batch_on_this_cp_rank(batch, cp_group=cp_group)", "megatron/core/utils.py"
    found = states.replaced("megatron-core/skip-packed", "0.18.2", tmp_path, file, old, "sliced(batch)")
    assert found.state is State.NOT_APPLICABLE
    assert found.in_doubt

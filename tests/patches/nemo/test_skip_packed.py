"""`skip-packed` in NeMo 2.3, which has a slicer of its own, and a count of valid tokens beside it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from migrator.model import State
from tests.patches import states
from tests.patches.nemo.stack import slicer, step
from tests.patches.thd import SPLIT, Index, Ranks, packed_batch, partition, plain_batch, random_lengths, same
from tests.sandbox import make_sandbox

VERSIONS = ("2.3.0", "2.3.3")


@pytest.mark.parametrize("version", VERSIONS)
def test_plain_batches_are_sliced_and_counted_as_before(
    version: str, rng: random.Random, ranks: Ranks
) -> None:
    for cp_size in (1, 2, 4):
        for _ in ranks.each(cp_size):
            batch = plain_batch(rng, rng.randint(1, 3), 8 * rng.randint(1, 4))
            del batch["metadata"]
            batch["cu_seqlens"] = None
            if rng.random() < 0.5:
                batch["loss_mask"] = None
            before, after = dict(batch), dict(batch)
            assert slicer(version, False)(before) is before
            assert slicer(version, True)(after) is after
            assert same(before, after)
            assert ("num_valid_tokens_in_ub" in after) == (cp_size > 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_metadata_is_never_sliced(version: str, rng: random.Random, ranks: Ranks) -> None:
    ranks.cp_size = 2
    plain = plain_batch(rng, 1, 16)
    plain |= {"attention_mask": torch.ones(1), "cu_seqlens_argmin": torch.ones(1, 1)}
    sliced = slicer(version, True)(dict(plain))
    assert all(sliced[key] is plain[key] for key in ("attention_mask", "cu_seqlens_argmin", "metadata"))
    assert [sliced[key].size(1) for key in SPLIT] == [8] * 4
    with pytest.raises(IndexError):
        slicer(version, False)(dict(plain))


@pytest.mark.parametrize("version", VERSIONS)
def test_split_packs_pass_and_whole_ones_are_refused(
    version: str, rng: random.Random, ranks: Ranks, index: Index
) -> None:
    lengths = random_lengths(rng, 4)
    whole = packed_batch(rng, lengths)
    for rank in ranks.each(2):
        part = step(version, True)(iter([whole]))  # with its count, which has to survive
        assert part["tokens"][0].tolist() == partition(lengths, 2, rank)
        before = dict(part)
        assert slicer(version, True)(part) is part
        assert same(part, before)
        with pytest.raises(ValueError, match="THD split"):
            slicer(version, True)(dict(whole))
        with pytest.raises((IndexError, RuntimeError)):
            slicer(version, False)(dict(part))
    ranks.cp_size, ranks.cp_rank = 1, 0
    assert slicer(version, True)(whole) is whole


# --- states


@pytest.mark.parametrize("version", VERSIONS)
def test_needed_then_applied(version: str, tmp_path: Path) -> None:
    states.check_needed_then_applied("nemo/skip-packed", version, tmp_path)


def test_releases_that_call_megatron_core_are_left_alone(tmp_path: Path) -> None:
    root = make_sandbox(tmp_path, {"nemo": "2.4.0"})
    assert states.state(root, "nemo/skip-packed").state is State.NOT_APPLICABLE

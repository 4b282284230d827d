"""Packs made by hand, under the names of Megatron-Bridge and under those of PackedSeqParams."""

from __future__ import annotations

import random

import pytest

pytestmark = pytest.mark.torch


def test_core_names_say_the_same_without_sentinels(rng: random.Random) -> None:
    from migrator.verify import packs
    from migrator.verify.data import bounds_of

    for name, batch in packs.good_packs(rng, 2).items():
        for padded in (False, True):
            named = packs.as_core_names(batch, padded)
            assert bounds_of(named).tolist() == bounds_of(batch).tolist(), name
            assert not any(int(value.min()) < 0 for key, value in named.items() if "cu_seqlens" in key)
            assert ("cu_seqlens_q_padded" in named) == padded
            assert "cu_seqlens" not in named
            assert named["tokens"] is batch["tokens"]
            shorter = named["cu_seqlens_q"][0]
            assert (shorter.tolist() == bounds_of(batch).tolist()) != padded
            assert int(named["max_seqlen_kv"]) == int(batch["max_seqlen"])


def test_bad_packs_stay_bad_under_either_name(rng: random.Random) -> None:
    from migrator.verify import packs

    bad = packs.bad_packs(rng, 2)
    named = packs.with_core_names(bad)
    assert len(named) == 3 * len(bad)
    assert named["micro batch size 2, cu_seqlens_q"]["cu_seqlens_q"].shape[0] == 2

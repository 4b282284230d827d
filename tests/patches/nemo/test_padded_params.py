"""`padded-params`: attention gets padded lengths in all four fields, and a max_seqlen that covers them."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from migrator.model import State
from tests.patches import states
from tests.patches.nemo.stack import CORE, MODEL, VERSIONS, Tokenizer, datasets, save_packs
from tests.patches.real_code import define
from tests.patches.thd import packed_batch, random_lengths, same

FROM_24 = tuple(version for version in VERSIONS if version > "2.4")
PADDED = ("cu_seqlens_q_padded", "cu_seqlens_kv_padded")


def params(version: str, patched: bool, batch: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `get_packed_seq_params` makes of a batch: the real class of the container's Megatron-Core."""
    module = ModuleType("megatron.core.packed_seq_params")
    names = {"dataclass": dataclass, "torch": torch}
    file = "megatron/core/packed_seq_params.py"
    found = define("megatron-core", CORE[version], file, False, "PackedSeqParams", **names)
    module.__dict__["PackedSeqParams"] = found["PackedSeqParams"]
    monkeypatch.setitem(sys.modules, "megatron.core.packed_seq_params", module)
    name = "get_packed_seq_params"
    return define("nemo", version, f"{MODEL}/base.py", patched, name, torch=torch)[name](batch)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("sentinels", [0, 1, 7])
@pytest.mark.parametrize("argmin", [True, False])
def test_all_four_fields_are_the_padded_lengths(
    version: str, sentinels: int, argmin: bool, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = random_lengths(rng, 4)
    lengths += [lengths[-1]] * rng.randint(0, 3)  # of pad_cu_seqlens
    batch = packed_batch(rng, lengths, sentinels)
    if not argmin:
        del batch["cu_seqlens_argmin"]
    found = params(version, True, batch, monkeypatch)
    expected = torch.IntTensor(lengths)
    for field in ("cu_seqlens_q", "cu_seqlens_kv", *PADDED):
        assert same(getattr(found, field), expected), field
    assert found.qkv_format == "thd"
    assert int(found.max_seqlen_q) == int(found.max_seqlen_kv) == int(batch["max_seqlen"])

    before = params(version, False, batch, monkeypatch)
    assert [getattr(before, field) for field in PADDED] == [None, None]
    if sentinels:
        fields = [field for field in vars(found) if field not in PADDED]
        assert all(same(getattr(before, field), getattr(found, field)) for field in fields)
    else:
        assert before.cu_seqlens_q.numel() == 0  # cut at the leading 0


def test_without_max_seqlen(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = packed_batch(rng, random_lengths(rng, 4))
    del batch["max_seqlen"]
    assert params("2.5.3", True, batch, monkeypatch).max_seqlen_q is None


# --- collate_fn

SIZE = 64


def pack(rng: random.Random, runtime_lengths: Sequence[int]) -> dict[str, Any]:
    """Sequences that run at these lengths: one more token is stored of each."""
    starts = [sum(length + 1 for length in runtime_lengths[:i]) for i in range(len(runtime_lengths))]
    stored = sum(runtime_lengths) + len(runtime_lengths)
    tokens = [rng.randint(5, 99) for _ in range(stored)]
    return {
        "input_ids": tokens,
        "loss_mask": [rng.randint(0, 1) for _ in tokens],
        "seq_start_id": starts,
    }


def collated(
    version: str, patched: bool, tmp_path: Path, packs: Sequence[Any], metadata: Any = None, **options: Any
) -> dict[str, Any]:
    """The first micro batch of a packed file, one pack a row."""
    about = tmp_path / "metadata.jsonl"
    about.write_text(json.dumps(metadata), encoding="utf-8")
    dataset = datasets(version, patched)["create_sft_dataset"](
        path=save_packs(tmp_path / "training.npy", packs),
        tokenizer=Tokenizer(),
        seq_length=SIZE,
        pack_metadata_file_path=about if metadata else None,
        **options,
    )
    batch: dict[str, Any] = dataset.collate_fn([dataset[i] for i in range(len(packs))])
    return batch


def longest(batch: dict[str, Any]) -> list[int]:
    """The longest interval of each row."""
    rows = [[value for value in row if value >= 0] for row in batch["cu_seqlens"].tolist()]
    return [max(b - a for a, b in pairwise(row)) for row in rows]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("pad_to_max_length", [True, False])
def test_max_seqlen_covers_the_padding_at_the_end(
    version: str, pad_to_max_length: bool, tmp_path: Path, rng: random.Random
) -> None:
    """Upstream does so without pad_cu_seqlens: that stays as it is."""
    packs = [pack(rng, [4, 8, 4]), pack(rng, [32, 12])]
    before, after = (
        collated(version, patched, tmp_path, packs, pad_to_max_length=pad_to_max_length)
        for patched in (False, True)
    )
    assert same(before, after)
    assert after["max_seqlen"].flatten().tolist() == longest(after)


# made of a pack of 16 tokens and one of 44; NeMo 2.3 writes the first two only
METADATA = {"dataset_max_seqlen": 32, "max_samples_per_bin": 3, "min_packed_seqlen": 16, "pack_size": SIZE}
OLD = {key: METADATA[key] for key in ("dataset_max_seqlen", "max_samples_per_bin")}
STALE = METADATA | {"dataset_max_seqlen": 8, "min_packed_seqlen": 60}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["own", "of 2.3", "stale", "both"])
def test_under_pad_cu_seqlens_max_seqlen_is_no_less_than_what_is_there(
    version: str, name: str, tmp_path: Path, rng: random.Random
) -> None:
    metadata = {"own": [METADATA], "of 2.3": [OLD], "stale": [STALE], "both": [METADATA, OLD]}[name]
    packs = [pack(rng, [4, 8, 4]), pack(rng, [32, 12])]
    options: dict[str, Any] = {"pad_to_max_length": True, "pad_cu_seqlens": True}
    batch = collated(version, True, tmp_path, packs, metadata, **options)
    assert longest(batch) == [48, 32]
    assert batch["max_seqlen"].dtype == torch.int32
    assert batch["max_seqlen"].shape == (2,)
    assert all(have >= want for have, want in zip(batch["max_seqlen"].tolist(), longest(batch), strict=True))
    assert max(batch["max_seqlen"].tolist()) <= SIZE
    if name != "stale":  # one for all batches, as CUDA graphs ask for
        assert len(set(batch["max_seqlen"].tolist())) == 1
    entries = batch["cu_seqlens"][0].tolist()
    assert entries == [0, 4, 12, 16, 64, -1]
    assert batch["cu_seqlens"][1].tolist() == [0, 32, 44, 64, 64, -1]


@pytest.mark.parametrize("version", VERSIONS)
def test_upstream_under_pad_cu_seqlens(version: str, tmp_path: Path, rng: random.Random) -> None:
    packs = [pack(rng, [4, 8, 4]), pack(rng, [32, 12])]
    options: dict[str, Any] = {"pad_to_max_length": True, "pad_cu_seqlens": True}
    for metadata in (METADATA, OLD, STALE):
        if metadata is OLD and version in FROM_24:
            with pytest.raises(KeyError, match="min_packed_seqlen"):
                collated(version, False, tmp_path, packs, [metadata], **options)
            continue
        before = collated(version, False, tmp_path, packs, [metadata], **options)
        after = collated(version, True, tmp_path, packs, [metadata], **options)
        too_small = metadata is STALE or version not in FROM_24
        assert (int(before["max_seqlen"][0]) < longest(before)[0]) is too_small
        assert same(before, after) is not too_small  # right metadata: as before
        assert same({**before, "max_seqlen": 0}, {**after, "max_seqlen": 0})


# --- states


@pytest.mark.parametrize("version", VERSIONS[::2])
def test_needed_then_applied(version: str, tmp_path: Path) -> None:
    states.check_needed_then_applied("nemo/padded-params", version, tmp_path)


def test_releases_beyond_the_range_are_left_alone(tmp_path: Path) -> None:
    states.check_elsewhere("nemo/padded-params", "2.7.3", tmp_path)


@pytest.mark.parametrize(
    ("padded", "expected"), [("cu_seqlens", State.FIXED_UPSTREAM), ("longer", State.CONFLICT)]
)
def test_params_that_are_padded_already_are_left_alone(padded: str, expected: State, tmp_path: Path) -> None:
    """Written in another order than the patch writes them; other lengths are no fix."""
    call, qkv, longest = "return PackedSeqParams(", 'qkv_format="thd",', "max_seqlen_q=max_seqlen,"
    changes = [qkv, "", call, call + qkv]
    changes += [longest, f"cu_seqlens_q_padded={padded}, cu_seqlens_kv_padded={padded}, {longest}"]
    found = states.replaced("nemo/padded-params", "2.7.3", tmp_path, f"{MODEL}/base.py", *changes)
    assert found.state is expected

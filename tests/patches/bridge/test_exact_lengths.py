"""`exact-lengths`: the real data set and the real `get_packed_seq_params`, one after the other."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.patches.bridge.real_code import (
    EOS,
    GPT_STEP,
    PARAMS,
    SHAPES,
    is_06,
    load,
    pack,
    packed_dataset,
    step_stand_ins,
)

PATCH = ("exact-lengths",)
FIELDS = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")


def params(version: str, patches: tuple[str, ...], batch: dict[str, Any], row: int = 0) -> Any:
    """The attention parameters of one pack of a collated batch."""
    module = load(version, PARAMS, patches, PackedSeqParams=lambda **fields: SimpleNamespace(**fields))
    one = {key: value[row : row + 1] for key, value in batch.items() if isinstance(value, torch.Tensor)}
    return module.get_packed_seq_params(one)


def padded_sequences(draw: random.Random, count: int, multiple: int) -> list[list[int]]:
    """Stored sequences, multiple + 1 tokens and so on long, that end in one EOS or many."""
    found = []
    for _ in range(count):
        length = multiple * draw.randint(1, 5) + 1
        real = draw.randint(1, length)
        found.append([draw.choice((EOS, 5, 6, 7)) for _ in range(real)] + [EOS] * (length - real))
    return found


def longest(cu_seqlens: torch.Tensor) -> int:
    return int((cu_seqlens[1:] - cu_seqlens[:-1]).max())


@pytest.mark.parametrize("version", SHAPES)
def test_attention_gets_the_lengths_in_memory(version: str, tmp_path: Path, draw: random.Random) -> None:
    rows = [pack(padded_sequences(draw, draw.randint(1, 6), 4)) for _ in range(3)]
    # ends in EOS that are none of the pads
    rows.append(pack([[5, 6, EOS, EOS, EOS], [7, EOS, EOS, EOS, 7]]))

    def of(patches: tuple[str, ...]) -> list[Any]:
        dataset = packed_dataset(version, patches, tmp_path / "p.npy", rows, 256, pad_seq_to_mult=4)
        batch = dataset.collate_fn([dataset[at] for at in range(len(rows))])
        return [params(version, patches, batch, at) for at in range(len(rows))]

    for row, found in zip(rows, of(PATCH), strict=True):
        starts = [*row["seq_start_id"], len(row["input_ids"])]
        ends = [end - at - 1 for at, end in enumerate(starts[1:])]
        for field in FIELDS:
            given = getattr(found, field).tolist()
            assert given[: len(ends) + 1] == [0, *ends]
            assert given == getattr(found, FIELDS[0]).tolist()
            assert all(end % 4 == 0 for end in given)
        assert int(found.max_seqlen_q) == int(found.max_seqlen_kv) == longest(found.cu_seqlens_q)
    broken = of(())[-1]
    assert broken.cu_seqlens_q.tolist() != broken.cu_seqlens_q_padded.tolist()
    assert broken.cu_seqlens_q.tolist()[:2] == [0, 2]  # two tokens that EOS follows, out of four


@pytest.mark.parametrize("version", SHAPES)
def test_lengths_are_exact_without_the_data_set_s_help(version: str) -> None:
    """Other data sets still bring guessed lengths: the parameters don't use them."""
    real, padded = torch.tensor([[0, 3, 7, -1]]).int(), torch.tensor([[0, 4, 12, -1]]).int()
    batch = {"cu_seqlens": padded, "cu_seqlens_unpadded": real, "max_seqlen": torch.tensor([[8]])}
    batch |= {"cu_seqlens_argmin": torch.tensor([[3]]), "cu_seqlens_unpadded_argmin": torch.tensor([[3]])}
    found = params(version, PATCH, batch)
    assert {tuple(getattr(found, field).tolist()) for field in FIELDS} == {(0, 4, 12)}
    assert params(version, (), batch).cu_seqlens_q.tolist() == [0, 3, 7]
    if is_06(version):
        batch = {"cu_seqlens_q": real[:, :3], "cu_seqlens_q_padded": padded[:, :3]}
        batch |= {"cu_seqlens_kv": real[:, :3], "cu_seqlens_kv_padded": padded[:, :3]}
        batch["max_seqlen_q"] = torch.tensor([[8]])
        found = params(version, PATCH, batch)
        assert {tuple(getattr(found, field).tolist()) for field in FIELDS} == {(0, 4, 12)}
        assert params(version, (), batch).cu_seqlens_q.tolist() == [0, 3, 7]
        assert "cu_seqlens_q_padded" in batch
        assert batch["cu_seqlens_q"] is not batch["cu_seqlens_q_padded"]  # the caller's batch stays as it was


@pytest.mark.parametrize("version", SHAPES)
@pytest.mark.parametrize("argmin", [None, 0, 3])
@pytest.mark.parametrize("sentinels", [0, 1, 3])
def test_a_row_ends_where_its_entries_do(version: str, argmin: int | None, sentinels: int) -> None:
    """The data set always leaves a -1 behind them; others need not, and then the least entry is the 0."""
    row = torch.tensor([[0, 4, 12, *[-1] * sentinels]]).int()
    batch = {"cu_seqlens": row, "max_seqlen": torch.tensor([[8]])}
    if argmin is not None:
        batch["cu_seqlens_argmin"] = torch.tensor([[3 if sentinels else argmin]])
    found = params(version, PATCH, batch)
    assert {tuple(getattr(found, field).tolist()) for field in FIELDS} == {(0, 4, 12)}
    lost = not sentinels and argmin != 3
    assert params(version, (), batch).cu_seqlens_q.tolist() == ([] if lost else [0, 4, 12])


@pytest.mark.parametrize("version", [version for version in SHAPES if version >= "0.5.1"])
def test_the_split_is_given_all_of_a_row_without_sentinel(version: str) -> None:
    row = torch.tensor([0, 4, 12]).int()
    for patches, whole in ((PATCH, True), ((), False)):
        step = load(version, GPT_STEP, patches, **step_stand_ins(0))
        trimmed = step._trim_padded_cu_seqlens_for_cp(row, torch.tensor([[0]]))
        assert trimmed.tolist() == ([0, 4, 12] if whole else [])


@pytest.mark.parametrize("version", SHAPES)
def test_cuda_graphs_and_metadata_that_know_less(version: str, tmp_path: Path, draw: random.Random) -> None:
    """The metadata are those of other packs: shorter sequences, fuller packs, fewer samples."""
    rows = [pack([*padded_sequences(draw, 3, 4), [7] * 41]) for _ in range(3)]
    rows.append(pack([[7] * 5]))  # behind it a segment of 252 up to the pack size
    metadata = tmp_path / "metadata.json"
    metadata.write_text(
        json.dumps([{"max_samples_per_bin": 6, "dataset_max_seqlen": 8, "min_packed_seqlen": 250}])
    )
    options = {"pad_cu_seqlens": True, "pad_to_max_length": True, "pack_metadata_file_path": str(metadata)}

    def of(patches: tuple[str, ...]) -> list[Any]:
        dataset = packed_dataset(
            version, patches, tmp_path / "p.npy", rows, 256, pad_seq_to_mult=4, **options
        )
        batch = dataset.collate_fn([dataset[at] for at in range(len(rows))])
        return [params(version, patches, batch, at) for at in range(len(rows))]

    for found in of(PATCH):
        assert len({tuple(getattr(found, field).tolist()) for field in FIELDS}) == 1
        assert len(found.cu_seqlens_q) == 6 + 2
        assert found.cu_seqlens_q[-1] == 256
        assert int(found.max_seqlen_q) == 252  # of the longest of all: one graph serves every batch
    for found in of(()):
        assert int(found.max_seqlen_q) < longest(found.cu_seqlens_q_padded)  # the defect


@pytest.mark.parametrize("version", SHAPES)
def test_right_metadata_decide_as_before(version: str, tmp_path: Path) -> None:
    rows = [pack([[7] * 9, [7] * 5]), pack([[7] * 5])]
    metadata = tmp_path / "metadata.json"
    metadata.write_text(
        json.dumps([{"max_samples_per_bin": 2, "dataset_max_seqlen": 40, "min_packed_seqlen": 4}])
    )
    options = {"pad_cu_seqlens": True, "pad_to_max_length": True, "pack_metadata_file_path": str(metadata)}
    for patches in (PATCH, ()):
        dataset = packed_dataset(version, patches, tmp_path / "p.npy", rows, 64, **options)
        batch = dataset.collate_fn([dataset[0]])
        assert batch["max_seqlen_q" if is_06(version) else "max_seqlen"].flatten().tolist() == [60]


def collated_ends(
    version: str, patches: tuple[str, ...], path: Path, sequences: list[list[int]], size: int, multiple: int
) -> list[int]:
    dataset = packed_dataset(version, patches, path, [pack(sequences)], size, pad_seq_to_mult=multiple)
    batch = dataset.collate_fn([dataset[0]])
    found: list[int] = params(version, patches, batch).cu_seqlens_kv_padded.tolist()
    assert found[-1] == batch["tokens"].shape[1] <= size
    return found


@pytest.mark.parametrize("version", SHAPES)
@pytest.mark.parametrize(("multiple", "size"), [(32, 1024), (48, 1000), (6, 1000), (4, 1002), (1, 1002)])
def test_the_segment_behind_the_last_sequence(
    version: str, multiple: int, size: int, tmp_path: Path, draw: random.Random
) -> None:
    sequences = padded_sequences(draw, draw.randint(1, 3), multiple)
    found = collated_ends(version, PATCH, tmp_path / "p.npy", sequences, size, multiple)
    assert all(end % multiple == 0 for end in found)


@pytest.mark.parametrize("version", SHAPES)
@pytest.mark.parametrize(("multiple", "size", "stored", "total"), [(6, 1000, 13, 48), (4, 1002, 997, 1000)])
def test_a_segment_that_did_not_fit(
    version: str, multiple: int, size: int, stored: int, total: int, tmp_path: Path
) -> None:
    ends = [
        collated_ends(version, patches, tmp_path / "p.npy", [[7] * stored], size, multiple)
        for patches in (PATCH, ())
    ]
    assert ends[0] == [0, stored - 1, total]
    assert ends[1][-1] % multiple


@pytest.mark.parametrize("version", SHAPES)
def test_a_full_pack_of_an_odd_size_is_not_cut(version: str, tmp_path: Path) -> None:
    rows = [pack([[7] * 97, [7] * 5])]  # 100 tokens, which 16 does not divide
    dataset = packed_dataset(version, PATCH, tmp_path / "p.npy", rows, 102, pad_seq_to_mult=4)
    assert dataset.collate_fn([dataset[0]])["tokens"].shape == (1, 100)
    rows = [pack([[7] * 99])]  # a user's own file, 98 tokens
    dataset = packed_dataset(version, PATCH, tmp_path / "p.npy", rows, 99, pad_seq_to_mult=4)
    assert dataset.collate_fn([dataset[0]])["tokens"].shape == (1, 98)


@pytest.mark.parametrize("version", SHAPES)
def test_without_a_multiple_tokens_and_masks_are_as_before(
    version: str, tmp_path: Path, draw: random.Random
) -> None:
    rows = [pack([[7] * draw.randint(2, 40) for _ in range(draw.randint(1, 5))]) for _ in range(3)]
    batches = []
    for patches in (PATCH, ()):
        dataset = packed_dataset(version, patches, tmp_path / "p.npy", rows, 256)
        batches.append(dataset.collate_fn([dataset[at] for at in range(3)]))
    assert batches[0].keys() == batches[1].keys()
    for key, value in batches[0].items():
        same = (
            torch.equal(value, batches[1][key])
            if isinstance(value, torch.Tensor)
            else value == batches[1][key]
        )
        assert same, key


@pytest.mark.parametrize("version", ["0.4.0", "0.4.2", "0.5.0"])
def test_parquet_data_sets_know_their_multiple(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    parquet = ModuleType("packed_parquet")
    parquet.__dict__["GPTSFTPackedParquetDataset"] = lambda **options: given.append(options)
    parquet.__dict__["is_packed_parquet_spec"] = lambda _: True
    monkeypatch.setitem(sys.modules, "megatron.bridge.data.datasets.packed_parquet", parquet)
    for patches in (PATCH, ()):
        module = load(version, "megatron/bridge/data/datasets/sft.py", patches)
        module.create_sft_dataset("packs.idx.parquet", None, pad_seq_to_mult=12)
    assert [options.get("pad_seq_to_mult") for options in given] == [12, None]

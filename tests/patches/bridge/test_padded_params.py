"""`padded-params` before 0.3: the real get_packed_seq_params, and max_seqlen of the real packed data set."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.patches.bridge.before_03 import EOS, RELEASE, VERSIONS, Bridge, Tokenizer, bridge
from tests.patches.bridge.real_code import pack

PATCH = ("padded-params",)
FIELDS = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")


def dataset(
    found: Bridge, folder: Path, rows: list[dict[str, Any]], size: int, metadata: dict[str, int]
) -> Any:
    """The real data set of a file with these rows, with cu_seqlens of one length for all packs."""
    np.save(folder / "packs.npy", np.array(rows, dtype=object), allow_pickle=True)
    (folder / "metadata.json").write_text(json.dumps([metadata]))
    options: dict[str, Any] = {"pack_metadata_file_path": folder / "metadata.json", "pad_cu_seqlens": True}
    if found.version != RELEASE:
        options |= {"prompt_template": "{input} {output}", "label_key": "output", "truncation_field": "input"}
    path = str(folder / "packs.npy")
    return found.sft.GPTSFTPackedDataset(
        path, Tokenizer(), max_seq_length=size, pad_to_max_length=True, **options
    )


def collated(made: Any, *which: int) -> dict[str, Any]:
    """A batch of packs."""
    batch: dict[str, Any] = made.collate_fn([made[at] for at in which])
    return batch


@pytest.mark.parametrize("version", VERSIONS)
def test_all_lengths_are_the_padded_ones(version: str, draw: random.Random) -> None:
    lengths = [4 * draw.randint(1, 9) for _ in range(draw.randint(1, 9))]
    ends = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    with bridge(version, PATCH) as found:
        for sentinels, argmin in ((1, True), (3, True), (3, False), (0, True), (0, False)):
            cu_seqlens = torch.tensor([ends + [-1] * sentinels], dtype=torch.int32)
            batch = {"cu_seqlens": cu_seqlens, "max_seqlen": torch.tensor([[max(lengths)]])}
            if argmin:
                batch["cu_seqlens_argmin"] = torch.argmin(cu_seqlens, dim=1, keepdim=True)
            params = found.gpt_step.get_packed_seq_params(batch)
            assert params.qkv_format == "thd"
            for name in FIELDS:
                assert getattr(params, name).tolist() == ends
                assert getattr(params, name).dtype == torch.int32
            assert int(params.max_seqlen_q) == int(params.max_seqlen_kv) == max(lengths)


@pytest.mark.parametrize("version", VERSIONS)
def test_unpatched_there_are_two_lengths_only(version: str) -> None:
    batch = {"cu_seqlens": torch.tensor([[0, 4, 12, -1]]), "max_seqlen": torch.tensor([[8]])}
    with bridge(version, ()) as found:
        params = found.gpt_step.get_packed_seq_params({**batch, "cu_seqlens_argmin": torch.tensor([[3]])})
        assert params.cu_seqlens_q.tolist() == [0, 4, 12]
        assert params.cu_seqlens_q_padded is None
        whole = {**batch, "cu_seqlens": torch.tensor([[0, 4, 12]])}
        assert found.gpt_step.get_packed_seq_params(whole).cu_seqlens_q.tolist() == []


@pytest.mark.parametrize("version", VERSIONS)
def test_max_seqlen_covers_what_is_there(version: str, tmp_path: Path, draw: random.Random) -> None:
    """The metadata are another file's: shorter sequences, fuller packs."""
    rows = [pack([[7] * (4 * draw.randint(1, 3) + 1) for _ in range(4)] + [[7] * 41]) for _ in range(3)]
    rows.append(pack([[7] * 5]))  # behind it there are 252 up to the pack's size
    stale = {"max_samples_per_bin": 6, "dataset_max_seqlen": 8, "min_packed_seqlen": 250}
    with bridge(version, PATCH) as found:
        made = dataset(found, tmp_path, rows, 256, stale)
        for which in ((0,), (1,), (3,), (0, 2)):
            # the same for every batch, as CUDA graphs ask for
            assert collated(made, *which)["max_seqlen"].flatten().tolist() == [252] * len(which)
    with bridge(version, ()) as found:
        batch = collated(dataset(found, tmp_path, rows, 256, stale), 3)
        assert int(batch["max_seqlen"]) < int(batch["cu_seqlens"].diff(dim=1).max())


@pytest.mark.parametrize("version", VERSIONS)
def test_right_metadata_decide_as_before(version: str, tmp_path: Path) -> None:
    rows = [pack([[7] * 9, [7] * 5]), pack([[7] * 21, [7] * 25])]
    known = {"max_samples_per_bin": 2, "dataset_max_seqlen": 60, "min_packed_seqlen": 12}
    for patches in (PATCH, ()):
        with bridge(version, patches) as found:
            made = dataset(found, tmp_path, rows, 64, known)
            assert collated(made, 0)["max_seqlen"].flatten().tolist() == [60]


@pytest.mark.parametrize("version", VERSIONS)
def test_without_cuda_graphs_it_is_the_batch_s_own(version: str, tmp_path: Path) -> None:
    rows = [pack([[7] * 9, [7] * 5, [EOS] * 3]), pack([[7] * 21, [7] * 25])]
    for patches in (PATCH, ()):
        with bridge(version, patches) as found:
            made = dataset(found, tmp_path, rows, 64, {"max_samples_per_bin": 9, "dataset_max_seqlen": 9})
            made.pad_cu_seqlens = made.pad_to_max_length = False
            assert [int(collated(made, at)["max_seqlen"]) for at in (0, 1)] == [8, 24]
            assert [int(collated(made, at)["cu_seqlens"].diff(dim=1).max()) for at in (0, 1)] == [8, 24]

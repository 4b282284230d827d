"""`prepad` before 0.3: the real builder packs files of samples, for one context parallel size or another."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.patches.bridge.before_03 import (
    EOS,
    RELEASES,
    VERSIONS,
    Tokenizer,
    bridge,
    builder,
    draw_samples,
    sequences,
    write_samples,
)

PATCH = ("prepad",)
SIZE = 96


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("cp", [2, 3, 4])
def test_packs_can_be_split_and_train_on_the_same(
    version: str, cp: int, tmp_path: Path, draw: random.Random
) -> None:
    samples = {name: draw_samples(draw, 40, 60) for name in ("training", "validation")}
    write_samples(tmp_path, **samples)
    multiple = 2 * cp
    with bridge(version, PATCH, cp=cp) as found:
        made = builder(found, tmp_path, SIZE)
        datasets = made.build()
        assert {
            p.parent.name for p in (made.train_path_packed, made.validation_path_packed, made.pack_metadata)
        } == {f"numbers_pad_seq_to_mult{multiple}"}
        metadata = json.loads(made.pack_metadata.read_text())
        assert [entry["pad_seq_to_mult"] for entry in metadata] == [multiple, multiple]
        for dataset, written in zip(datasets, samples.values(), strict=False):
            by_first = {sample.tokens[0]: sample for sample in written}
            for pack in dataset.indexed_dataset:
                for tokens, mask in sequences(pack):
                    assert (len(tokens) - 1) % multiple == 0
                    sample = by_first.pop(tokens[0])
                    real = len(sample.tokens)
                    assert tokens == sample.tokens + [EOS] * (len(tokens) - real)
                    assert len(tokens) - real < multiple
                    # aligned with the labels: the real EOS is a target, no pad is
                    targets = [at + 1 for at, value in enumerate(mask[:-1]) if value]
                    assert targets == list(range(len(sample.context), real))
            assert not by_first
    with bridge(version, (), cp=cp) as found:
        packs = builder(found, tmp_path, SIZE).build()[0].indexed_dataset
        assert any((len(tokens) - 1) % multiple for pack in packs for tokens, _ in sequences(pack))


@pytest.mark.parametrize("version", VERSIONS)
def test_without_context_parallelism_nothing_changes(
    version: str, tmp_path: Path, draw: random.Random
) -> None:
    samples = {name: draw_samples(draw, 30, 60) for name in ("training", "validation")}
    written = []
    for number, patches in enumerate((PATCH, ())):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_samples(folder, **samples)
        with bridge(version, patches) as found:
            np.random.seed(7)
            made = builder(found, folder, SIZE)
            dataset = made.build()[0]
            batch = dataset.collate_fn([dataset[0]])
        files = [made.train_path_packed, made.validation_path_packed, made.pack_metadata]
        files = [(path.relative_to(folder), path.read_bytes()) for path in files]
        written.append((files, {k: v.tolist() for k, v in batch.items() if isinstance(v, torch.Tensor)}))
    assert written[0] == written[1]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_multiple_of_one_s_own_without_context_parallelism(
    version: str, tmp_path: Path, draw: random.Random
) -> None:
    write_samples(tmp_path, training=draw_samples(draw, 20, 60), validation=draw_samples(draw, 5, 60))
    with bridge(version, PATCH) as found:
        made = builder(found, tmp_path, SIZE, pad_seq_to_mult=8)
        packs = made.build()[0].indexed_dataset
        assert made.train_path_packed.parent.name == "numbers_pad_seq_to_mult8"
        assert all((len(tokens) - 1) % 8 == 0 for pack in packs for tokens, _ in sequences(pack))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_for_another_size_is_refused(version: str, tmp_path: Path, draw: random.Random) -> None:
    write_samples(tmp_path, training=draw_samples(draw, 20, 60), validation=draw_samples(draw, 5, 60))
    with bridge(version, PATCH, cp=2) as found:
        made = builder(found, tmp_path, SIZE, pad_seq_to_mult=4)
        made.build()
    given = {
        "packed_train_data_path": str(made.train_path_packed),
        "packed_metadata_path": made.pack_metadata,
    }
    lengths = [
        len(s[0]) - 1 for p in np.load(made.train_path_packed, allow_pickle=True) for s in sequences(p)
    ]
    first = next(length for length in lengths if length % 8)
    with bridge(version, PATCH, cp=4) as found, pytest.raises(ValueError, match="does not fit") as error:
        builder(found, tmp_path, SIZE, **given).build()
    for part in (str(made.train_path_packed), "context_parallel_size=4", f" {first}", "8", "pad_seq_to_mult"):
        assert part in str(error.value)
    for fitting in (1, 2):
        with bridge(version, PATCH, cp=fitting) as found:
            assert builder(found, tmp_path, SIZE, **given).build()[0] is not None
    with bridge(version, (), cp=4) as found:  # silently taken
        assert builder(found, tmp_path, SIZE, **given).build()[0] is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_knobs_that_do_not_fit(version: str, tmp_path: Path) -> None:
    with bridge(version, PATCH, cp=4) as found:
        with pytest.raises(ValueError, match=r"pad_seq_to_mult=12 is not a multiple of 8"):
            builder(found, tmp_path, SIZE, pad_seq_to_mult=12)
        with pytest.raises(ValueError, match=r"pad_seq_to_mult=0 must be at least 1"):
            builder(found, tmp_path, SIZE, pad_seq_to_mult=0)
        with pytest.raises(ValueError, match=r"packed_sequence_size=100 is not a multiple of 8"):
            builder(found, tmp_path, 100)
        with pytest.raises(ValueError, match=r"seq_length=4 is less than pad_seq_to_mult=8"):
            builder(found, tmp_path, SIZE, seq_length=4)
        builder(found, tmp_path, -1, pad_seq_to_mult=12)  # nothing is packed
        specs = found.packed_sequence.PackedSequenceSpecs(packed_sequence_size=SIZE)
        found.packed_sequence.resolve_pad_seq_to_mult(specs, 4, 16)
        assert specs.pad_seq_to_mult == 16
        with pytest.raises(ValueError, match=r"packed_sequence_size=96 is not a multiple of 64"):
            found.finetuning_dataset._resolve_padding(specs, SIZE)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_derived_multiple_follows_the_run(version: str) -> None:
    with bridge(version, PATCH) as found:
        specs = found.packed_sequence.PackedSequenceSpecs(packed_sequence_size=SIZE)
        resolve = found.packed_sequence.resolve_pad_seq_to_mult
        for cp, sp, needed in ((2, 1, 4), (4, 1, 8), (2, 8, 8), (3, 4, 12), (1, 8, 1), (2, 3, 12)):
            assert resolve(specs, cp, sp) == needed
            assert specs.pad_seq_to_mult == (needed if cp > 1 else None)
        specs.pad_seq_to_mult = 24
        assert resolve(specs, 3, 4) == 24
        with pytest.raises(ValueError, match="pad_seq_to_mult=24"):
            resolve(specs, 5, 1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("given", [None, 16])
def test_packs_are_collated_to_what_ranks_can_split(
    version: str, given: int | None, tmp_path: Path, draw: random.Random
) -> None:
    write_samples(tmp_path, training=draw_samples(draw, 20, 40), validation=draw_samples(draw, 5, 40))
    options = {} if given is None else {"pad_seq_length_to_mult": given}
    with bridge(version, PATCH, cp=3) as found:
        made = builder(found, tmp_path, 240, options=options)
        assert (made._pad_seq_to_mult, made._pack_length_to_mult) == (6, 6)
        dataset = made.build()[0]
        totals = {
            dataset.collate_fn([dataset[at]])["tokens"].shape[1] for at in range(len(dataset.indexed_dataset))
        }
        assert all(total % 48 == 0 or total == 240 for total in totals)


@pytest.mark.parametrize("version", VERSIONS)
def test_samples_keep_their_types(version: str, draw: random.Random) -> None:
    makers: tuple[Any, ...] = (list, np.array, torch.tensor)
    with bridge(version, PATCH) as found:
        for make in makers:
            for stored in range(1, 30):
                ids = [draw.randint(10, 99) for _ in range(stored)]
                mask = [draw.random() < 0.5 for _ in ids]
                sample = {
                    "input_ids": make(ids),
                    "loss_mask": make(mask),
                    "context_ids": make(ids[:3]),
                    "kept": 1,
                }
                before = {key: value for key, value in sample.items() if key != "kept"}
                [padded] = found.packed_sequence._prepad([sample], 4, 18, EOS)
                length = min(-(-(stored - 1) // 4) * 4, 16) + 1
                assert [int(x) for x in padded["input_ids"]] == (ids + [EOS] * 99)[:length]
                assert [bool(x) for x in padded["loss_mask"]] == (mask + [False] * 99)[:length]
                assert len(padded["context_ids"]) == length
                assert padded["kept"] == 1
                for key, value in before.items():
                    assert sample[key] is value  # the caller's stay as they were
                    assert type(padded[key]) is type(value)
                    assert getattr(padded[key], "dtype", None) == getattr(value, "dtype", None)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_too_long_is_counted(version: str, caplog: pytest.LogCaptureFixture) -> None:
    samples = [{"input_ids": [10] * n, "answer_start_idx": 1} for n in (3, 9, 10, 11, 40)]
    with bridge(version, PATCH) as found:
        padded = found.packed_sequence._prepad(samples, 4, 10, EOS)
        assert [len(sample["input_ids"]) for sample in padded] == [5, 9, 9, 9, 9]
        assert [sum(sample["loss_mask"]) for sample in padded] == [2, 8, 8, 8, 8]
        assert "3 of 5 samples were truncated to 9 tokens" in caplog.text
        for multiple in (0, -4, 11):
            with pytest.raises(ValueError, match="pad_seq_to_mult"):
                found.packed_sequence._prepad(samples, multiple, 10, EOS)
        with pytest.raises(ValueError, match="loss mask of 2"):
            found.packed_sequence._prepad([{"input_ids": [1, 2, 3], "loss_mask": [1, 1]}], 4, 10, EOS)
        for unset in (None, 1):
            assert found.packed_sequence._prepad(samples, unset, 10, EOS) is samples


@pytest.mark.parametrize("version", VERSIONS)
def test_loss_on_the_whole_text(version: str, tmp_path: Path, draw: random.Random) -> None:
    """Whether the EOS at the end of a sequence is its own or a pad, its tokens alone don't tell."""
    own = [[11, 12, 13, EOS], [14, EOS, 15, EOS], [16, 17, 18, 19, EOS]]
    cut = [[21, 22, 23], [24, EOS, 25], [26, 27, 28, 29, 30]]
    with bridge(version, PATCH, cp=2) as found:
        samples = [{"input_ids": ids, "loss_mask": [False] + [True] * (len(ids) - 1)} for ids in own + cut]
        padded = found.packed_sequence._prepad(samples, 4, 16, EOS)
        masks = found.packing_utils._label_masks(padded, range(len(padded)), None)
        starts = np.cumsum([0, *(len(sample["input_ids"]) for sample in padded)]).tolist()
        example = {
            "input_ids": [token for sample in padded for token in sample["input_ids"]],
            "loss_mask": [value for mask in masks for value in mask],
            "seq_boundaries": starts,
        }
        rows = np.array([{**example, "seq_start_id": starts[:-1]}], dtype=object)
        np.save(tmp_path / "packs.npy", rows, allow_pickle=True)
        options = {"max_seq_length": 64, "answer_only_loss": False, **_template(found)}
        dataset = found.sft.GPTSFTPackedDataset(str(tmp_path / "packs.npy"), Tokenizer(), **options)
        mask = dataset._build_loss_mask(dataset[0]).tolist()
    for ids, stored, start in zip(own + cut, padded, starts, strict=False):
        here, mask = mask[: len(stored["input_ids"]) - 1], mask[len(stored["input_ids"]) - 1 :]
        # everything but what follows an EOS, and nothing behind the sample's own tokens
        assert here == [float(at + 1 < len(ids) and ids[at] != EOS) for at in range(len(here))], (ids, start)


def _template(found: Any) -> dict[str, str]:
    if found.version in RELEASES[:1]:
        return {}
    return {"prompt_template": "{input} {output}", "label_key": "output", "truncation_field": "input"}

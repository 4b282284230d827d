"""`prepad` in the data module: the multiple is derived, each pack's name says it, and packs are checked."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import lcm
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.patches.nemo.stack import (
    DATA,
    VERSIONS,
    Lines,
    Tokenizer,
    data_module,
    datasets,
    packing,
    save_packs,
    step,
    trainer,
)
from tests.patches.real_code import define
from tests.patches.thd import Index, Ranks

SIZE = 128
PATHS = ("train_path_packed", "validation_path_packed", "pack_metadata")
KNOB = "PackedSequenceSpecs.pad_seq_to_mult"


@pytest.fixture
def root(tmp_path: Path, rng: random.Random) -> Path:
    """A data set of a few dozen samples of all lengths."""
    for name, count in (("training", 60), ("validation", 20), ("test", 2)):
        rows = []
        for number in range(count):
            words = [str(rng.randint(2, 40)) for _ in range(rng.randint(2, 60))]
            rows.append(json.dumps({"input": f"{100 + number} {words[0]}", "output": " ".join(words[1:])}))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return tmp_path


@pytest.fixture
def make(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`make(version, patched, trainer, **specs)`: a data module on `root`, ready to prepare and load."""

    def made(version: str, patched: bool, where: Any, kind: Any = None, **specs: Any) -> Any:
        code = packing(version, patched)
        module = ModuleType("packed_sequence")
        module.__dict__["prepare_packed_sequence_data"] = code["prepare_packed_sequence_data"]
        monkeypatch.setitem(sys.modules, "nemo.collections.llm.gpt.data.packed_sequence", module)
        kwargs = specs.pop("dataset_kwargs", None)
        options = {"packed_sequence_size": SIZE, "tokenizer_model_name": "model"} | specs
        data = (kind or data_module(version, patched))(
            dataset_root=root,
            seq_length=SIZE,
            tokenizer=Tokenizer(),
            micro_batch_size=1,
            packed_sequence_specs=code["PackedSequenceSpecs"](**options),
            dataset_kwargs=kwargs,
        )
        data.trainer, data.data_sampler = where, SimpleNamespace()
        return data

    return made


def intervals(batch: dict[str, Any]) -> list[int]:
    bounds = [value for value in batch["cu_seqlens"][0].tolist() if value >= 0]
    assert bounds[-1] == batch["tokens"].size(1)
    return [b - a for a, b in pairwise(bounds)]


# --- the multiple


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("where", "multiple"),
    [
        (None, 1),
        (SimpleNamespace(strategy="auto"), 1),
        (trainer(1), 1),
        (trainer(1, 8, True), 1),
        (trainer(2), 4),
        (trainer(2, 8), 4),
        (trainer(2, 8, True), 8),
        (trainer(3, 4, True), 12),
        (trainer(4, 2, True), 8),
        (trainer(8), 16),
    ],
)
def test_the_multiple_is_derived_from_the_strategy(
    version: str, where: Any, multiple: int, make: Any
) -> None:
    assert make(version, True, where).pad_seq_to_mult == multiple


@pytest.mark.parametrize("version", VERSIONS)
def test_a_multiple_that_is_set_counts_where_it_fits(version: str, make: Any) -> None:
    for cp_size, multiple in ((1, 1), (1, 6), (2, 4), (2, 12), (4, 32)):
        assert make(version, True, trainer(cp_size), pad_seq_to_mult=multiple).pad_seq_to_mult == multiple
    for cp_size, multiple, advice in ((2, 1, "4"), (2, 6, "4"), (4, 4, "8")):
        data = make(version, True, trainer(cp_size), pad_seq_to_mult=multiple)
        for use in (data.prepare_data, data.train_dataloader, data.val_dataloader):
            with pytest.raises(ValueError, match=f"{KNOB}={multiple} .*set it to {advice}"):
                use()
    with pytest.raises(ValueError, match="must be at least 1"):
        make(version, True, trainer(1), pad_seq_to_mult=0).prepare_data()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_multiple_is_part_of_every_name(version: str, make: Any) -> None:
    def names(patched: bool, cp_size: int) -> list[str]:
        data = make(version, patched, trainer(cp_size))
        return [getattr(data, path).name for path in PATHS]

    assert names(True, 1) == names(False, 1) == names(False, 2)  # upstream picks up any pack
    assert names(True, 2) == [
        f"training_{SIZE}_pad_seq_to_mult4.npy",
        f"validation_{SIZE}_pad_seq_to_mult4.npy",
        f"{SIZE}_pad_seq_to_mult4_metadata.jsonl",
    ]
    assert len({name for cp_size in (1, 2, 4, 8) for name in names(True, cp_size)}) == 12


# --- packing and loading


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("where", [trainer(2), trainer(2, 4, True), trainer(4, 2, True)])
@pytest.mark.parametrize("pad_cu_seqlens", [False, True])
def test_what_is_packed_can_be_split(
    version: str, where: Any, pad_cu_seqlens: bool, make: Any, ranks: Ranks, index: Index
) -> None:
    cp_size, tp_size = where.strategy.context_parallel_size, where.strategy.tensor_model_parallel_size
    options: dict[str, Any] = {"pad_cu_seqlens": pad_cu_seqlens}
    if pad_cu_seqlens:
        options["dataset_kwargs"] = {"pad_to_max_length": True}
    data = make(version, True, where, **options)
    data.prepare_data()
    batches = [*data.train_dataloader(), *data.val_dataloader()]
    assert len(batches) > 2
    for batch in batches:
        assert [length % (2 * cp_size) for length in intervals(batch)] == [0] * len(intervals(batch))
        assert batch["tokens"].size(1) % (cp_size * tp_size) == 0
        assert batch["tokens"].size(1) % (16 * cp_size) == 0
        parts = [step(version, True)(iter([batch])) for _ in ranks.each(cp_size)]
        assert sum(int(part["loss_mask"].sum()) for part in parts) == int(batch["loss_mask"].sum())
    (training, validation) = json.loads(data.pack_metadata.read_text(encoding="utf-8"))
    assert training["pad_seq_to_mult"] == validation["pad_seq_to_mult"] == data.pad_seq_to_mult

    before = make(version, False, where, **options)
    before.prepare_data()
    lengths = [length for batch in before.train_dataloader() for length in intervals(batch)]
    assert [length for length in lengths if length % (2 * cp_size)]


@pytest.mark.parametrize("version", VERSIONS)
def test_one_context_parallel_rank_packs_and_loads_as_before(
    version: str, make: Any, root: Path, rng: random.Random
) -> None:
    draw, made = rng.getrandbits(32), []
    for patched in (False, True):
        np.random.seed(draw)
        data = make(version, patched, trainer(1, 4, True))
        data.prepare_data()
        files = {file.name: file.read_bytes() for file in (root / "packed" / "model").iterdir()}
        batches = [*data.train_dataloader(), *data.val_dataloader()]
        plain = make(version, patched, trainer(2), packed_sequence_size=-1).train_dataloader()
        made.append((files, json.dumps(batches, default=torch.Tensor.tolist), plain.dataset.__len__()))
        shutil.rmtree(root / "packed")
    assert made[0] == made[1]
    assert sorted(made[0][0]) == [f"{SIZE}_metadata.jsonl", f"training_{SIZE}.npy", f"validation_{SIZE}.npy"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_second_loader_of_one_dataset_rounds_likewise(version: str, make: Any) -> None:
    for kwargs in ({}, {"pad_seq_length_to_mult": 24}):
        data = make(version, True, trainer(2, 5, True), packed_sequence_size=240, dataset_kwargs=kwargs)
        data.prepare_data()
        rounded = {data.train_dataloader().dataset.pad_seq_length_to_mult for _ in range(3)}
        assert rounded == {lcm(2 * kwargs.get("pad_seq_length_to_mult", 16), 4, 2 * 5)}


@pytest.mark.parametrize("version", VERSIONS)
def test_pack_sizes_that_cannot_be_split_are_refused(version: str, make: Any) -> None:
    for where, size, multiple in ((trainer(2), 126, 4), (trainer(2, 3, True), 128, 12)):
        data = make(version, True, where, packed_sequence_size=size)
        data.prepare_data()
        for use in (data.train_dataloader, data.val_dataloader):
            with pytest.raises(ValueError, match=f"multiple of {multiple}.*packed_sequence_size"):
                use()
    assert make(version, True, trainer(2)).test_dataloader().mode == "test"


# --- packs of the user's own


def own(folder: Path, runtime_lengths: Sequence[int]) -> dict[str, Any]:
    """Where a pack of sequences that run at these lengths lies, and its metadata."""
    starts = [sum(length + 1 for length in runtime_lengths[:i]) for i in range(len(runtime_lengths))]
    stored = sum(runtime_lengths) + len(runtime_lengths)
    good = {"input_ids": [5] * 9, "loss_mask": [1] * 9, "seq_start_id": [0]}
    made = {"input_ids": list(range(3, 3 + stored)), "loss_mask": [True] * stored, "seq_start_id": starts}
    about = folder / "own_metadata.jsonl"
    about.write_text(json.dumps([{"max_samples_per_bin": 9, "dataset_max_seqlen": SIZE}]), encoding="utf-8")
    file = save_packs(folder / "own.npy", [good, made])
    names = ("packed_train_data_path", "packed_val_data_path", "packed_metadata_path")
    return dict(zip(names, (str(file), str(file), str(about)), strict=True))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_pack_that_does_not_fit_is_refused(version: str, make: Any, tmp_path: Path) -> None:
    paths = own(tmp_path, [8, 13, 20, 6])
    data = make(version, True, trainer(2, 3, True), packed_sequence_size=144, **paths)
    data.prepare_data()
    for use in (data.train_dataloader, data.val_dataloader):
        with pytest.raises(ValueError, match=f"own.npy .*pack 1 .* 13, 6 tokens.*multiples of 4.*{KNOB}=12"):
            use()
    before = make(version, False, trainer(2), **paths).train_dataloader()  # silent
    assert [length % 4 for length in intervals(list(before)[1])][:4] == [0, 1, 0, 2]
    for where, lengths in ((trainer(1), [8, 13, 20, 6]), (trainer(2), [8, 12, 20, 4])):
        batches = list(make(version, True, where, **own(tmp_path, lengths)).train_dataloader())
        assert intervals(batches[1])[:4] == lengths


@pytest.mark.parametrize("version", VERSIONS)
def test_a_pack_of_one_rank_is_not_picked_up_by_two(version: str, make: Any) -> None:
    for patched in (False, True):
        make(version, patched, trainer(1)).prepare_data()
        data = make(version, patched, trainer(2))
        data.prepare_data()
        lengths = [length for batch in data.train_dataloader() for length in intervals(batch)]
        assert any(length % 4 for length in lengths) is not patched


# --- what else hangs on the data module


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("patched", [False, True])
def test_upstream_still_sees_that_it_packs_in_prepare_data(
    version: str, patched: bool, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the text of the call in the stack: otherwise a barrier would wait forever."""
    name = "lightning_prepare_data"
    in_prepare_data = define("nemo", version, f"{DATA}/utils.py", False, name)[name]
    seen: list[bool] = []
    read = Lines.__init__

    def noticing(self: Lines, **options: Any) -> None:
        seen.append(in_prepare_data())
        read(self, **options)

    monkeypatch.setattr(Lines, "__init__", noticing)
    data = make(version, patched, trainer(2))
    data.prepare_data()
    assert seen == [True, True]
    data.test_dataloader()
    assert seen == [True, True, False]


@pytest.mark.parametrize("version", [version for version in VERSIONS if version > "2.4"])
def test_chat_packs_are_checked_too(version: str, make: Any, tmp_path: Path) -> None:
    name = "ChatDataModule"
    given = {"FineTuningDataModule": data_module(version, True), "lru_cache": lru_cache}
    given |= {"create_sft_dataset": datasets(version, True)["create_sft_dataset"]}
    kind = define("nemo", version, f"{DATA}/chat.py", False, name, **given)[name]
    data = make(version, True, trainer(2), kind, **own(tmp_path, [8, 12, 20]))
    assert [intervals(batch) for batch in data.train_dataloader()] == [[8, 24], [8, 12, 20, 24]]
    data.seq_length = 126  # the size of its validation packs
    with pytest.raises(ValueError, match="packs of 126 tokens"):
        data.val_dataloader()
    with pytest.raises(ValueError, match=r"own\.npy does not fit"):
        make(version, True, trainer(2), kind, **own(tmp_path, [8, 13, 20])).train_dataloader()


@pytest.mark.parametrize("version", VERSIONS)
def test_packs_that_a_data_module_brings_along_are_checked_too(version: str, make: Any, root: Path) -> None:
    name = "MLPerfGovReportDataModule"

    def kind(dataset_root: Path, **options: Any) -> Any:
        given: dict[str, Any] = {"FineTuningDataModule": data_module(version, True), "IOMixin": object}
        given |= {"Path": Path, "get_dataset_root": lambda _: root}
        made = define("nemo", version, f"{DATA}/mlperf_govreport.py", False, name, **given)[name]
        return made(**options)

    for stored, fits in ((SIZE + 1, True), (SIZE, False)):
        pack = {"input_ids": [5] * stored, "loss_mask": [1] * stored, "seq_start_id": [0]}
        for split in ("training", "validation"):
            save_packs(root / f"{split}.npy", [pack])
        for where in (trainer(1), trainer(2)):
            data = make(version, True, where, kind)
            data.prepare_data()
            if fits or where.strategy.context_parallel_size == 1:
                assert sum(intervals(next(iter(data.train_dataloader())))) == SIZE
            else:
                with pytest.raises(ValueError, match=rf"training\.npy .* {stored - 1} tokens"):
                    data.train_dataloader()

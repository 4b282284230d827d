# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from megatron.bridge.data import loaders
from megatron.bridge.data.packing.gpt_sft import GPTSFTPackedDataset
from megatron.bridge.training import gpt_step


REFUSED = r"mine\.npy.*multiple of 4, but 2 of 4 are not, the first ones 5 \(sequence 1\), 7 \(sequence 3\)"


@pytest.fixture(autouse=True)
def three_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline of three stages, on a CPU."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor, **_: tensor)
    monkeypatch.setattr(gpt_step, "is_pp_first_stage", lambda group: group.rank() == 0)
    monkeypatch.setattr(gpt_step, "is_pp_last_stage", lambda group: group.rank() == 2)
    monkeypatch.setattr(gpt_step, "get_batch_on_this_cp_rank", lambda batch, **_: batch)


def dataset(folder: Path, *lengths: int) -> Any:
    """A packed data set with one pack, whose sequences run at these lengths; each is stored with one token more."""
    starts = [sum(lengths[:n]) + n for n in range(len(lengths))]
    total = sum(lengths) + len(lengths)
    pack = {"input_ids": [7] * total, "loss_mask": [1] * total, "seq_start_id": starts}
    np.save(folder / "mine.npy", np.array([pack], dtype=object), allow_pickle=True)
    tokenizer: Any = SimpleNamespace(eos_id=2, eod=2)
    options: Any = {"prompt_template": "{input} {output}", "label_key": "output", "truncation_field": "input"}
    return GPTSFTPackedDataset(str(folder / "mine.npy"), tokenizer, max_seq_length=64, **options)


def config(cp_size: int) -> Any:
    """A run's configuration, in which the multiple was forgotten."""
    specs = SimpleNamespace(packed_sequence_size=64, pad_seq_to_mult=1)
    data = SimpleNamespace(enable_offline_packing=True, offline_packing_specs=specs)
    data.dataloader_type, data.drop_last = "single", True
    return SimpleNamespace(
        dataset=data,
        model=SimpleNamespace(context_parallel_size=cp_size, sequence_parallel=False),
        train=SimpleNamespace(num_epochs=None, global_batch_size=1, exit_signal=None),
    )


def read(batch: dict[str, Any], cp_size: int, stage: int) -> Any:
    """What a pipeline stage gets of a batch."""
    groups = SimpleNamespace(
        pp=SimpleNamespace(rank=lambda: stage, size=lambda: 3),
        cp=SimpleNamespace(rank=lambda: 0, size=lambda: cp_size),
    )
    return gpt_step.get_batch(iter([batch]), config(cp_size), pg_collection=groups)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_every_stage_refuses_a_pack_that_cannot_be_split(tmp_path: Path, stage: int) -> None:
    data = dataset(tmp_path, 8, 5, 12, 7)
    with pytest.raises(ValueError, match=REFUSED):
        read(data.collate_fn([data[0]]), 2, stage)


@pytest.mark.parametrize("stage", [0, 2])
def test_without_context_parallelism_it_is_valid(tmp_path: Path, stage: int) -> None:
    data = dataset(tmp_path, 8, 5, 12, 7)
    tokens, labels, *_ = read(data.collate_fn([data[0]]), 1, stage)
    assert (tokens is not None) == (stage == 0)
    assert (labels is not None) == (stage == 2)


def test_all_ranks_refuse_the_file_before_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = dataset(tmp_path, 8, 5, 12, 7)
    monkeypatch.setattr(loaders, "build_train_valid_test_datasets", lambda **_: (data, None, None))
    none: Any = None
    with pytest.raises(ValueError, match=REFUSED):
        loaders.build_train_valid_test_data_loaders(config(2), none, none, none)

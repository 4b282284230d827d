# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nemo.collections.llm.gpt.data import packed_sequence
from nemo.collections.llm.gpt.data.fine_tuning import FineTuningDataModule
from nemo.collections.llm.gpt.data.packed_sequence import PackedSequenceSpecs, prepare_packed_sequence_data

EOS, PACK_SIZE, MAX_LENGTH = 9, 64, 30


def example(number: int, length: int) -> dict[str, Any]:
    """A tokenized sample: the first third is context, the last token a real EOS that is a target."""
    tokens = [100 * number + position for position in range(length - 1)] + [EOS]
    context = length // 3
    mask = [0] * context + [1] * (length - context)
    return {"input_ids": tokens, "loss_mask": mask, "context_ids": tokens[:context], "answer_start_idx": context}


LENGTHS = [5, 6, 7, 8, 9, 17, 21, 21, 29, 30]


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Pack the samples and return the sub-sequences of all packs, and the metadata."""
    samples = [example(number, length) for number, length in enumerate(LENGTHS, start=1)]
    monkeypatch.setattr(packed_sequence, "create_sft_dataset", lambda **_: samples)

    def run(**options: Any) -> Any:
        prepare_packed_sequence_data(
            input_path=tmp_path / "training.jsonl",
            output_path=tmp_path / "packed.npy",
            output_metadata_path=tmp_path / "metadata.jsonl",
            packed_sequence_size=PACK_SIZE,
            tokenizer=SimpleNamespace(eos_id=EOS),
            max_seq_length=MAX_LENGTH,
            **options,
        )
        found = []
        for pack in np.load(tmp_path / "packed.npy", allow_pickle=True):
            bounds = [*pack["seq_start_id"], len(pack["input_ids"])]
            for start, end in zip(bounds[:-1], bounds[1:]):
                found.append((pack["input_ids"][start:end], pack["loss_mask"][start:end]))
        return sorted(found), json.loads((tmp_path / "metadata.jsonl").read_text())

    return run


@pytest.mark.unit
@pytest.mark.parametrize("multiple", [4, 6, 8])
def test_every_sequence_runs_at_a_multiple(packs: Callable[..., Any], multiple: int) -> None:
    found, metadata = packs(pad_seq_to_mult=multiple)
    assert len(found) == len(LENGTHS)
    assert [(len(tokens) - 1) % multiple for tokens, _ in found] == [0] * len(found)
    assert metadata[-1]["pad_seq_to_mult"] == multiple


@pytest.mark.unit
def test_pads_are_no_targets_and_real_targets_stay(packs: Callable[..., Any]) -> None:
    multiple = 4
    for (tokens, mask), length in zip(packs(pad_seq_to_mult=multiple)[0], LENGTHS):
        real = min(length, MAX_LENGTH // multiple * multiple + 1)
        assert tokens[: real - 1] == [tokens[0] + position for position in range(real - 1)]
        assert tokens[real:] == [EOS] * (len(tokens) - real)
        # the mask is aligned with the labels, which are the tokens behind: the real EOS is the last target
        context = length // 3
        assert [float(value) for value in mask] == [
            float(context - 1 <= position < real - 1) for position in range(len(mask))
        ]


@pytest.mark.unit
def test_without_a_multiple_lengths_stay(packs: Callable[..., Any]) -> None:
    assert [len(tokens) for tokens, _ in packs()[0]] == LENGTHS


def module(tmp_path: Path, cp_size: int, **specs: Any) -> Any:
    """A data module of a run with this context parallel size."""
    data = FineTuningDataModule(
        dataset_root=tmp_path,
        tokenizer=SimpleNamespace(),
        micro_batch_size=1,
        packed_sequence_specs=PackedSequenceSpecs(
            packed_sequence_size=PACK_SIZE, tokenizer_model_name="model", **specs
        ),
    )
    sizes = {"context_parallel_size": cp_size, "tensor_model_parallel_size": 1, "sequence_parallel": False}
    data.trainer = SimpleNamespace(strategy=SimpleNamespace(**sizes))
    return data


@pytest.mark.unit
def test_packs_for_different_context_parallel_sizes_have_different_names(tmp_path: Path) -> None:
    for name in ("train_path_packed", "validation_path_packed", "pack_metadata"):
        assert len({getattr(module(tmp_path, cp_size), name) for cp_size in (1, 2, 4)}) == 3


@pytest.mark.unit
def test_the_multiple_follows_the_context_parallel_size(tmp_path: Path) -> None:
    assert [module(tmp_path, cp_size).pad_seq_to_mult for cp_size in (1, 2, 4)] == [1, 4, 8]


@pytest.mark.unit
def test_a_multiple_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pad_seq_to_mult=6"):
        module(tmp_path, 2, pad_seq_to_mult=6).pad_seq_to_mult  # noqa: B018

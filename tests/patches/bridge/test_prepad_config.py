"""`prepad` before 0.3: the run's configuration settles the multiple, and conversations are padded as well."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from tests.patches.bridge.before_03 import ALL, EOS, RELEASES, VERSIONS, Bridge, bridge, builder

PATCH = ("prepad",)


def validate(found: Bridge, specs: Any, cp: int, tp: int = 1, sequence_parallel: bool = False) -> None:
    """Run the real ConfigContainer.validate of a run with these sizes, everything else in order."""
    model = MagicMock(
        context_parallel_size=cp,
        tensor_model_parallel_size=tp,
        sequence_parallel=sequence_parallel,
        seq_length=960,
        restore_modelopt_state=False,
    )
    dataset = SimpleNamespace(packed_sequence_specs=specs, sequence_length=960)
    config = MagicMock(model=model, dataset=dataset, peft=None)
    config.train.micro_batch_size = 1
    config.dist.use_megatron_fsdp = config.ddp.use_megatron_fsdp = config.checkpoint.async_save = False
    config.ddp.use_distributed_optimizer = config.optimizer.use_distributed_optimizer = True
    found.config.fields = lambda _: ()
    found.config.ConfigContainer.validate(config)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_configuration_derives_the_multiple(version: str, tmp_path: Path) -> None:
    with bridge(version, PATCH, cp=0) as found:  # as where process groups are not set up
        specs = found.packed_sequence.PackedSequenceSpecs(packed_sequence_size=960)
        for cp, tp, sequence_parallel, expected in (
            (2, 8, False, 4),
            (2, 8, True, 8),
            (4, 3, True, 24),
            (1, 8, True, None),
            (3, 2, True, 6),
        ):
            validate(found, specs, cp, tp, sequence_parallel)
            assert specs.pad_seq_to_mult == expected
        validate(found, None, 2)
        made = found.finetuning_dataset.FinetuningDatasetBuilder(
            tmp_path, None, 960, packed_sequence_specs=specs
        )
        assert (made._pad_seq_to_mult, made._pack_length_to_mult) == (6, 6)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_configuration_refuses_a_multiple_that_does_not_fit(version: str) -> None:
    with bridge(version, PATCH) as found:
        specs = found.packed_sequence.PackedSequenceSpecs(packed_sequence_size=960, pad_seq_to_mult=6)
        with pytest.raises(
            ValueError, match=r"pad_seq_to_mult=6 is not a multiple of 4.*set it to 8, or leave"
        ):
            validate(found, specs, cp=2, tp=8, sequence_parallel=True)
        assert specs.pad_seq_to_mult == 6
        validate(found, specs, cp=1)
        validate(found, specs, cp=3)
        off = found.packed_sequence.PackedSequenceSpecs(packed_sequence_size=0, pad_seq_to_mult=6)
        validate(found, off, cp=2)
    with bridge(version, ()) as found:  # nothing to be said there
        specs = found.packed_sequence.PackedSequenceSpecs(packed_sequence_size=960)
        validate(found, specs, cp=2)
        assert not hasattr(specs, "pad_seq_to_mult")


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("cp", [2, 4])
def test_conversations_are_padded_with_their_masks(
    version: str, cp: int, tmp_path: Path, draw: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.2.0 can pack conversations: tensors, with a loss mask of their own."""
    written = []
    for number in range(30):
        size = draw.randint(3, 50)
        ids = [1000 + number, *(draw.choice((EOS, *range(10, 30))) for _ in range(size)), EOS]
        mask = [False, *(draw.random() < 0.5 for _ in range(size)), True]
        written.append((ids, mask))
    samples = [
        {
            "input_ids": torch.LongTensor(ids),
            "loss_mask": torch.BoolTensor(mask),
            "context_ids": torch.LongTensor(ids[:2]),
        }
        for ids, mask in written
    ]
    with bridge(version, PATCH, cp=cp) as found:
        monkeypatch.setattr(found.packed_sequence, "create_sft_dataset", lambda *_, **__: samples)
        made = builder(found, tmp_path, 96, options={"chat": True})
        made.prepare_packed_data()
        packs = found.sft.np.load(made.train_path_packed, allow_pickle=True)
        by_first = {ids[0]: (ids, mask) for ids, mask in written}
        for pack in packs:
            bounds = [*pack["seq_start_id"], len(pack["input_ids"])]
            for start, end in pairwise(bounds):
                assert (end - start - 1) % (2 * cp) == 0
                tokens, mask = pack["input_ids"][start:end], pack["loss_mask"][start:end]
                ids, own = by_first.pop(tokens[0])
                fill = len(tokens) - len(ids)
                assert tokens == ids + [EOS] * fill
                # what predicts a token has its mask
                assert [bool(value) for value in mask[:-1]] == (own + [False] * fill)[1:]
        assert not by_first


@pytest.mark.parametrize("version", VERSIONS)
def test_new_names_are_upstream_s(version: str) -> None:
    """From 0.3 on they are upstream's own: what a user writes for the one works with the other."""
    with bridge(version, ALL) as found:
        specs = found.packed_sequence.PackedSequenceSpecs(packed_sequence_size=64, pad_seq_to_mult=8)
        assert specs.pad_seq_to_mult == 8
        for name in ("tokenize_dataset", "prepare_packed_sequence_data"):
            assert "pad_seq_to_mult" in getattr(found.packed_sequence, name).__annotations__
        assert callable(found.gpt_step._partition_packed_batch_for_cp)

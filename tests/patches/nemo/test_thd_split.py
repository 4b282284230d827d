"""`thd-split`: the step hands each rank its part of every sequence, or every rank raises."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from migrator.model import State
from tests.patches import states
from tests.patches.nemo.stack import DISTILL, MODEL, VERSIONS, slicer, step
from tests.patches.real_code import define, new_code
from tests.patches.thd import (
    SPLIT,
    STAGES,
    Index,
    Ranks,
    packed_batch,
    partition,
    plain_batch,
    random_lengths,
    same,
)

CODE = new_code("nemo/thd_split.py")
Batch = dict[str, Any]


def split_all(cp_size: int, ranks: Ranks, split: Callable[[], Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [split() for _ in ranks.each(cp_size)]


# --- the new code by itself


@pytest.mark.parametrize("cp_size", [2, 4, 8])
@pytest.mark.parametrize("sentinels", [0, 1, 2, 64])
@pytest.mark.parametrize("shape", ["2-D", "1-D", "int64", "no argmin", "empty sequences"])
def test_ranks_share_out_every_token_once(
    cp_size: int, sentinels: int, shape: str, rng: random.Random, ranks: Ranks, index: Index
) -> None:
    lengths = random_lengths(rng, 2 * cp_size)
    if shape == "empty sequences":  # as pad_cu_seqlens adds them, and one in between
        lengths = [*lengths[:2], *lengths[1:], *[lengths[-1]] * 5]
    batch = packed_batch(rng, lengths, sentinels)
    if shape == "1-D":
        batch["cu_seqlens"] = batch["cu_seqlens"][0]
    if shape == "int64":
        batch["cu_seqlens"] = batch["cu_seqlens"].long()
    if shape == "no argmin":
        del batch["cu_seqlens_argmin"]
    parts = split_all(cp_size, ranks, lambda: CODE._partition_packed_batch_for_cp(batch, batch))
    assert sorted(torch.cat([part["tokens"][0] for part in parts]).tolist()) == list(range(lengths[-1]))
    for rank, part in enumerate(parts):
        reference = partition(lengths, cp_size, rank)
        assert list(part) == list(batch)
        for key in SPLIT:
            assert same(part[key], batch[key][:, reference]), key
        assert all(part[key] is batch[key] for key in batch if key not in SPLIT)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, torch.float16, torch.float64])
def test_dtypes_stay(dtype: torch.dtype, rng: random.Random, ranks: Ranks, index: Index) -> None:
    lengths = random_lengths(rng, 4)
    batch = packed_batch(rng, lengths)
    batch["loss_mask"] = batch["loss_mask"].to(dtype)
    for rank, part in enumerate(
        split_all(2, ranks, lambda: CODE._partition_packed_batch_for_cp(batch, batch))
    ):
        assert same(part["loss_mask"], batch["loss_mask"][:, partition(lengths, 2, rank)])


def test_the_index_is_computed_once_a_batch_and_never_kept(
    rng: random.Random, ranks: Ranks, index: Index
) -> None:
    ranks.cp_size = 2
    for lengths in (
        [0, 8, 24],
        [0, 16, 24],
    ):  # of one size: an index kept from the first would fit the second
        batch = packed_batch(rng, lengths)
        part = CODE._partition_packed_batch_for_cp(batch, batch)
        assert part["tokens"][0].tolist() == partition(lengths, 2, 0)
    assert index.calls == [(24, 2, 0)] * 2


def test_no_value_on_the_device_is_read(rng: random.Random, ranks: Ranks, index: Index) -> None:
    ranks.cp_size = 2
    lengths = random_lengths(rng, 4)
    host = packed_batch(rng, lengths, sentinels=3)
    device = {key: value.to("meta") if torch.is_tensor(value) else value for key, value in host.items()}
    part = CODE._partition_packed_batch_and_count(device, host)  # reading a meta tensor's value raises
    assert [part[key].shape for key in SPLIT] == [(1, lengths[-1] // 2)] * 4


def test_one_context_parallel_rank_takes_any_pack(rng: random.Random, ranks: Ranks, index: Index) -> None:
    batch = packed_batch(rng, [0, 3, 10])
    before = dict(batch)
    assert CODE._partition_packed_batch_for_cp(batch, batch) is batch
    assert CODE._partition_packed_batch_and_count(batch, batch) is batch
    assert same(batch, before)


def spoil(batch: Batch, fault: str) -> str:
    """Spoil a batch of sequences 8, 16 and 8 long. Returns what the error has to say."""
    if fault == "two rows":
        batch |= {key: torch.cat([batch[key]] * 2) for key in (*SPLIT, "cu_seqlens", "cu_seqlens_argmin")}
        return "micro_batch_size=1"
    if fault == "two rows of tokens":
        batch["tokens"] = torch.cat([batch["tokens"]] * 2)
        return "micro_batch_size=1"
    if fault == "tokens without rows":
        batch["tokens"] = batch["tokens"][0]
        return "micro_batch_size=1"
    if fault == "not divisible":
        batch["cu_seqlens"] = torch.IntTensor([[0, 9, 23, 32, -1]])
        return r"3 of 3 .* \[9, 14, 9\].*multiples of 4.*PackedSequenceSpecs.pad_seq_to_mult=4"
    if fault == "split already":
        batch |= {key: batch[key][:, ::2] for key in SPLIT}
        return "already split"
    if fault == "more tokens than cu_seqlens":
        batch |= {key: torch.cat([batch[key], batch[key][:, :4]], dim=1) for key in SPLIT}
        return "has 36 tokens, but cu_seqlens ends with 32"
    if fault == "labels of another length":
        batch["labels"] = batch["labels"][:, :-4]
        return "labels has 28 tokens"
    if fault == "argmin before the end":
        batch["cu_seqlens_argmin"] = torch.tensor([[3]])
        return "argmin says 3"
    if fault == "argmin behind the end":
        batch["cu_seqlens_argmin"] = torch.tensor([[5]])
        return "argmin says 5"
    cu_seqlens = {
        "falling": [0, 16, 8, 32, -1],
        "not from zero": [4, 8, 24, 32, -1],
        "one entry": [0, -1, -1, -1, -1],
        "nothing": [-1, -1, -1, -1, -1],
        "an entry behind the end": [0, 8, -1, 32, -1],
    }[fault]
    batch["cu_seqlens"] = torch.IntTensor([cu_seqlens])
    batch["cu_seqlens_argmin"] = torch.argmin(batch["cu_seqlens"], dim=1, keepdim=True)
    return "must rise from 0" if fault != "an entry behind the end" else "cu_seqlens ends with 8"


FAULTS = (
    "two rows",
    "two rows of tokens",
    "tokens without rows",
    "not divisible",
    "split already",
    "more tokens than cu_seqlens",
    "labels of another length",
    "argmin before the end",
    "argmin behind the end",
    "falling",
    "not from zero",
    "one entry",
    "nothing",
    "an entry behind the end",
)


# --- the real step


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_pack_is_refused_by_every_rank_of_every_stage(
    version: str, fault: str, rng: random.Random, ranks: Ranks, index: Index
) -> None:
    batch = packed_batch(rng, [0, 8, 24, 32])
    message = spoil(batch, fault)
    data_step = step(version, patched=True)
    for stage in STAGES:
        ranks.enter(stage)
        for _ in ranks.each(2):
            with pytest.raises(ValueError, match=message):
                data_step(iter([dict(batch)]))
    assert index.calls == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("cp_size", [2, 4])
@pytest.mark.parametrize("stage", STAGES)
def test_the_step_splits_each_sequence(
    version: str, cp_size: int, stage: str, rng: random.Random, ranks: Ranks, index: Index
) -> None:
    lengths = random_lengths(rng, 2 * cp_size)
    batch = packed_batch(rng, lengths, sentinels=rng.choice([0, 1, 2, 9]))
    kept = {key: value.clone() for key, value in batch.items() if torch.is_tensor(value)}
    ranks.enter(stage)
    whole = step(version, patched=False)(iter([batch]))  # at CP=1: what upstream hands this stage
    mine = [key for key in SPLIT if whole[key] is not None]
    data_step = step(version, patched=True)
    loads = iter([(batch, 0, 0), batch] * cp_size)  # a loader may yield (batch, batch_idx, dataloader_idx)
    parts = split_all(cp_size, ranks, lambda: data_step(loads))
    parts_bare = split_all(cp_size, ranks, lambda: data_step(iter([batch])))
    for rank, part in enumerate(parts):
        assert same(part, parts_bare[rank])
        expected = {k: v[:, partition(lengths, cp_size, rank)] if k in mine else v for k, v in whole.items()}
        if version.startswith("2.3"):
            expected["num_valid_tokens_in_ub"] = batch["loss_mask"].sum() if "loss_mask" in mine else None
        assert same(part, expected)
    assert len(index.calls) == 2 * cp_size * bool(mine)
    assert all(same(batch[key], value) for key, value in kept.items())  # the loader's batch is left alone


@pytest.mark.parametrize("version", VERSIONS)
def test_multi_token_prediction_gets_its_tokens_split_too(
    version: str, rng: random.Random, ranks: Ranks, index: Index
) -> None:
    ranks.enter("last")
    lengths = random_lengths(rng, 4)
    batch = packed_batch(rng, lengths)
    data_step = step(version, patched=True)
    parts = split_all(2, ranks, lambda: data_step(iter([batch]), use_mtp=True))
    for rank, part in enumerate(parts):
        for key in SPLIT:
            assert same(part[key], batch[key][:, partition(lengths, 2, rank)])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_middle_stage_whose_loader_gives_no_tokens(
    version: str, rng: random.Random, ranks: Ranks, index: Index
) -> None:
    ranks.enter("middle")
    batch = {key: value for key, value in packed_batch(rng, [0, 8, 24]).items() if key not in SPLIT}
    whole = step(version, patched=False)(iter([batch]))
    if version.startswith("2.3"):
        whole["num_valid_tokens_in_ub"] = None
    data_step = step(version, patched=True)
    assert all(same(part, whole) for part in split_all(2, ranks, lambda: data_step(iter([batch]))))
    batch["cu_seqlens"] = torch.IntTensor([[0, 9, 24, -1]])
    with pytest.raises(ValueError, match="multiples of 4"):
        data_step(iter([batch]))


@pytest.mark.parametrize("version", VERSIONS)
def test_upstream_crashes_or_splits_packs_wrongly(
    version: str, rng: random.Random, ranks: Ranks, index: Index
) -> None:
    batch = packed_batch(rng, [0, 8, 24, 32])  # five entries
    data_step = step(version, patched=False)
    ranks.cp_size = 2
    with pytest.raises(IndexError):  # the placeholder
        data_step(iter([dict(batch)]))
    bare = {key: batch[key] for key in (*SPLIT, "cu_seqlens")}
    with pytest.raises(RuntimeError, match="invalid for input of size 5"):
        data_step(iter([dict(bare)]))
    bare["cu_seqlens"] = bare["cu_seqlens"][:, :4]  # divisible: no error at all
    part = data_step(iter([dict(bare)]))
    assert part["tokens"][0].tolist() != partition([0, 8, 24, 32], 2, 0)
    assert part["cu_seqlens"].tolist() != [[0, 8, 24, 32]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("stage", STAGES)
def test_all_else_is_as_before(
    version: str, stage: str, rng: random.Random, ranks: Ranks, index: Index
) -> None:
    ranks.enter(stage)
    for cp_size in (1, 2, 4):
        for _ in ranks.each(cp_size):
            batch = plain_batch(rng, rows=rng.randint(1, 3), tokens=8 * rng.randint(1, 4))
            before, after = (step(version, patched)(iter([dict(batch)])) for patched in (False, True))
            assert same(before, after)
    ranks.cp_size, ranks.cp_rank = 1, 0
    for batch in (packed_batch(rng, random_lengths(rng, 1)), packed_batch(rng, random_lengths(rng, 7), 3)):
        before, after = (step(version, patched)(iter([dict(batch)])) for patched in (False, True))
        assert same(before, after)
    assert index.calls == []


# --- callers beside the step


@pytest.mark.parametrize("stage", STAGES)
def test_distillation_of_2_3_splits_and_counts_likewise(
    stage: str, rng: random.Random, ranks: Ranks, index: Index
) -> None:
    ranks.enter(stage)
    lengths = random_lengths(rng, 4)
    batch = packed_batch(rng, lengths, sentinels=2)
    count = define("nemo", "2.3.3", f"{MODEL}/base.py", True, "_partition_packed_batch_and_count")

    def distill(patched: bool) -> Callable[..., Batch]:
        names = {
            "parallel_state": ranks,
            "get_batch_on_this_context_parallel_rank": slicer("2.3.3", patched),
            "_partition_packed_batch_and_count": count["_partition_packed_batch_and_count"],
        }
        found: Callable[..., Batch] = define(
            "nemo", "2.3.3", DISTILL, patched, "gpt_distillation_data_step", **names
        )["gpt_distillation_data_step"]
        return found

    parts = split_all(2, ranks, lambda: distill(True)(iter([dict(batch)]), attn_mask_cpu=True))
    expected = split_all(2, ranks, lambda: step("2.3.3", patched=True)(iter([dict(batch)])))
    assert all(same(part, other) for part, other in zip(parts, expected, strict=True))
    with pytest.raises(IndexError):
        distill(False)(iter([dict(batch)]))
    plain = plain_batch(rng, 2, 16)
    assert same(distill(True)(iter([dict(plain)])), distill(False)(iter([dict(plain)])))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("model", ["ssm", "hyena"])
def test_models_that_are_not_told_of_sequences_refuse_packs(
    version: str, model: str, rng: random.Random, ranks: Ranks, index: Index
) -> None:
    """They share the step, and would attend and scan over all sequences as one, in the order of the split."""
    name = f"{model}_forward_step"
    forward, forward_before = (
        define("nemo", version, f"{MODEL}/{model}.py", patched, name)[name] for patched in (True, False)
    )

    def called(**arguments: Any) -> Batch:
        return arguments

    batch = packed_batch(rng, [0, 8, 24])
    for cp_size, made in ((1, batch), (1, plain_batch(rng, 2, 8)), (2, plain_batch(rng, 2, 8))):
        ranks.cp_size = cp_size
        made = step(version, patched=True)(iter([made]))
        assert same(forward(called, made), forward_before(called, made))
    for stage in STAGES:
        ranks.enter(stage)
        part = step(version, patched=True)(iter([batch]))
        with pytest.raises(ValueError, match=r"no packed_seq_params.*context_parallel_size=1"):
            forward(called, part)
        assert "packed_seq_params" not in forward_before(called, part)  # silent


def test_random_packs_have_uneven_sequences(rng: random.Random) -> None:
    """What the tests draw must tell a split by sequence from a split of the whole."""
    draws = [random_lengths(rng, 4) for _ in range(50)]
    assert any(len({b - a for a, b in pairwise(lengths)}) > 1 for lengths in draws)


# --- states


@pytest.mark.parametrize("version", VERSIONS[::2])
def test_needed_then_applied(version: str, tmp_path: Path) -> None:
    states.check_needed_then_applied("nemo/thd-split", version, tmp_path)


def test_releases_beyond_the_range_are_left_alone(tmp_path: Path) -> None:
    states.check_elsewhere("nemo/thd-split", "2.7.3", tmp_path)


@pytest.mark.parametrize("call", ["tex.thd_get_partitioned_indices", "get_thd_batch_on_this_cp_rank"])
def test_a_step_that_splits_packs_by_itself_is_left_alone(call: str, tmp_path: Path) -> None:
    old = "output = get_batch_on_this_cp_rank(_batch_required_keys)"
    found = states.replaced(
        "nemo/thd-split", "2.7.3", tmp_path, f"{MODEL}/base.py", old, f"output = {call}(_batch)"
    )
    assert found.state is State.FIXED_UPSTREAM


def test_a_step_that_nobody_knows_is_a_conflict(tmp_path: Path) -> None:
    old = "output = get_batch_on_this_cp_rank(_batch_required_keys)"
    found = states.replaced("nemo/thd-split", "2.7.3", tmp_path, f"{MODEL}/base.py", old, "output = sliced()")
    assert found.state is State.CONFLICT
    assert "gpt_data_step" in found.reason

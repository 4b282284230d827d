"""A step that splits a pack wrong, or leaves part of it behind, fails the check that names the defect."""

from __future__ import annotations

import random

import pytest

from migrator.verify.gpu_split import COST, COST_SEQUENCES, METADATA, NAMES, PLACES, TOKENS, long_pack
from migrator.verify.reference import lengths, partition_index
from tests.verify.conftest import GpuFound

pytestmark = [pytest.mark.torch, pytest.mark.upstream, pytest.mark.xdist_group("gpu-mutants")]


def test_the_right_step_passes_everything(gpu_found: GpuFound) -> None:
    assert [(c.name, c.cp, c.status) for c in gpu_found["split"]["right"]] == [
        (name, 2, "passed") for name in NAMES
    ]


CAUGHT = [
    ("zigzag over the whole pack", TOKENS, "the wrong rank has them"),
    ("the index is kept", TOKENS, "another pack of the same size"),
    ("labels are shifted after the split", TOKENS, "labels"),
    ("middle stage without metadata", METADATA, "no packed_seq_params"),
    ("unpadded lengths", METADATA, "NaN may come beyond"),
    ("a sentinel is left", METADATA, "does not rise"),
    ("all stays on the host", PLACES, "tokens is not on the device"),
    ("the loss mask stays on the host", PLACES, "loss_mask is not on the device"),
    ("the metadata stays on the host", PLACES, "cu_seqlens_q is not on the device"),
    ("labels in another dtype", PLACES, "labels is torch.int32, not torch.int64"),
    ("the step fails", TOKENS, "IndexError: tuple index out of range"),
    ("the step fails", COST, "IndexError: tuple index out of range"),
    ("the step fails in the middle", TOKENS, "middle stage: IndexError"),
]


@pytest.mark.parametrize(("mutant", "name", "detail"), CAUGHT)
def test_a_wrong_step_is_caught(gpu_found: GpuFound, mutant: str, name: str, detail: str) -> None:
    said = {check.name: check.detail for check in gpu_found["split"][mutant] if check.status == "failed"}
    assert name in said
    assert detail in said[name]


def test_no_mutant_is_forgotten(gpu_found: GpuFound) -> None:
    assert gpu_found["split"].keys() - {"right", "unusable", "out of memory"} == {
        mutant for mutant, _, _ in CAUGHT
    }


@pytest.mark.parametrize("mutant", ["the loss mask stays on the host", "labels in another dtype"])
def test_the_other_checks_still_hold_then(gpu_found: GpuFound, mutant: str) -> None:
    assert {c.name for c in gpu_found["split"][mutant] if c.status == "failed"} == {PLACES}


def test_where_every_step_fails_the_rest_was_not_run(gpu_found: GpuFound) -> None:
    status = {check.name: check.status for check in gpu_found["split"]["the step fails"]}
    assert status == {TOKENS: "failed", PLACES: "not run", METADATA: "not run", COST: "failed"}


@pytest.mark.parametrize(
    ("mutant", "detail"), [("unusable", "busy or unavailable"), ("out of memory", "CUDA out of memory")]
)
def test_without_a_device_or_memory_nothing_is_said_of_the_step(
    gpu_found: GpuFound, mutant: str, detail: str
) -> None:
    checks = gpu_found["split"][mutant]
    assert [(check.name, check.status) for check in checks] == [(name, "not run") for name in NAMES]
    assert all(detail in check.detail for check in checks)


def test_the_cost_is_told_for_both_sizes_with_what_waits(gpu_found: GpuFound) -> None:
    cost = gpu_found["cost"]["right"][-1]
    assert (cost.name, cost.measured) == (COST, 0.25)
    assert cost.detail == "CP=2: 0.25 ms, 3 synchronizations; CP=1: 0.25 ms, 3 synchronizations"


def test_a_step_that_takes_half_a_second_fails(gpu_found: GpuFound) -> None:
    assert [c.name for c in gpu_found["cost"]["half a second"] if c.status == "failed"] == [COST]


@pytest.mark.parametrize("cp", [2, 3, 4])
def test_the_long_pack_can_be_split(cp: int, rng: random.Random) -> None:
    batch = long_pack(cp, rng.randrange(2**31))
    bounds = batch["cu_seqlens"][0, :-1]
    assert len(lengths(bounds)) == COST_SEQUENCES
    assert 32768 - 2 * cp < int(bounds[-1]) <= 32768
    assert len(partition_index(bounds, int(bounds[-1]), cp, 0)) == int(bounds[-1]) // cp

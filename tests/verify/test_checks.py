"""Each wrong stack is caught by the check that names its defect, and the right one passes all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("mutants")]
REPOSITORY = Path(__file__).parents[2]
Found = Mapping[str, Mapping[str, list[dict[str, Any]]]]


@pytest.fixture(scope="session")
def found(upstream: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What the checks say of every mutant: one child process for all."""
    out = tmp_path_factory.mktemp("mutants") / "found.json"
    command = [sys.executable, str(Path(__file__).with_name("mutants.py"))]
    command += [str(upstream("megatron-core", "0.14.0")), os.environ["CPFIX_TEST_SEED"], str(out)]
    env = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    loaded: dict[str, Any] = json.loads(out.read_text())
    return loaded


def failed(checks: list[dict[str, Any]]) -> dict[str, str]:
    """Names of the failed checks and what they say."""
    return {check["name"]: check["detail"] for check in checks if check["status"] == "failed"}


@pytest.mark.parametrize("group", ["data", "step", "parity", "curves", "leak"])
def test_the_right_stack_passes_everything(found: Found, group: str) -> None:
    checks = found[group]["right"]
    assert failed(checks) == {}
    assert {check["status"] for check in checks} == {"passed"}
    assert {check["cp"] for check in checks} == ({2} if group == "curves" else {1, 2})


def test_a_slicer_that_splits_packs_itself_passes(found: Found) -> None:
    checks = found["THD slicer"]["right"]
    assert {check["name"]: check["status"] for check in checks} == {
        "slicer: whole packs are never cut across": "passed",
        "slicer: other batches": "passed",
    }


CAUGHT = [
    ("data", "not prepadded", "data: lengths divide by 2 * cp", "is no multiple of 4"),
    ("data", "pads are targets", "data: no pad is a target", "pads are targets"),
    ("data", "a target is missing", "data: targets", "1 targets are missing"),
    (
        "data",
        "targets behind EOS are missing with CP only",
        "data: targets",
        "missing behind an EOS, 0 at CP=1",
    ),
    ("data", "a pack is lost", "data: every sample is there", "are lost"),
    ("data", "packing fails", "data: packing runs", "unsupported operand"),
    ("data", "labels are not shifted", "data: every sample is there", "is no sample"),
    ("data", "positions count on", "data: metadata", "don't count from 0"),
    ("data", "max_seqlen too small", "data: metadata", "max_seqlen_kv is 1"),
    ("data", "a sentinel is left", "data: metadata", "does not rise"),
    ("data", "unpadded lengths", "data: metadata", "not exact"),
    ("data", "argmin is wrong", "data: metadata", "does not stand at the first -1"),
    ("step", "zigzag over the whole pack", "step: every token exactly once", "the wrong rank has them"),
    ("step", "the index is kept", "step: every token exactly once", "another pack of the same size"),
    ("step", "sentinels in the index call", "step: every token exactly once", "trailing -1"),
    ("step", "bad packs are accepted", "step: bad packs are refused on every rank", "accepted"),
    ("step", "labels are shifted after the split", "step: every token exactly once", "labels"),
    ("step", "middle stage without metadata", "step: metadata on every stage", "no packed_seq_params"),
    ("step", "unpadded lengths", "step: metadata on every stage", "NaN may come beyond"),
    ("step", "a row without -1 is emptied", "step: metadata on every stage", "no -1, the least entry"),
    ("step", "only rank 0 refuses", "step: bad packs are refused on every rank", "alone"),
    ("step", "crashes on bad packs", "step: bad packs are refused on every rank", "IndexError"),
    (
        "step",
        "other batches are cut into contiguous parts",
        "step: a batch that is not packed is split as ever",
        "tokens",
    ),
    ("step", "odd lengths are refused at CP=1", "step: packs of any length pass at CP=1", "ValueError"),
    ("parity", "zigzag over the whole pack", "parity: gradients", "largest in"),
    ("parity", "pads are targets", "parity: gradients", "largest in"),
    ("parity", "unpadded lengths", "parity: gradients", "largest in"),
    ("parity", "a local mean is logged", "parity: loss", ""),
    ("parity", "gradients are slightly off", "parity: gradients", "largest in"),
    ("parity", "not prepadded", "parity: gradients", "no multiple"),
    ("leak", "documents see each other", "leak: no document sees another", ""),
    ("leak", "zigzag over the whole pack", "leak: no document sees another", ""),
    ("curves", "zigzag over the whole pack", "curves: 20 optimizer steps", ""),
    ("curves", "packing fails", "curves: 20 optimizer steps", "unsupported operand"),
    ("slicer", "passes all on", "slicer: whole packs are never cut across", "train on all of it"),
    ("slicer", "slices all", "slicer: whole packs are never cut across", "cu_seqlens itself is sliced"),
    ("slicer", "slices all", "slicer: split packs are left alone", "a second time"),
    (
        "THD slicer",
        "splits packs as one sequence",
        "slicer: whole packs are never cut across",
        "split across sequence borders",
    ),
    ("THD slicer", "leaves other batches whole", "slicer: other batches", "not sliced as ever"),
]


@pytest.mark.parametrize(("group", "mutant", "name", "detail"), CAUGHT)
def test_a_wrong_stack_is_caught(found: Found, group: str, mutant: str, name: str, detail: str) -> None:
    said = failed(found[group][mutant])
    assert name in said
    assert detail in said[name]


def test_no_mutant_is_forgotten(found: Found) -> None:
    named = {(group, mutant) for group, mutant, _, _ in CAUGHT}
    excused = {("data", "targets behind EOS are always missing")}
    groups = {group: mutants for group, mutants in found.items() if group != "pictures"}
    there = {(group, mutant) for group, mutants in groups.items() for mutant in mutants if mutant != "right"}
    assert there == named | excused


def test_what_cp_1_leaves_out_other_sizes_may_leave_out_and_it_is_said(found: Found) -> None:
    checks = found["data"]["targets behind EOS are always missing"]
    assert failed(checks) == {}
    assert all("behind an inner EOS" in c["detail"] for c in checks if c["name"] == "data: targets")


def test_gradients_tell_what_the_loss_may_hide(found: Found) -> None:
    assert set(failed(found["parity"]["gradients are slightly off"])) == {
        name for name in failed(found["parity"]["gradients are slightly off"]) if name.endswith("gradients")
    }


def test_the_curves_are_drawn_for_every_size_and_fall(found: Found) -> None:
    curves: dict[str, Any] = dict(found["pictures"]["curves"])
    assert set(curves) == {"1", "2"}
    assert all(len(losses) == 20 for losses in curves.values())
    assert sum(curves["1"][-4:]) < sum(curves["1"][:4])


def test_the_picture_of_a_split_shows_each_token_with_one_rank(found: Found) -> None:
    split: dict[str, Any] = dict(found["pictures"]["split"])
    drawn = split["2"]
    assert len(drawn["now"]) == len(drawn["whole"]) == drawn["bounds"][-1]
    for ranks in (drawn["now"], drawn["whole"]):
        assert ranks.count(0) == ranks.count(1) == len(ranks) // 2
    first = drawn["now"][: drawn["bounds"][1]]
    quarter = len(first) // 4
    assert first == [0] * quarter + [1] * 2 * quarter + [0] * quarter

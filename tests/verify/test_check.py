"""Checks and reports: what counts as passed, and the way through JSON."""

from __future__ import annotations

import json

import pytest

from migrator.verify.check import Check, Report, bounded, counted, from_json, to_json, worst


def test_a_bound_is_inclusive_and_nan_never_passes() -> None:
    assert bounded("x", 2, 1e-5, 1e-5).status == "passed"
    assert bounded("x", 2, 1.1e-5, 1e-5).status == "failed"
    assert bounded("x", 2, float("nan"), 1e-5).status == "failed"


def test_faults_are_counted_and_the_first_three_quoted() -> None:
    assert counted("x", 2, []).status == "passed"
    check = counted("x", 2, ["a", "b", "c", "d", "e"])
    assert (check.status, check.measured, check.detail) == ("failed", 5.0, "a; b; c (and 2 more)")


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ([], 1),
        (["passed"], 0),
        (["passed", "not run"], 0),
        (["not run"], 1),
        (["passed", "failed"], 1),
    ],
)
def test_exit_code(statuses: list[str], code: int) -> None:
    checks = tuple(from_json(to_json(Check("x", None, "passed")) | {"status": status}) for status in statuses)
    assert Report(checks).exit_code == code


@pytest.mark.parametrize("name", ["cpu level", "gpu level", "nemo: import", "megatron-core: import"])
def test_a_level_asked_for_by_name_needs_its_grounds(name: str) -> None:
    checks = (Check("static: files compile", None, "passed"), Check(name, None, "not run", detail="why"))
    assert Report(checks).exit_code == 0
    assert Report(checks, by_name=True).unmet == checks[1:]
    assert Report(checks, by_name=True).exit_code == 1


def test_a_gpu_that_is_not_there_is_no_failure() -> None:
    checks = (Check("a", None, "passed"), Check("gpu: parity", None, "not run", detail="0 GPUs found"))
    assert Report(checks, by_name=True).exit_code == 0


def test_json_and_back() -> None:
    check = Check("parity", 4, "failed", float("inf"), 1e-5, "why")
    assert from_json(json.loads(json.dumps(to_json(check)))) == check


@pytest.mark.parametrize(
    "broken", [{}, {"name": "x"}, to_json(Check("x", 1, "passed")) | {"status": "skipped"}]
)
def test_anything_else_is_no_check(broken: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"not a check|unknown status"):
        from_json(broken)


def test_the_worst_of_some_deviations_is_never_hidden_behind_a_nan() -> None:
    nan, infinite = float("nan"), float("inf")
    assert (worst([]), worst([0.1, 0.3, 0.2])) == (0.0, 0.3)
    assert worst([0.1, nan]) == worst([nan, 0.1]) == worst([nan]) == infinite

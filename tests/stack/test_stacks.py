"""Real code: patched stacks pass the cpu level, unpatched ones fail with the names of their defects."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.stack.stacks import (
    BRIDGE_03,
    BRIDGE_05,
    BRIDGE_06,
    MORE,
    NEEDS_PY312,
    NEMO_23,
    NEMO_25,
    STACKS,
    WHOLE,
    RealStack,
    apply,
    at_hand,
    failures,
    interpreter,
    tree,
    verified,
)

pytestmark = [pytest.mark.torch, pytest.mark.upstream]

LIMIT_S = 90  # for each of the projects that is driven
LIMIT_KIB = 4 * 1024 * 1024
SHARED = ("static", "core slicer")
GROUPS = ("data", "step", "parity", "leak")
# what unpatched code of any release does wrong with a pack
SLICER = {"core slicer: whole packs are never cut across at CP=2": "is invalid for input of size"}
NEMO_DEFECTS = {
    "data: lengths divide by 2 * cp at CP=2": "is no multiple of 4",
    "data: lengths divide by 2 * cp at CP=4": "is no multiple of 8",
    "step: every token exactly once at CP=2": "is invalid for input of size",
    "step: bad packs are refused on every rank at CP=4": "refused by RuntimeError",
    "parity: loss at CP=2": "IndexError: tuple index out of range",
    "parity: gradients at CP=4": "IndexError: tuple index out of range",
    "leak: no document sees another at CP=2": "IndexError: tuple index out of range",
}
BRIDGE_01_DEFECTS = {
    "data: lengths divide by 2 * cp at CP=2": "is no multiple of 4",
    "data: metadata at CP=1": "max_seqlen",
    "step: every token exactly once at CP=4": "is invalid for input of size",
    "step: metadata on every stage at CP=2": "middle stage: no packed_seq_params",
    "parity: gradients at CP=2": "is invalid for input of size",
}
BRIDGE_03_DEFECTS = {
    "data: packing runs at CP=2": "unsupported operand type(s) for +",
    "data: metadata at CP=2": "not exact",
    "step: every token exactly once at CP=2": "trailing -1",
    "step: metadata on every stage at CP=4": "NaN may come beyond",
    "step: bad packs are refused on every rank at CP=2": "accepted",
    "step: schedule plans have the metadata at CP=2": "no packed_seq_params",
    "parity: gradients at CP=2": "largest in",
    "leak: no document sees another at CP=4": "",
}
BRIDGE_05_DEFECTS = BRIDGE_03_DEFECTS | {
    "step: every token exactly once at CP=2": "middle stage: IndexError: Dimension out of range",
}
BRIDGE_06_DEFECTS = {
    name: detail
    for name, detail in BRIDGE_03_DEFECTS.items()
    if not name.startswith(("data: packing", "step: every token"))
}


def _of(driven: str, defects: Mapping[str, str]) -> dict[str, str]:
    """The defects of one of two projects that are driven in turn."""
    return {f"{driven}, {name}": detail for name, detail in defects.items()}


DEFECTS = {
    NEMO_25.name: SLICER | NEMO_DEFECTS,
    NEMO_23.name: SLICER | NEMO_DEFECTS | {"data: metadata at CP=1": "max_seqlen"},
    BRIDGE_03.name: SLICER | BRIDGE_03_DEFECTS,
    WHOLE.name: SLICER | _of("nemo 2.5.3", NEMO_DEFECTS) | _of("megatron-bridge 0.1.0rc4", BRIDGE_01_DEFECTS),
    BRIDGE_05.name: BRIDGE_05_DEFECTS,
    BRIDGE_06.name: BRIDGE_06_DEFECTS,
}


def driven(stack: RealStack) -> list[str]:
    """What stands in front of the names of a stack's checks, for each project that is driven."""
    names = [
        f"{name} {stack.versions[name]}" for name in ("nemo", "megatron-bridge") if name in stack.versions
    ]
    return [f"{name}, " for name in names] if len(names) > 1 else [""]


@pytest.mark.parametrize("stack", [*STACKS, *MORE, *at_hand(*NEEDS_PY312)], ids=str)
def test_a_patched_stack_trains_right(stack: RealStack, tmp_path: Path, seed: int) -> None:
    interpreter(stack)  # making it doesn't count
    roots = tree(stack, tmp_path)
    apply(roots)
    start = time.monotonic()
    report = verified(stack, roots, (2, 4), seed)
    took = time.monotonic() - start
    assert failures(report) == {}
    assert report.exit_code == 0
    passed = [check for check in report.checks if check.status == "passed"]
    for group in (*SHARED, *(prefix + group for prefix in driven(stack) for group in GROUPS)):
        assert any(check.name.startswith(group) for check in passed), group
    for check in report.checks:  # what upstream can't do or does otherwise, patched or not
        if check.status == "not run":
            assert check.name.endswith(("data: chat samples", "data: targets")), check
            assert "this version" in check.detail
    assert {check.cp for check in passed} == {None, 1, 2, 4}
    assert any("transformer_engine_torch" in stub for stub in report.stubs)
    assert took < LIMIT_S * len(driven(stack))
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < LIMIT_KIB


@pytest.mark.parametrize("stack", at_hand(*STACKS, WHOLE, BRIDGE_05, BRIDGE_06), ids=str)
def test_an_unpatched_stack_fails_with_the_names_of_its_defects(
    stack: RealStack, tmp_path: Path, seed: int
) -> None:
    report = verified(stack, tree(stack, tmp_path), (2, 4), seed)
    said = failures(report)
    for name, detail in DEFECTS[stack.name].items():
        assert name in said
        assert detail in said[name]
    assert report.exit_code == 1
    assert not any(check.status == "failed" for check in report.checks if check.name.startswith("static"))


def test_without_context_parallelism_an_unpatched_nemo_is_right(tmp_path: Path, seed: int) -> None:
    report = verified(NEMO_25, tree(NEMO_25, tmp_path), (1,), seed)
    assert failures(report) == {}


def test_a_stack_that_lacks_a_package_is_not_run(tmp_path: Path, seed: int) -> None:
    """Megatron-Bridge in NeMo's environment: its transformers is too old."""
    roots = tree(BRIDGE_03, tmp_path)
    apply(roots)
    report = verified(NEMO_25, roots, (2,), seed)
    (found,) = [check for check in report.checks if check.name == "megatron-bridge: import"]
    assert (found.status, "transformers" in found.detail) == ("not run", True)
    assert not any(check.name.startswith(("data", "step", "parity")) for check in report.checks)

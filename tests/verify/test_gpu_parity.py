"""Training that differs between CP sizes by more than bf16 does is caught; bounds and rounding keep apart."""

from __future__ import annotations

import math

import pytest

from migrator.verify.check import worst_loss
from migrator.verify.gpu_parity import BOUNDS, GRADIENTS, LOSS
from tests.verify.conftest import GpuFound

pytestmark = [pytest.mark.torch, pytest.mark.upstream, pytest.mark.xdist_group("gpu-mutants")]


@pytest.mark.parametrize("group", ["parity", "fresh"])
def test_the_right_stack_passes_far_below_the_bounds(gpu_found: GpuFound, group: str) -> None:
    checks = gpu_found[group]["right"]
    assert [(c.name, c.cp, c.status, c.bound) for c in checks] == [
        (name, 2, "passed", bound) for name, bound in BOUNDS.items()
    ]
    assert all(c.measured is not None and 0 < c.measured < c.bound / 5 for c in checks if c.bound)


CAUGHT = [
    ("zigzag over the whole pack", GRADIENTS, "largest in"),
    ("one long sequence at CP > 1", GRADIENTS, "largest in"),
    ("unpadded lengths", GRADIENTS, "largest in"),
    ("unpadded lengths", LOSS, ""),
    ("a mean over too many tokens is logged", LOSS, ""),
    ("one rank logs NaN", LOSS, ""),
    ("gradients of half the loss", GRADIENTS, "largest in"),
    ("gradients off by a fifth", GRADIENTS, "largest in"),
    ("not prepadded", GRADIENTS, "no multiples of 4"),
    ("packing fails", LOSS, "unsupported operand"),
]


@pytest.mark.parametrize(("mutant", "name", "detail"), CAUGHT)
def test_a_wrong_stack_is_caught(gpu_found: GpuFound, mutant: str, name: str, detail: str) -> None:
    said = {check.name: check.detail for check in gpu_found["parity"][mutant] if check.status == "failed"}
    assert name in said
    assert detail in said[name]


def test_no_mutant_is_forgotten(gpu_found: GpuFound) -> None:
    assert gpu_found["parity"].keys() - {"right", "unusable"} == {mutant for mutant, _, _ in CAUGHT}


def test_without_a_device_nothing_is_said_of_training(gpu_found: GpuFound) -> None:
    checks = gpu_found["parity"]["unusable"]
    assert [(check.name, check.status) for check in checks] == [(name, "not run") for name in BOUNDS]


def test_a_nan_is_no_small_deviation() -> None:
    assert worst_loss([1.0, 1.1], [1.0, 1.0]) == pytest.approx(0.1)
    assert worst_loss([1.1, float("nan")], [1.0, 1.0]) == math.inf
    assert worst_loss([float("nan"), 1.1], [1.0, 1.0]) == math.inf

"""A kernel that gives other positions than the reference, or gives them elsewhere, is caught."""

from __future__ import annotations

import pytest

from migrator.verify.gpu_kernel import NAME
from tests.verify.conftest import GpuFound

pytestmark = [pytest.mark.torch, pytest.mark.upstream, pytest.mark.xdist_group("gpu-mutants")]


def test_the_right_kernel_passes_at_each_size(gpu_found: GpuFound) -> None:
    assert [(c.name, c.cp, c.status) for c in gpu_found["kernel"]["right"]] == [
        (NAME, 2, "passed"),
        (NAME, 4, "passed"),
    ]


@pytest.mark.parametrize(
    ("kernel", "detail"),
    [
        ("the whole pack as one sequence", "not the reference partition"),
        ("another rank's", "not the reference partition"),
        ("another order", "not the reference partition"),
        ("on the host", "it is not on the device"),
        ("crashes", "an illegal memory access"),
    ],
)
def test_a_wrong_kernel_is_caught(gpu_found: GpuFound, kernel: str, detail: str) -> None:
    checks = gpu_found["kernel"][kernel]
    assert {check.status for check in checks} == {"failed"}
    assert all(detail in check.detail for check in checks)


@pytest.mark.parametrize(
    ("kernel", "detail"),
    [
        ("missing", "ModuleNotFoundError: No module named 'transformer_engine'"),
        ("unusable", "cuda:0: all CUDA-capable devices are busy or unavailable"),
    ],
)
def test_without_a_kernel_or_a_device_nothing_is_said_of_it(
    gpu_found: GpuFound, kernel: str, detail: str
) -> None:
    (check,) = gpu_found["kernel"][kernel]
    assert (check.status, check.detail) == ("not run", detail)

"""What runs on how many devices, and that the rest is said to be left out."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from migrator.verify import gpu, gpu_kernel, gpu_parity, gpu_split
from migrator.verify.accelerator import Accelerator, Kernel
from migrator.verify.check import Check, Report
from migrator.verify.gpu_kernel import Tried
from migrator.verify.gpu_stacks import Loaded, Source
from migrator.verify.ranks import RankFailed
from migrator.verify.run import verify
from migrator.verify.stack import Stack
from tests.verify.emulated import emulated

pytestmark = pytest.mark.torch
ALL = (gpu_kernel.NAME, *gpu_split.NAMES, *gpu_parity.BOUNDS)


def in_turn(world: int, work: Callable[[int], Any], timeout_s: float) -> list[Any]:
    """One rank after the other, in this process."""
    return [work(rank) for rank in range(world)]


def here(count: int) -> Accelerator:
    return dataclasses.replace(
        emulated(count, in_turn),
        start=lambda _: torch.device("cpu"),
        kernel=lambda: lambda *_: torch.zeros(1),
    )


def broken() -> tuple[Stack | None, Loaded]:
    why = Check("nemo: import", None, "not run", detail="ModuleNotFoundError: No module named 'lightning'")
    return None, Loaded("nemo", ("nemo_run",), why)


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Megatron-Core were installed."""
    monkeypatch.setattr(gpu, "find_module", lambda name: Path("megatron/core/utils.py"))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, core: None) -> list[str]:
    """Kernel, split and parity pass without being tried; what was asked of them."""
    asked: list[str] = []
    loaded = Loaded("nemo 2.5.3", ("nemo_run",))

    def split(_: Accelerator, source: Source, cps: tuple[int, ...], __: int) -> tuple[list[Check], Loaded]:
        asked.append(f"{source.name} split {cps}")
        return [Check(name, cps[0], "passed") for name in gpu_split.NAMES], loaded

    def kernel(_: Accelerator, cps: tuple[int, ...], __: int) -> tuple[list[Check], str]:
        asked.append(f"kernel {cps}")
        return [Check(gpu_kernel.NAME, cp, "passed") for cp in cps], ""

    def no_ranks(world: int, work: Callable[[int], Any], timeout_s: float) -> list[Any]:
        asked.append(f"{world} ranks")
        raise RankFailed(f"{world} ranks took longer than 1 s")

    monkeypatch.setattr(gpu_kernel, "check_kernel", kernel)
    monkeypatch.setattr(gpu_split, "check_split", split)
    monkeypatch.setattr(sys.modules[__name__], "in_turn", no_ranks)
    return asked


NEMO, BRIDGE = Source("nemo", broken), Source("megatron-bridge", broken)


def check(
    count: int, cps: tuple[int, ...], sources: tuple[Source, ...] = (NEMO,), said: list[str] | None = None
) -> list[Check]:
    say = ([] if said is None else said).append
    return list(gpu.check_gpu(here(count), cps, 0, say, sources))


@pytest.mark.parametrize(
    ("count", "cps", "why"),
    [(0, (2, 4), "0 GPUs found"), (2, (1,), "no context parallel size above 1 was asked for")],
)
def test_where_nothing_can_run_all_is_named(count: int, cps: tuple[int, ...], why: str) -> None:
    checks = check(count, cps)
    assert [(c.name, c.status, c.detail) for c in checks] == [(name, "not run", why) for name in ALL]


@pytest.mark.parametrize(
    ("count", "cps", "ranks", "left_out"),
    [
        (1, (2, 4), [], {2: "1 GPUs found, 2 are needed", 4: "1 GPUs found, 4 are needed"}),
        (2, (4, 2), ["2 ranks"], {4: "2 GPUs found, 4 are needed"}),
        (3, (1, 2), ["2 ranks"], {}),
        (8, (2, 4), ["2 ranks", "4 ranks"], {}),
    ],
)
def test_parity_takes_a_device_a_rank(
    ran: list[str], count: int, cps: tuple[int, ...], ranks: list[str], left_out: dict[int, str]
) -> None:
    sizes = tuple(sorted(cp for cp in cps if cp > 1))
    checks = check(count, cps)
    assert ran == [f"kernel {sizes}", f"nemo split {sizes}", *ranks]
    assert {c.cp: c.detail for c in checks if c.status == "not run"} == left_out
    parity = [(c.name, c.cp) for c in checks if c.name in gpu_parity.BOUNDS]
    assert parity == [(name, cp) for cp in sizes for name in gpu_parity.BOUNDS]
    assert Report(tuple(checks)).exit_code == (1 if ranks else 0)  # the ranks of this test fail


def test_without_transformer_engine_the_rest_says_why() -> None:
    def missing() -> Kernel:
        raise ModuleNotFoundError("No module named 'transformer_engine'")

    device = dataclasses.replace(here(2), kernel=missing)
    checks = list(gpu.check_gpu(device, (2,), 0, print, (NEMO,)))
    assert [(c.name, c.status) for c in checks] == [(name, "not run") for name in ALL]
    assert {c.detail for c in checks} == {"ModuleNotFoundError: No module named 'transformer_engine'"}


def test_without_megatron_core_the_rest_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_kernel, "_on_rank", lambda *_: Tried("", {2: []}))
    checks = check(2, (2,))
    assert [(c.name, c.status) for c in checks] == [
        (name, "passed" if name == gpu_kernel.NAME else "not run") for name in ALL
    ]
    assert {c.detail for c in checks[1:]} == {"megatron.core is not installed"}


@pytest.mark.usefixtures("core")
def test_a_stack_that_cannot_be_imported_is_told_once_and_the_rest_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_kernel, "_on_rank", lambda *_: Tried("", {2: []}))
    said: list[str] = []
    checks = check(2, (2,), said=said)
    assert [c.name for c in checks] == [gpu_kernel.NAME, "nemo: import", *ALL[1:]]
    assert {c.detail for c in checks[2:]} == {"the stack cannot be imported"}
    assert said == ["nemo_run"]


def test_parity_by_itself_tells_of_a_failed_import_too() -> None:
    checks = gpu_parity.check_parity(here(2), NEMO, 2, 0)
    assert [c.name for c in checks] == ["nemo: import", *gpu_parity.BOUNDS]


def test_two_stacks_are_told_apart(ran: list[str]) -> None:
    checks = check(1, (2,), (NEMO, BRIDGE))
    assert ran == ["kernel (2,)", "nemo split (2,)", "megatron-bridge split (2,)"]
    assert all(c.name.startswith("nemo 2.5.3, gpu: ") for c in checks[1:])


def test_megatron_core_by_itself_has_no_step_but_trains(ran: list[str]) -> None:
    checks = check(2, (2,), ())
    assert ran == ["kernel (2,)", "2 ranks"]
    assert {c.detail for c in checks if c.name in gpu_split.NAMES} == {
        "neither NeMo nor Megatron-Bridge is installed"
    }


def test_a_machine_without_gpus_says_so_and_its_exit_code_is_that_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    file = tmp_path / "megatron/core/utils.py"
    file.parent.mkdir(parents=True)
    file.write_text("x = 1\n")
    report = verify([tmp_path], "gpu", (2,), sys.executable, 120, files=[file])
    found = [c for c in report.checks if c.name.startswith("gpu")]
    assert [(c.name, c.status, c.detail) for c in found] == [
        (name, "not run", "0 GPUs found") for name in ALL
    ]
    without = Report(tuple(c for c in report.checks if c not in found), levels=report.levels)
    assert report.exit_code == without.exit_code

"""What ranks bring back is weighed without losing a NaN on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from migrator.verify import core_stack, parity
from migrator.verify.stack import Stack

pytestmark = pytest.mark.torch
STACK = Stack(
    "core",
    core_stack.unpacked,
    core_stack.batches,
    core_stack.params,
    core_stack.step,
    core_stack.loss,
    core_stack.logits,
)
NAN = float("nan")


@pytest.mark.parametrize(
    ("moved", "status", "measured"),
    [
        ([(0.0, 1.0), (0.0, 2.0)], "passed", 0.0),
        ([(0.0, 1.0), (0.5, 2.0)], "failed", 0.5),
        ([(NAN, 1.0), (0.0, 2.0)], "failed", float("inf")),
        ([(0.0, 1.0), (NAN, 2.0)], "failed", float("inf")),
        ([(0.0, 0.0), (0.0, 0.0)], "failed", None),
    ],
)
def test_a_leak_on_one_rank_counts_and_so_does_its_nan(
    tmp_path: Path,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    moved: list[tuple[float, float]],
    status: str,
    measured: float | None,
) -> None:
    def ranks(world: int, work: Callable[[int], Any], timeout_s: float) -> list[tuple[float, float]]:
        return moved

    monkeypatch.setattr(parity, "run_ranks", ranks)
    checks = parity.check_leak(STACK, tmp_path / "leak", [2], seed)
    assert [(check.cp, check.status, check.measured) for check in checks] == [
        (1, status, measured),
        (2, status, measured),
    ]


@pytest.mark.parametrize("losses", [(1.0, NAN), (NAN, 1.0)])
def test_a_nan_of_one_pack_is_no_small_deviation_of_the_loss(losses: tuple[float, float]) -> None:
    want = parity.Result((1.0, 1.0), {})
    loss, _ = parity._compare("parity", 2, [parity.Result(losses, {})], want, (1.0, 1.0))
    assert (loss.status, loss.measured) == ("failed", float("inf"))

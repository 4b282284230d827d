"""The loss curves of two context parallel sizes, laid over each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from migrator.verify import curves

pytestmark = pytest.mark.torch
NAN = float("nan")


@pytest.mark.parametrize(
    ("losses", "status"),
    [([2.0, 1.0, 0.5], "passed"), ([2.0, 1.1, 0.5], "failed"), ([2.0, NAN, 0.5], "failed")],
)
def test_a_curve_that_leaves_the_other_one_fails_wherever_it_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, losses: list[float], status: str
) -> None:
    stack: Any = None
    monkeypatch.setattr(curves, "write", lambda *_: None)
    monkeypatch.setattr(curves, "_curve", lambda _, __, cp, ___: losses if cp > 1 else [2.0, 1.0, 0.5])
    (check,) = curves.check_curves(stack, tmp_path, (2,), 0, lambda *_: None)
    assert check.status == status

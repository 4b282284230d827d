"""A row that one more argument makes too long is broken as upstream's formatter would."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace

import pytest

from migrator.model import Argument
from tests.edits import argument, written

PARAMETER = argument("f", "new: int = 1")
KEYWORD = argument("g", "new=x", "f")


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        (PARAMETER, "def f(a, b):\n    pass\n", "def f(\n    a, b, new: int = 1\n):\n    pass\n"),
        (
            PARAMETER,
            "def f(a: int = (1), *, b=')') -> int:\n    pass\n",
            "def f(\n    a: int = (1), new: int = 1, *, b=')'\n) -> int:\n    pass\n",
        ),
        (
            PARAMETER,
            "class C:\n  async def f(self):\n    pass\n\n\ndef f(a):  # why\n  pass\n",
            "class C:\n  async def f(self):\n    pass\n\n\ndef f(\n  a, new: int = 1\n):  # why\n  pass\n",
        ),
        (KEYWORD, "def g():\n    f(a, b)\n", "def g():\n    f(\n        a, b, new=x\n    )\n"),
        (
            KEYWORD,
            "def g():\n\ty = f(h(1), **k)[0]\n",
            "def g():\n\ty = f(\n\t\th(1), new=x, **k\n\t)[0]\n",
        ),
    ],
)
def test_broken_at_its_parentheses(edit: Argument, before: str, after: str) -> None:
    assert written(before, replace(edit, width=12)) == after
    assert written(before.replace("\n", "\r\n"), replace(edit, width=12)) == after.replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("width", "is_broken"), [(0, False), (29, False), (28, False), (27, True), (9, True)]
)
def test_only_where_it_is_too_long(width: int, is_broken: bool) -> None:
    after = written("def f(a): pass", replace(PARAMETER, width=width))
    assert (after != "def f(a, new: int = 1): pass") is is_broken


def test_rows_of_their_own_stay_as_they_are() -> None:
    before = "def f(\n    a,\n    b,\n):\n    pass\n"
    assert written(before, replace(PARAMETER, width=5)) == written(before, PARAMETER)


@pytest.mark.parametrize("length", range(1, 60, 7))
def test_is_what_a_formatter_makes_of_it(length: int) -> None:
    name = "a" * length
    for edit, before in (
        (PARAMETER, f"def f({name}, second) -> None:\n    pass\n"),
        (KEYWORD, f"def g():\n    value = f({name}, second)\n"),
    ):
        after = written(before, replace(edit, width=60))
        assert ast.dump(ast.parse(after)) == ast.dump(ast.parse(written(before, edit)))
        ruff = [sys.executable, "-m", "ruff", "format", "--isolated", "--config", "line-length=60", "-"]
        formatted = subprocess.run(ruff, input=after, capture_output=True, text=True, check=True).stdout
        if max(map(len, after.splitlines())) <= 60:
            assert formatted == after

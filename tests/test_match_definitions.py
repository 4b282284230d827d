"""New definitions, parameters and keyword arguments, and the probes that know upstream's own fix."""

from __future__ import annotations

import pytest

from migrator.match import Found, holds
from migrator.model import Probe
from tests.edits import argument, insert, look, module, probe

TO_DO, DONE, NEITHER = Found.TO_DO, Found.DONE, Found.NEITHER

# --- new definitions

NEW = "def new(x):\n    '''What it does.'''\n    return x"


def test_insert() -> None:
    edit = insert(NEW, "f")
    assert look(edit, "def f(): pass\n").found is TO_DO
    assert look(edit, f"{NEW}\n\n\ndef f(): pass\n").found is DONE
    assert look(edit, f"def f(): pass\n\n\n{NEW}\n").found is DONE
    assert look(edit, 'def new( x ):\n  """What it does."""\n  return (x)  # why\n').found is DONE
    assert "there is no `f`" in look(edit, "def g(): pass\n").reason


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def new(x):\n    return x + 1\n", "`new` is there already, but it is other code than this patch's"),
        ("new = 1\n", "`new` is there already, but it is other code than this patch's"),
        ("class new: pass\n", "`new` is there already"),
        (f"{NEW}\n{NEW}\n", "`new` is there already"),
        (
            f"if x:\n    {NEW.replace(chr(10), chr(10) + '    ')}\nelse:\n    def new(x): return x\n",
            "`new` is there",
        ),
    ],
)
def test_insert_where_the_name_is_taken(text: str, said: str) -> None:
    finding = look(insert(NEW, "f"), f"{text}\n\ndef f(): pass\n")
    assert finding.found is NEITHER
    assert said in finding.reason


def test_insert_of_several() -> None:
    edit = insert(f"LIMIT = 1\n\n\nOTHER: int = 2\n\n\n{NEW}", "f")
    assert edit.names == ("LIMIT", "OTHER", "new")
    assert look(edit, "def f(): pass\n").found is TO_DO
    assert look(edit, f"OTHER: int = 2\nLIMIT = 1\n{NEW}\n").found is DONE
    finding = look(edit, f"LIMIT = 1\n{NEW}\ndef f(): pass\n")
    assert finding.found is NEITHER
    assert finding.reason == "`LIMIT` is there, but `OTHER` is not"


# --- parameters and keyword arguments

PARAMETER = argument("f", "new: int = 1")


@pytest.mark.parametrize(
    ("text", "expected", "said"),
    [
        ("def f(a): pass", TO_DO, ""),
        ("def f(a, *args, b=1, **kwargs): pass", TO_DO, ""),
        ("async def f(a): pass", TO_DO, ""),
        ("def f(a, new: int = 1): pass", DONE, ""),
        ("def f(a, new: (int) = 0x1, *, b): pass", DONE, ""),
        ("def f(a, *, new: int = 1): pass", DONE, ""),
        ("def f(a, new=1): pass", NEITHER, "`f` has its own parameter `new`"),
        ("def f(a, new: int = 2): pass", NEITHER, "`f` has its own parameter `new`"),
        ("def f(a, new: int): pass", NEITHER, "`f` has its own parameter `new`"),
        ("def f(new: int = 1, /, a=1): pass", NEITHER, "`f` has its own parameter `new`"),
        ("def f(a, *new): pass", NEITHER, "`f` has its own parameter `new`"),
        ("def f(a, **new): pass", NEITHER, "`f` has its own parameter `new`"),
        ("def f(): pass", NEITHER, "`f` has no parameter to add `new` behind"),
        ("def f(*args, **kwargs): pass", NEITHER, "`f` has no parameter to add `new` behind"),
        ("def f(a, /): pass", NEITHER, "`f` has no parameter to add `new` behind"),
        ("class f: pass", NEITHER, "`f` is not a function"),
        ("def g(a): pass", NEITHER, "there is no `f`"),
    ],
)
def test_parameter(text: str, expected: Found, said: str) -> None:
    finding = look(PARAMETER, text)
    assert finding.found is expected
    assert said in finding.reason


@pytest.mark.parametrize(
    ("body", "expected", "said"),
    [
        ("f(a)", TO_DO, ""),
        ("f(*a)", TO_DO, ""),
        ("f(a, **b)", TO_DO, ""),
        ("f(\n        a,\n    )", TO_DO, ""),
        ("f(a, new=x)", DONE, ""),
        ("f(new = (x), **b)", DONE, ""),
        ("f(a, new=y)", NEITHER, "calls `f` with another `new`, or not every time"),
        ("f()", NEITHER, "calls `f` without an argument to add `new` behind"),
        ("f(**b)", NEITHER, "calls `f` without an argument to add `new` behind"),
        ("f(a) + f(b)", NEITHER, "calls `f` 2 times, 1 wanted"),
        ("g.f(a)", NEITHER, "calls `f` 0 times, 1 wanted"),
        ("f", NEITHER, "calls `f` 0 times, 1 wanted"),
    ],
)
def test_keyword(body: str, expected: Found, said: str) -> None:
    finding = look(argument("h", "new=x", "f"), f"def h():\n    return {body}\n")
    assert finding.found is expected
    assert said in finding.reason


def test_keyword_in_several_calls() -> None:
    edit = argument("h", "new=x", "m.f", 2)
    assert look(edit, "def h():\n    m.f(m.f(a))\n").found is TO_DO
    assert look(edit, "def h():\n    m.f(m.f(a, new=x), new=x)\n").found is DONE
    assert look(edit, "def h():\n    m.f(m.f(a), new=x)\n").found is NEITHER
    assert look(edit, "def h():\n    m.f(a)\n").found is NEITHER


# --- probes

CODE = """
class C:
    field: int = 1
    other = 2
    def f(self, a, *, b=1):
        x.g(a, key=1)
        if a:
            return 'text'
"""


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (probe("C.f", present=" return \"text\""), True),
        (probe("C.f", present=" if a:\n     ...\n     return $X"), True),
        (probe("C.f", present=" if b:\n     return 'text'"), False),
        (probe("", present=" return 'text'"), True),
        (probe("C.g", present=" return 'text'"), False),
        (probe("C.f", calls="g"), True),
        (probe("C.f", calls="x"), False),
        (probe("C.f", calls="key"), False),
        (probe("C.f", passes="key"), True),
        (probe("C.f", passes="a"), False),
        (probe("C", defines="field"), True),
        (probe("C", defines="other"), True),
        (probe("C", defines="f"), True),
        (probe("C", defines="a"), False),
        (probe("C.f", defines="b"), True),
        (probe("C.f", defines="key"), False),
        (probe("", defines="C"), True),
        (probe("C.f", calls="g", passes="key", defines="a"), True),
        (probe("C.f", calls="g", passes="keys"), False),
        (probe("C.f", calls="g", present=" return 'other'"), False),
        (probe("D", calls="g"), False),
    ],
)  # fmt: skip
def test_probe(condition: Probe, expected: bool) -> None:
    assert holds(condition, module(CODE)) is expected

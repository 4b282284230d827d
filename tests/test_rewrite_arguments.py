"""Parameters and keyword arguments, added to lists of every shape."""

from __future__ import annotations

import ast
import io
import tokenize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.edits import argument, written

PARAMETER = argument("f", "new: int = 1")
KEYWORD = argument("g", "new=x", "f")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(a): pass", "def f(a, new: int = 1): pass"),
        ("def f(a,): pass", "def f(a, new: int = 1,): pass"),
        ("def f( a , b = 2 ) : pass", "def f( a , b = 2, new: int = 1 ) : pass"),
        ("def f(a: 'int'): pass", "def f(a: 'int', new: int = 1): pass"),
        ("def f(a: int = (1)): pass", "def f(a: int = (1), new: int = 1): pass"),
        ("def f(a=((1), 2)): pass", "def f(a=((1), 2), new: int = 1): pass"),
        ("def f(a: (int)): pass", "def f(a: (int), new: int = 1): pass"),
        ("def f(a=lambda x, y=1: (x, y)): pass", "def f(a=lambda x, y=1: (x, y), new: int = 1): pass"),
        ("def f(a, /, b): pass", "def f(a, /, b, new: int = 1): pass"),
        ("def f(a, *args, b=1, **k): pass", "def f(a, new: int = 1, *args, b=1, **k): pass"),
        ("def f(a, *, b): pass", "def f(a, new: int = 1, *, b): pass"),
        ("def f(a, **k): pass", "def f(a, new: int = 1, **k): pass"),
        ("async def f(a) -> int: pass", "async def f(a, new: int = 1) -> int: pass"),
        ("@d(f=1)\ndef f(a):\n    def f(b): pass", "@d(f=1)\ndef f(a, new: int = 1):\n    def f(b): pass"),
        ("def f(a,\n      b):\n    pass", "def f(a,\n      b,\n      new: int = 1):\n    pass"),
        ("def f(\n    a,\n    b\n):\n    pass", "def f(\n    a,\n    b,\n    new: int = 1\n):\n    pass"),
        ("def f(\n    a,\n    b,\n):\n    pass", "def f(\n    a,\n    b,\n    new: int = 1,\n):\n    pass"),
        ("def f(\n    a, b,\n):\n    pass", "def f(\n    a, b, new: int = 1,\n):\n    pass"),
        ("def f(\n    a, b\n):\n    pass", "def f(\n    a, b, new: int = 1\n):\n    pass"),
        ("def f(\n    a,):\n    pass", "def f(\n    a,\n    new: int = 1,):\n    pass"),
        ("def f(\n  a,  # a\n  # end\n):\n  pass", "def f(\n  a,  # a\n  new: int = 1,\n  # end\n):\n  pass"),
        ("def f(\n  a  # of a\n):\n  pass", "def f(\n  a,  # of a\n  new: int = 1\n):\n  pass"),
        ("def f(\n  a,\n  *,\n  b,\n):\n  pass", "def f(\n  a,\n  new: int = 1,\n  *,\n  b,\n):\n  pass"),
        ("def f(\n  a, *, b,\n):\n  pass", "def f(\n  a,\n  new: int = 1, *, b,\n):\n  pass"),
        ("def f(\n  a, **k\n):\n  pass", "def f(\n  a,\n  new: int = 1, **k\n):\n  pass"),
        ("def f(\n a=g(\n  1,\n ),\n):\n  pass", "def f(\n a=g(\n  1,\n ),\n new: int = 1,\n):\n  pass"),
        ("def f(a=g(\n    1)):\n  pass", "def f(a=g(\n    1), new: int = 1):\n  pass"),
        ("def f(é='ü'): pass", "def f(é='ü', new: int = 1): pass"),
        ("if x:\n  def f(a): pass", "if x:\n  def f(a, new: int = 1): pass"),
    ],
)
def test_parameter(before: str, after: str) -> None:
    assert written(before, PARAMETER) == after
    assert written(before.replace("\n", "\r\n"), PARAMETER) == after.replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(a)", "f(a, new=x)"),
        ("f(a,)", "f(a, new=x,)"),
        ("f((a))", "f((a), new=x)"),
        ("f(a=(1))", "f(a=(1), new=x)"),
        ("f ( a )", "f ( a, new=x )"),
        ("f(*a)", "f(*a, new=x)"),
        ("f(*a, **b)", "f(*a, new=x, **b)"),
        ("f(a, b=1, **c)", "f(a, b=1, new=x, **c)"),
        ("f(a, **b, c=1)", "f(a, **b, c=1, new=x)"),
        ("f(f_(a), h(f))", "f(f_(a), h(f), new=x)"),
        ("f((i for i in a))", "f((i for i in a), new=x)"),
        ("(f)(a)", "(f)(a, new=x)"),
        ("f(a)(b)", "f(a, new=x)(b)"),
        ("[f(i) for i in a if f]", "[f(i, new=x) for i in a if f]"),
        ("(yield f(a))", "(yield f(a, new=x))"),
        ("f(\n        a,\n        b\n    )", "f(\n        a,\n        b,\n        new=x\n    )"),
        (
            "f(\n        a,\n        b,  # of b\n    )",
            "f(\n        a,\n        b,  # of b\n        new=x,\n    )",
        ),
        (
            "f(\n        a,\n        b  # of b\n    )",
            "f(\n        a,\n        b,  # of b\n        new=x\n    )",
        ),
        ("f(\n        a, b\n    )", "f(\n        a, b, new=x\n    )"),
        ("f(a,\n      b)", "f(a,\n      b,\n      new=x)"),
        ("f(\n        a,\n        **b,\n    )", "f(\n        a,\n        new=x,\n        **b,\n    )"),
        ("f(\n        a, **b\n    )", "f(\n        a,\n        new=x, **b\n    )"),
        ("f(\n        '''\na\n'''\n    )", "f(\n        '''\na\n''',\n        new=x\n    )"),
        ("h(\n        f(a), b\n    )", "h(\n        f(a, new=x), b\n    )"),
    ],
)
def test_keyword(before: str, after: str) -> None:
    head, tail = "def g():\n    return ", "  # why\n"
    assert written(f"{head}{before}{tail}", KEYWORD) == f"{head}{after}{tail}"


def test_keyword_in_nested_calls() -> None:
    edit = argument("C.g", "new=x", "m.f", 3)
    before = "class C:\n    def g(self, a=m.f(1)):\n        m . f(m.f(a), f(a))\n"
    after = "class C:\n    def g(self, a=m.f(1, new=x)):\n        m . f(m.f(a, new=x), f(a), new=x)\n"
    assert written(before, edit) == after


# --- any list

NAMES = st.sampled_from(["a", "b: int", "c='x'", "d: str = (1)", "e=lambda y, z: (y, z)", "g=h(1, k=2)"])
BETWEEN = st.sampled_from(["", " ", "\n    ", "  # why\n    ", "\n\n    # alone\n        "])


@st.composite
def lists(draw: st.DrawFn, items: st.SearchStrategy[str], last: list[str]) -> str:
    """Items with commas, comments and line breaks between; some with a comma at the end."""
    parts = draw(st.lists(items, min_size=1, max_size=4, unique_by=lambda text: text[0]))
    parts = [*parts, *draw(st.sampled_from([[], *([text] for text in last)]))]
    text = draw(BETWEEN)
    for index, part in enumerate(parts):
        text += part + draw(BETWEEN)
        if index + 1 < len(parts) or ("*" not in part and draw(st.booleans())):
            text += "," + draw(BETWEEN)
    return text + draw(BETWEEN)


def tokens(text: str) -> list[str]:
    """All that is not blank, comments included."""
    found = tokenize.generate_tokens(io.StringIO(text).readline)
    return [t.string for t in found if t.string.strip()]


def without(text: str, added: list[str]) -> list[str]:
    """The tokens without those that were added, and without commas."""
    rest = tokens(text)
    start = next(i for i in range(len(rest)) if [t for t in rest[i:] if t[0] != "#"][: len(added)] == added)
    while added:
        if rest[start] == added[0]:
            del rest[start], added[0]
        else:
            start += 1
    return [t for t in rest if t != ","]


@given(lists(NAMES, ["*args", "*, z", "*args, z=1, **k", "**k"]))
def test_any_parameters(text: str) -> None:
    ordered = f"def f({text}): pass\n"
    try:
        before = ast.parse(ordered).body[0]
    except SyntaxError:  # a default before a parameter without one
        return
    new = written(ordered, PARAMETER)
    after = ast.parse(new).body[0]
    assert isinstance(before, ast.FunctionDef)
    assert isinstance(after, ast.FunctionDef)
    assert ast.unparse(after.args.args.pop()) == "new: int"
    assert ast.unparse(after.args.defaults.pop()) == "1"
    assert ast.dump(after.args) == ast.dump(before.args)
    assert without(new, ["new", ":", "int", "=", "1"]) == [t for t in tokens(ordered) if t != ","]


@given(lists(st.sampled_from(["a", "b(1)", "c='x'", "d=(1)", "*e", "g=[\n1]"]), ["**k", "**k, z=1"]))
def test_any_arguments(text: str) -> None:
    ordered = f"def g():\n  return f({text})\n"
    try:
        before = ast.parse(ordered).body[0]
    except SyntaxError:  # a positional argument behind a keyword
        return
    new = written(ordered, KEYWORD)
    after = ast.parse(new).body[0]
    assert ast.unparse(after).replace(", new=x", "") == ast.unparse(before)
    assert ast.unparse(after).count(", new=x") == 1
    assert without(new, ["new", "=", "x"]) == [t for t in tokens(ordered) if t != ","]

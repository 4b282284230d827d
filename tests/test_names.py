"""Names that new code leans on and its module doesn't have."""

from __future__ import annotations

import pytest

from migrator.names import undefined
from tests.edits import module


@pytest.mark.parametrize(
    "text",
    [
        "import a\na.b()",
        "import a.b as c\nc",
        "import a.b\na",
        "from a import b as c\nc",
        "a = 1\nprint(a, len, ValueError, __name__, __file__)",
        "a: int = 1\na",
        "def f(x, *y, z=1, **k):\n    return x, y, z, k, f",
        "def f():\n    return later\nlater = 1",
        "def f():\n    global made\n    made = 1\nmade",
        "def f():\n  x = 1\n  def g():\n    nonlocal x\n    x = 2\n    return x\n  return g",
        "class C:\n    a = 1\n    b = a\n    def f(self):\n        return C, self, super(), __class__",
        "[x for x in range(3) if x]\n{y: z for y, z in []}\n(lambda q: q)(1)",
        "try:\n    pass\nexcept ValueError as e:\n    print(e)",
        "with open('a') as f:\n    f",
        "for i, (j, *k) in []:\n    i, j, k",
        "if (n := 1):\n    n",
        "match 1:\n    case {'a': b, **c}:\n        b, c\n    case [d, *e] | (d, *e):\n        d, e",
        "def f(a: 'Nowhere') -> 'Nowhere': pass",
        "if False:\n    from a import only_for_types\nonly_for_types",
        "async def f(x):\n    async with x as y:\n        return [z async for z in y]",
        "# coding: latin-1\nx = '\\xe9'",
    ],
)
def test_all_is_there(text: str) -> None:
    assert undefined(module(text)) == set()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", {"a"}),
        ("def f():\n    return helper(x)\n", {"helper", "x"}),
        ("class C(Base):\n    y = z\n    def f(self):\n        return y\n", {"Base", "z", "y"}),
        ("def f(a=torch.float, *, b: List[int] = None): pass", {"torch", "List"}),
        ("@decorated\ndef f(): pass", {"decorated"}),
        ("[x for y in z]", {"x", "z"}),
        ("import a.b\nb", {"b"}),
        ("def f():\n    x = 1\nx", {"x"}),
        ("lambda: gone", {"gone"}),
        ("f'{a} {b!r:>{c}}'", {"a", "b", "c"}),
        ("del a", set()),
        ("a.b.c = d", {"a", "d"}),
        ("a += 1", set()),
    ],
)
def test_what_is_missing(text: str, names: set[str]) -> None:
    assert undefined(module(text)) == names


def test_upstreams_own_loose_names_do_not_count_against_a_patch() -> None:
    before, after = module("def f():\n    return loose\n"), module("def f():\n    return loose, new\n")
    assert undefined(after) - undefined(before) == {"new"}

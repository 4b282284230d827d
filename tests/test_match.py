"""Is an edit to be made, made already, or neither: the matching rules of patches/README.md, one by one."""

from __future__ import annotations

import pytest

from migrator.match import Found
from tests.edits import hunk, look

TO_DO, DONE, NEITHER = Found.TO_DO, Found.DONE, Found.NEITHER


def found(edit: str, text: str, scope: str = "") -> Found:
    return look(hunk(edit, scope), text).found


def reason(edit: str, text: str, scope: str = "") -> str:
    finding = look(hunk(edit, scope), text)
    assert finding.found is NEITHER
    return finding.reason


# --- hunks: what doesn't matter

CALL = "-x = f('a', b, c=1)\n+x = g('a')"


@pytest.mark.parametrize(
    "statement",
    [
        "x = f('a', b, c=1)",
        'x = f("a", b, c=1)',
        "x = f('''a''', b, c=1,)",
        "x = (f('a', b, c=1))",
        "x=f ( 'a',b,c = 1 )  # why",
        "x = f(\n    'a',  # one\n\n    b,\n    # two\n    c=1,\n)",
        "x = \\\n  f('a',\\\n b, c=1)",
        "x = f('' 'a', b, c=0x1)",
        "x = f('a', b, c=1); y",
        "# above\nx = f('a', b, c=1)\n# below",
        "if z: x = f('a', b, c=1)",
    ],
)
def test_formatting_does_not_matter(statement: str) -> None:
    assert found(CALL, statement + "\n") is TO_DO
    assert found(CALL, statement.replace("\n", "\r\n")) is TO_DO
    assert found("-x = g('a')\n+x = f('a', b, c=1)", statement) is DONE


@pytest.mark.parametrize(
    "statement",
    [
        "x = f('b', b, c=1)",
        "x = f('a', b, c=True)",
        "x = f('a', b, d=1)",
        "x = f('a', c=1)",
        "x = f('a', b, c=1, d=2)",
        "x: int = f('a', b, c=1)",
        "x += f('a', b, c=1)",
        "x = y = f('a', b, c=1)",
        "return_ = f('a', b, c=1)",
        "x = f('a', b, c=1) or z",
        "# x = f('a', b, c=1)",
        "'''\nx = f('a', b, c=1)\n'''",
        "f('a', b, c=1)",
    ],
)
def test_other_code_is_other_code(statement: str) -> None:
    assert found(CALL, statement) is NEITHER


# --- consecutive lines, depth, clauses


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\n", TO_DO),
        ("a\n\n\n# why\nb\n", TO_DO),
        ("a; b\n", TO_DO),
        ("if x:\n    a\n    b\n", TO_DO),
        ("a\nc\nb\n", NEITHER),
        ("if x:\n    a\nb\n", NEITHER),
        ("a\nif x:\n    b\n", NEITHER),
        ("b\na\n", NEITHER),
        ("a\nnew\n", DONE),
    ],
)
def test_consecutive_lines(text: str, expected: Found) -> None:
    assert found(" a\n-b\n+new", text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("if a:\n    b\nelse:\n    c\n", TO_DO),
        ("if z:\n    y\nelif a:\n    b\nelse:\n    c\n", NEITHER),
        ("if a: b\nelse: c\n", TO_DO),
        ("if a:\n    b\n# why\nelse  :\n    c\n", TO_DO),
        ("while a:\n    b\nelse:\n    c\n", NEITHER),
        ("if a:\n    b\nelif d:\n    c\n", NEITHER),
        ("if a:\n    b\nelse:\n    if d:\n        c\n", NEITHER),
        ("if a:\n    b\nc\n", NEITHER),
    ],
)
def test_if_else(text: str, expected: Found) -> None:
    assert found(" if a:\n     b\n else:\n-    c\n+    new", text) is expected


def test_elif_and_else_if_are_not_the_same() -> None:
    chain, nested = "if a:\n    b\nelif c:\n    d\n", "if a:\n    b\nelse:\n    if c:\n        d\n"
    assert found("-elif c:\n+elif new:", chain) is TO_DO
    assert found("-elif c:\n+elif new:", nested) is NEITHER
    assert found(" else:\n-    if c:\n+    if new:", nested) is TO_DO
    assert found("-if c:\n+if new:", nested) is TO_DO
    assert found("-if c:\n+if new:", chain) is NEITHER


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (" except E as e:\n-    a\n+    b", "try:\n    x\nexcept E as e:\n    a\n"),
        (" except* E:\n-    a\n+    b", "try:\n    x\nexcept* E:\n    a\n"),
        (" finally:\n-    a\n+    b", "try:\n    x\nfinally:\n    # why\n    a\n"),
        (" else:\n-    a\n+    b", "try:\n    x\nexcept E: pass\nelse: a\n"),
        (" try:\n-    a\n+    b", "try:\n    a\nfinally:\n    x\n"),
        (" match a:\n     case [b, *_]:\n-        c\n+        d", "match a:\n    case [b, *_]:\n        c\n"),
        ("     case _ if x:\n-        c\n+        d", "match a:\n  case 1: c\n  case _ if x: c\n"),
        (
            " async with a as b:\n-    await c\n+    await d",
            "async def f():\n  async with (a) as b: await c\n",
        ),
        (" async for i in a:\n-    c\n+    d", "async def f():\n    async for i in a: c\n"),
        (" with a, b as c:\n-    d\n+    e", "with (a, b as c):\n    d\n"),
        (" for i in a:\n     b\n else:\n-    c\n+    d", "for i in a: b\nelse: c\n"),
        (" while a:\n-    b\n+    c", "while (a):\n    b\n"),
        (
            " def f(a, *, b=1) -> int:\n-    c\n+    d",
            "@x\ndef f(a, *, b = 1,) -> int:\n  'doc'\n  c\n",
        ),
        (" @x\n def f():\n-    c\n+    d", "@x\ndef f(): c\n"),
        (" class C(B):\n-    a: int\n+    a: str", "class C(B):\n    '''doc'''\n\n    a: int\n"),
    ],
)
def test_headers_and_clauses(edit: str, text: str) -> None:
    assert found(edit, text) is TO_DO
    *context, goes, comes = edit.split("\n")
    assert found("\n".join([*context, "-" + comes[1:], "+" + goes[1:]]), text) is DONE


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (" @x\n def f():\n-    c\n+    d", "def f(): c\n"),
        (" @x\n def f():\n-    c\n+    d", "@x\n@y\ndef f(): c\n"),
        (" def f():\n-    c\n+    d", "async def f(): c\n"),
        (" def f():\n-    c\n+    d", "def f(a): c\n"),
        (" class C:\n-    c\n+    d", "class C(B): c\n"),
        (" with a:\n-    c\n+    d", "with a as b: c\n"),
        (" except E:\n-    a\n+    b", "try:\n    x\nexcept E as e:\n    a\n"),
        (" else:\n-    a\n+    b", "try:\n    x\nfinally:\n    a\n"),
    ],
)
def test_other_headers(edit: str, text: str) -> None:
    assert found(edit, text) is NEITHER


# --- gaps and holes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("if a:\n    c\n", TO_DO),
        ("if a:\n    b\n    if x:\n        y\n    c\n", TO_DO),
        ("if a:\n    b\nelse:\n    c\n", NEITHER),
        ("if a:\n    b\nc\n", NEITHER),
        ("if a:\n    if x:\n        c\n", NEITHER),
        ("if a:\n    c\n    c\n", NEITHER),
        ("if a:\n    b\n    new\n", DONE),
    ],
)
def test_a_gap_stands_for_any_statements_at_its_depth_or_deeper(text: str, expected: Found) -> None:
    assert found(" if a:\n     ...\n-    c\n+    new", text) is expected


def test_a_gap_may_cross_clauses_at_its_depth() -> None:
    text = "a\nif x:\n    y\nelse:\n    z\nb\n"
    assert found(" a\n ...\n-b\n+c", text) is TO_DO


def test_holes() -> None:
    edit = "-x = f($A, $B, $A)\n+x = g($B)"
    assert found(edit, "x = f(a + 1, [b], a+1)\n") is TO_DO
    assert found(edit, "x = f(\n    a + 1,  # why\n    [\n        b\n    ],\n    (a + 1)\n)\n") is TO_DO
    assert found(edit, "x = f(a, b, c)\n") is NEITHER
    assert found(edit, "x = f(a, b)\n") is NEITHER
    assert found(edit, "x = f(a, *b, a)\n") is TO_DO
    assert found(edit, "x = f(a, b, a)\nx = f(c, b, c)\n") is NEITHER
    assert found(" $A = 1\n-f($A)\n+g($A)", "x = 1\nf(x)\n") is TO_DO
    assert found(" $A = 1\n-f($A)\n+g($A)", "x = 1\nf(y)\n") is NEITHER


# --- made already, once, and only once


def test_lines_that_come_are_not_added_twice() -> None:
    assert found(" a\n+b", "a\n") is TO_DO
    assert found(" a\n+b", "a\nb\n") is DONE
    assert found("+b\n a", "b\na\n") is DONE
    assert found(" a\n+b\n c", "a\nb\nc\n") is DONE
    assert found(" a\n+b\n ...\n+d\n e", "a\nb\nx\nd\ne\n") is DONE
    assert found(" a\n+b\n ...\n+d\n e", "a\nx\ne\n") is TO_DO
    assert found(" a\n+a", "a\na\n") is DONE


@pytest.mark.parametrize(
    ("edit", "text", "row"),
    [
        (" a\n+b\n+c", "a\nb\nd\n", 2),
        (" a\n+b\n+c\n d", "a\nd\n", 0),
        (" a\n+b\n ...\n+d\n e", "a\nb\nx\ne\n", 2),
        (" a\n+b\n ...\n+d\n e", "a\nx\nd\ne\n", 3),
        ("+b\n+c\n a", "c\na\n", 1),
        ("-a\n+b\n+c", "a\nb\n", 2),
        (" if a:\n+    b\n+    c\n     ...\n     d", "if a:\n    b\n    d\n", 2),
        (" if a:\n+    b\n+    c\n     ...\n     d", "if a:\n    x\n    d\n", 0),
        (" x\n+b\n+c", "if a:\n    x\nb\n", 0),
        (" a\n+b\n b", "a\nb\n", 0),
    ],
)
def test_half_an_edit_is_not_made_on_top(edit: str, text: str, row: int) -> None:
    finding = look(hunk(edit), text)
    assert finding.found is (NEITHER if row else TO_DO)
    assert not row or f"(line {row}) is there already, but not all of the edit" in finding.reason


def test_lines_that_go() -> None:
    assert found(" a\n-b\n c", "a\nb\nc\n") is TO_DO
    assert found(" a\n-b\n c", "a\nc\n") is DONE
    assert found(" a\n-b\n c", "a\nx\nc\n") is NEITHER
    assert found(" a\n-b\n c\n-d\n e", "a\nb\nc\nd\ne\n") is TO_DO
    assert found(" a\n-b\n c\n-d\n e", "a\nc\ne\n") is DONE
    assert found(" a\n-b\n c\n-d\n e", "a\nb\nc\ne\n") is NEITHER


def test_an_edit_whose_result_matches_its_own_start_is_to_be_made() -> None:
    assert found("-x = f($A)\n+x = $A", "x = f(1)\n") is TO_DO
    assert found("-x = f($A)\n+x = $A", "x = 1\n") is DONE


@pytest.mark.parametrize(
    ("edit", "text", "rows"),
    [
        ("-a\n+b", "a\na\n", "lines 1, 2"),
        ("-a\n+b", "a\nb\n", "lines 1, 2"),
        ("-a\n+b", "b\nx\nb\n", "lines 1, 3"),
        (" a\n+b", "a\nx\na\n", "lines 1, 3"),
        (" a\n+b", "a\nb\nx\na\n", "lines 4, 1"),
        (" a\n-b\n c", "a\nb\nc\na\nc\n", "lines 1, 4"),
        (" a\n ...\n-b\n+c", "a\nb\nb\n", "lines 1, 1"),
    ],
)
def test_many_places(edit: str, text: str, rows: str) -> None:
    assert reason(edit, text) == f"{2} places fit ({rows}), exactly one is wanted"


def test_the_scope_makes_it_one() -> None:
    text = "def f():\n    a\ndef g():\n    a\nclass C:\n    def f(self):\n        a\n"
    assert "4 places" not in reason("-a\n+b", text)
    assert "3 places fit (lines 2, 4, 7)" in reason("-a\n+b", text)
    for scope in ("f", "g", "C", "C.f"):
        assert found("-a\n+b", text, scope) is TO_DO


# --- what is said where nothing is found


@pytest.mark.parametrize(
    ("edit", "text", "scope", "said"),
    [
        ("-output = split(batch)\n+x", "def f():\n    output = splits(batch)\n", "f",
         "`output = split(batch)` was not found; the nearest candidate is line 2: `output = splits(batch)`"),
        ("-if val is not None:\n+if x:", "def f():\n    if a:\n        pass\n    elif val is None: b\n", "f",
         "`if val is not None:` was not found; the nearest candidate is line 4: `elif val is None:`"),
        (" if a:\n-    b\n+    c", "if a:\n    x\nb\n", "",
         "`if a:` is there, but not in the surroundings that the patch knows"),
        ("-abcdefgh\n+b", "1\n", "", "`abcdefgh` was not found, nor anything like it"),
        ("-a\n+b", "", "", "`a` was not found, nor anything like it"),
        ("-f(\n-    a,\n-)\n+b", "f(b)\n", "",
         "`f( a, )` was not found; the nearest candidate is line 1: `f(b)`"),
        ("-a\n+b", "def gpt_step(): a\n", "gpt_data_step",
         "there is no `gpt_data_step`; the nearest name is `gpt_step`"),
        ("-a\n+b", "def zzz(): a\n", "gpt_data_step", "there is no `gpt_data_step`"),
        ("-a\n+b", "if x:\n    def f(): a\nelse:\n    def f(): a\n", "f",
         "`f` is defined 2 times (lines 2, 4)"),
        ("-a\n+b", "class C:\n    def f(self): a\n", "C.g", "there is no `C.g`; the nearest name is `C`"),
    ],
)  # fmt: skip
def test_the_nearest_candidate(edit: str, text: str, scope: str, said: str) -> None:
    assert reason(edit, text, scope) == said


def test_every_kind_of_line_can_be_the_nearest_candidate() -> None:
    text = "try:\n    a\nexcept ValueError: b\nelse: c\nfinally: d\nmatch x:\n    case [one]: e\n"
    assert "line 3: `except ValueError:`" in reason("-except ValueErrors:\n+except E:\n     b", text)
    assert "line 7: `case [one]:`" in reason("-    case [ones]:\n+    case _:\n         b", text)
    assert "line 5: `finally:`" in reason("-finally_\n+x", text)
    assert "line 1: `async def gg():`" in reason(
        "-async def ggg():\n+def f():", "@decorated\nasync def gg(): x\n"
    )

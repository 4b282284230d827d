"""Edits as they stand in a patch file: read into logical lines, or refused with a reason."""

from __future__ import annotations

import ast

import pytest

from migrator.pattern import BadPattern, Pattern, fill, read, read_change, read_context
from migrator.source import HOLE, Bindings


def shown(pattern: Pattern) -> list[tuple[str, str, int]]:
    """Mark, kind ("..." for a gap) and depth of each line."""
    return [(w.mark, w.line.kind if w.line else "...", w.depth) for w in pattern.wanted]


def test_marks_and_depths() -> None:
    pattern = read("""
 if a:
     ...
-    x = f(
-        1,
-    )
+    # why
+
+    y = 2
 else:
     z
""")
    assert shown(pattern) == [
        (" ", "header", 0),
        (" ", "...", 1),
        ("-", "statement", 1),
        ("+", "statement", 1),
        (" ", "else", 0),
        (" ", "statement", 1),
    ]
    assert pattern.wanted[3].rows == ("    # why", "", "    y = 2")
    assert [w.mark for w in pattern.before] == [" ", " ", "-", " ", " "]
    assert [w.mark for w in pattern.after] == [" ", " ", "+", " ", " "]


@pytest.mark.parametrize(
    ("text", "kind", "node"),
    [
        ("x = 1", "statement", ast.Assign),
        ("x = 1  # why", "statement", ast.Assign),
        ("pass", "statement", ast.Pass),
        ("await x", "statement", ast.Expr),
        ("return", "statement", ast.Return),
        ("exceptions = 1", "statement", ast.Assign),
        ("case_x = 1", "statement", ast.Assign),
        ("elif_ = 1", "statement", ast.Assign),
        ("else_()", "statement", ast.Expr),
        ("match = 1", "statement", ast.Assign),
        ("if x:", "header", ast.If),
        ("if x:  # why", "header", ast.If),
        ("while x:", "header", ast.While),
        ("for i in x:", "header", ast.For),
        ("with a as b, c:", "header", ast.With),
        ("try:", "header", ast.Try),
        ("try:  # why", "header", ast.Try),
        ("match x:", "header", ast.Match),
        ("async def f(a, *, b=1) -> int:", "header", ast.AsyncFunctionDef),
        ("async for i in x:", "header", ast.AsyncFor),
        ("class C(B, metaclass=M):", "header", ast.ClassDef),
        ("elif x:", "elif", ast.If),
        ("else:", "else", ast.Pass),
        ("else :  # why", "else", ast.Pass),
        ("finally:", "finally", ast.Pass),
        ("except:", "except", ast.ExceptHandler),
        ("except (A, B) as e:", "except", ast.ExceptHandler),
        ("except* A:", "except", ast.ExceptHandler),
        ("case [a, *_] if b:", "case", ast.match_case),
        ("case _:", "case", ast.match_case),
    ],
)
def test_kinds(text: str, kind: str, node: type) -> None:
    (want,) = read(f" {text}").wanted
    assert want.line is not None
    assert (want.line.kind, type(want.line.node)) == (kind, node)


def test_logical_lines_span_rows() -> None:
    pattern = read("""
 x = '''
 a
   b
 '''
 y = 1 + \\
     2
 @decorator(
     1
 )
 # comment
 @other
 def f(
     a,
 ):
""")
    assert shown(pattern) == [(" ", "statement", 0), (" ", "statement", 0), (" ", "header", 0)]
    assert len(pattern.wanted[2].rows) == 8


def test_a_docstring_belongs_to_its_header() -> None:
    pattern = read('+def f():\n+    """doc\n+\n+    more"""\n+    x\n y\n')
    assert shown(pattern) == [("+", "header", 0), ("+", "statement", 1), (" ", "statement", 0)]
    assert pattern.wanted[0].docstring == 1
    assert not pattern.wanted[0].is_bare_definition
    assert read(" class C:\n     x").wanted[0].is_bare_definition
    assert not read(" if a:\n     'no docstring'").wanted[0].docstring
    field = read("+x: int = 1\n+'''a field's'''\n y")
    assert shown(field) == [("+", "statement", 0), ("+", "statement", 0), (" ", "statement", 0)]


def test_blank_and_comment_rows_go_with_what_follows_or_else_with_what_is_above() -> None:
    pattern = read(" a\n+# one\n+b\n+\n+# two\n c")
    assert [w.rows for w in pattern.wanted] == [("a",), ("# one", "b", "", "# two"), ("c",)]
    assert pattern.wanted[1].last_code == 1
    assert read(" a\n\n b").wanted[1].rows == ("", "b")


def test_depth_counts_from_the_outermost_line() -> None:
    deep = read("         a\n-        b\n+        c\n+            # d\n")
    assert [w.depth for w in deep.wanted] == [0, 0, 0]
    assert [w.depth for w in read("     a\n-b\n").wanted] == [1, 0]


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        ("", "empty"),
        ("\n\n", "empty"),
        ("x = 1", "must start with"),
        (" a\n\tb", "must start with"),
        (" x = = 1", "neither one statement"),
        (" a; b", "neither one statement"),
        (" if x: y", "two lines"),
        (" else: y", "neither one statement"),
        (" def f(): pass", "two lines"),
        (" elif x", "neither one statement"),
        (" f(", "ends inside"),
        (" x = '''", "ends inside"),
        (" @decorator", "ends inside"),
        ("-f(\n+f(\n 1)", "two marks"),
        (" if x:\n   y", "steps of 4"),
        (" if x:\n       y", "steps of 4"),
        ("+a", "stays or goes"),
        ("+a\n+b", "stays or goes"),
        ("-a", "stays or comes"),
        (" ...", "stays or goes"),
        (" ...\n-a\n+b", "between two lines"),
        (" a\n ...", "between two lines"),
        ("+a\n ...\n b", "between two lines"),
        (" a\n ...\n+b\n+c\n ...\n d", "new lines between two"),
        (" a\n-...\n b", "neither comes nor goes"),
        (" a\n+...\n b", "neither comes nor goes"),
        ("-f($A)\n+g($B)", r"what \$B stands for"),
        (" f($A)\n+g($AB, $A)", r"what \$AB stands for"),
        (" f($a)", "neither one statement"),
    ],
)
def test_refused(edit: str, why: str) -> None:
    with pytest.raises(BadPattern, match=why):
        read(edit)


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (" a\n b", "changes nothing"),
        ("-a\n b", "the line above them and the one below"),
        (" a\n-b", "the line above them and the one below"),
        (" a\n-b\n ...\n d\n-c", "the line above them and the one below"),
    ],
)
def test_refused_as_a_change(edit: str, why: str) -> None:
    read(edit)
    with pytest.raises(BadPattern, match=why):
        read_change(edit)


@pytest.mark.parametrize("edit", [" a\n-b\n c", "-a\n+b", " a\n+b", "+b\n a", " a\n-b\n c\n-d\n+e"])
def test_a_change(edit: str) -> None:
    assert read_change(edit) == read(edit)


def test_only_looked_for() -> None:
    assert read_context(" a\n ...\n b") == read(" a\n ...\n b")
    with pytest.raises(BadPattern, match="start with a blank"):
        read_context(" a\n-b")


# --- what holes stand for


@pytest.mark.parametrize(
    ("line", "node", "rows"),
    [
        ("g($A)", "x", ("g(x)",)),
        ("g($A)", "x or y", ("g(x or y)",)),
        ("not $A", "x or y", ("not (x or y)",)),
        ("$A.b", "x + y", ("(x + y).b",)),
        ("$A.b", "1", ("(1).b",)),
        ("g($A, $A)", "(x, y)", ("g((x, y), (x, y))",)),
        ("if $A:", "x", ("if x:",)),
        ("if not $A:", "x and y", ("if not (x and y):",)),
        ("g(\n+    $A,  # $A\n+)", "x", ("g(", "    x,  # x", ")")),
    ],
)
def test_fill(line: str, node: str, rows: tuple[str, ...]) -> None:
    want = read(f" f($A)\n+{line}").wanted[1]
    assert fill(want, {f"{HOLE}A": ast.parse(node, mode="eval").body}, ast.unparse) == rows


def test_fill_takes_each_hole_by_its_whole_name() -> None:
    want = read(" f($A, $AB)\n+# $X is not a hole\n+g($AB, $A)").wanted[1]
    bound: Bindings = {
        f"{HOLE}{name}": ast.parse(code, mode="eval").body for name, code in (("A", "'$AB'"), ("AB", "y"))
    }
    assert fill(want, bound, ast.unparse) == ("# $X is not a hole", "g(y, '$AB')")

"""Bytes, rows, logical lines and scopes of a file, and when two pieces of code are the same."""

from __future__ import annotations

import ast
import codecs
import warnings

import pytest

from migrator.source import (
    HOLE,
    Bindings,
    Line,
    Module,
    Unreadable,
    body_without_docstring,
    definitions,
    find_scopes,
    flatten,
    parse,
    same,
)

# --- bytes and rows


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"a\nb\n",
        b"a\nb",
        b"a\r\nb\r\n",
        b"a\rb\r",
        b"a\nb\r\nc\rd",
        b"a\n\x0c\nb\x0c\n",
        b"if a:\n\tb\n",
        b"x = '''\r\n \x0c\n'''\n",
        codecs.BOM_UTF8 + "é = 'ü'\n".encode(),
        codecs.BOM_UTF8 + b"# -*- coding: utf-8 -*-\na\n",
        b"# -*- coding: latin-1 -*-\nx = '\xe9'\n",
        b"#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\nx = '\x80'\r\n",
        "x = '\u2028\x85\x1c'\ny\n".encode(),
    ],
)
def test_bytes_come_back(raw: bytes) -> None:
    module = parse(raw)
    assert module.encode(module.rows) == raw
    for node in module.tree.body:  # rows are numbered as the parser does
        assert module.rows[node.lineno - 1].lstrip("\x0c")[node.col_offset] in "abcdxyié"


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"x = = 1\n", "invalid syntax"),
        (b"x = '\xe9'\n", "encoding declaration"),
        (b"# coding: klingon\n", "klingon"),
        (b"x = 1\0\n", "null"),
        (codecs.BOM_UTF8 + b"# coding: latin-1\n", "encoding"),
        (b"<<<<<<< HEAD\n", "invalid syntax"),
    ],
)
def test_unreadable(raw: bytes, why: str) -> None:
    with pytest.raises(Unreadable, match=rf"not readable as Python: .*{why}"):
        parse(raw)


def test_upstreams_own_warnings_are_kept_quiet() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse(b"x = '\\d'\nassert (x, 1)\ny = x is 'a'\n")


def test_code_too_deep_for_the_interpreter_is_unreadable() -> None:
    with pytest.raises((Unreadable, MemoryError)):
        parse(b"x = " + b"-" * 200_000 + b"1\n")


# --- logical lines


def shown(module: Module, scope: ast.Module | None = None) -> list[tuple[str, int, int]]:
    """Kind, depth and 1-based row of each logical line."""
    return [(ln.kind, ln.depth, ln.row + 1) for ln in flatten((scope or module.tree).body, module.rows)]


def test_clauses() -> None:
    source = b"""\
if a:
    b
elif c:
    d
# a comment
else:
    e
for i in x:
    f
else:
    g
while h:
    i
else: j
try:
    k
except E:
    l
except F as f:
    m
else:
    n
finally:
    o
with p as q, r:
    s
match t:
    case 1:
        u
    case [v, *_] if w:
        x
async def y():
    async for z in a:
        await b
    async with c:
        d
"""
    assert shown(parse(source)) == [
        ("header", 0, 1),
        ("statement", 1, 2),
        ("elif", 0, 3),
        ("statement", 1, 4),
        ("else", 0, 6),
        ("statement", 1, 7),
        ("header", 0, 8),
        ("statement", 1, 9),
        ("else", 0, 10),
        ("statement", 1, 11),
        ("header", 0, 12),
        ("statement", 1, 13),
        ("else", 0, 14),
        ("statement", 1, 14),
        ("header", 0, 15),
        ("statement", 1, 16),
        ("except", 0, 17),
        ("statement", 1, 18),
        ("except", 0, 19),
        ("statement", 1, 20),
        ("else", 0, 21),
        ("statement", 1, 22),
        ("finally", 0, 23),
        ("statement", 1, 24),
        ("header", 0, 25),
        ("statement", 1, 26),
        ("header", 0, 27),
        ("case", 1, 28),
        ("statement", 2, 29),
        ("case", 1, 30),
        ("statement", 2, 31),
        ("header", 0, 32),
        ("header", 1, 33),
        ("statement", 2, 34),
        ("header", 1, 35),
        ("statement", 2, 36),
    ]


@pytest.mark.parametrize(
    "between", ["", "\n", "    # deep\n# shallow: else\n\n", "\t\n", "    '''\nelse:\n'''\n"]
)
@pytest.mark.parametrize("opening", ["if a:\n    b\n", "try:\n    b\nexcept E:\n    c\n", "for a in b: c\n"])
def test_the_row_of_else(opening: str, between: str) -> None:
    if between.startswith("    '''") and opening.endswith("b: c\n"):
        between = ""
    source = f"{opening}{between}else  : # why\n    d\n"
    lines = list(flatten(parse(source.encode()).tree.body, parse(source.encode()).rows))
    (line,) = (ln for ln in lines if ln.kind == "else")
    assert line.row == source[: source.index("else  :")].count("\n")


def test_elif_is_no_else_with_an_if_in_it() -> None:
    assert [k for k, _, _ in shown(parse(b"if a:\n    b\nelif c:\n    d\n"))] == [
        "header", "statement", "elif", "statement",
    ]  # fmt: skip
    nested = b"if a:\n    b\nelse:\n    if elif_:\n        d\n"
    assert shown(parse(nested))[2:] == [("else", 0, 3), ("header", 1, 4), ("statement", 2, 5)]
    deep = b"if a:\n    b\nelif c:\n    d\nelif e:\n    f\nelse:\n    if g:\n        h\n"
    assert [(k, d) for k, d, _ in shown(parse(deep))] == [
        ("header", 0), ("statement", 1), ("elif", 0), ("statement", 1), ("elif", 0), ("statement", 1),
        ("else", 0), ("header", 1), ("statement", 2),
    ]  # fmt: skip


def test_several_statements_on_a_row() -> None:
    assert shown(parse(b"a; b\nif c: d; e\n")) == [
        ("statement", 0, 1), ("statement", 0, 1), ("header", 0, 2), ("statement", 1, 2), ("statement", 1, 2),
    ]  # fmt: skip


def test_decorators_and_docstrings_belong_to_the_header() -> None:
    source = b"@d\n@e(\n    1)\n# c\ndef f():\n    '''doc'''\n    a\n\n\nclass C:\n    '''doc'''\n    x = 1\n"
    assert shown(parse(source)) == [
        ("header", 0, 1), ("statement", 1, 7), ("header", 0, 10), ("statement", 1, 12),
    ]  # fmt: skip
    tree = parse(b"'''doc'''\nx\n").tree
    assert [type(node) for node in body_without_docstring(tree)] == [ast.Expr]
    assert body_without_docstring(parse(b"f'''{no} doc'''\n").tree) != []


# --- scopes


SCOPES = b"""
def f():
    def g():
        pass
    if a:
        def h(): pass
class C:
    def f(self):
        class D:
            def g(self): pass
    try:
        def late(self): pass
    except E:
        def late(self): pass
with x:
    async def k(): pass
for i in y:
    def m(): pass
"""


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("f", [2]),
        ("f.g", [3]),
        ("f.h", [6]),
        ("C.f", [8]),
        ("C.f.D.g", [10]),
        ("C.late", [12, 14]),
        ("k", [16]),
        ("m", [18]),
        ("g", []),
        ("C.g", []),
        ("f.nothing", []),
    ],
)
def test_find_scopes(name: str, lines: list[int]) -> None:
    found = find_scopes(parse(SCOPES), name)
    assert [d.lineno for d in found if not isinstance(d, ast.Module)] == lines


def test_the_module_is_the_scope_without_a_name() -> None:
    module = parse(SCOPES)
    assert find_scopes(module, "") == [module.tree]
    assert [d.name for d in definitions(module.tree.body)] == ["f", "C", "k", "m"]


# --- the same code


def expression(text: str) -> ast.expr:
    return ast.parse(text.replace("$", HOLE), mode="eval").body


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("'a'", '"a"'),
        ("'a' 'b'", '"""ab"""'),
        ("u'a'", "'a'"),
        ("f(a, b)", "(f)(\n  a,  # why\n  b,\n)"),
        ("a + b", "(a\n + (b))"),
        ("0x10", "16"),
        ("1_000", "1000"),
        ("f'{a}' 'b'", "f'{a}b'"),
        ("(a, b)", "(a, b,)"),
        ("not a", "not(a)"),
        ("lambda: 1", "(lambda : (1))"),
    ],
)
def test_formatting_does_not_matter(one: str, other: str) -> None:
    assert same(expression(one), expression(other), {})
    assert same(expression(other), expression(one), {})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "True"),
        ("1", "1.0"),
        ("'a'", "b'a'"),
        ("'a'", "f'a'"),
        ("a - b - c", "a - (b - c)"),
        ("f(a, b)", "f(b, a)"),
        ("f(a)", "f(a, b)"),
        ("f(a=1)", "f(1)"),
        ("f(*a)", "f(a)"),
        ("[a]", "(a,)"),
        ("a.b", "b.a"),
        ("not a == b", "a != b"),
        ("x[1:]", "x[1::2]"),
        ("lambda x: x", "lambda x=1: x"),
        ("None", "'None'"),
    ],
)
def test_other_code(one: str, other: str) -> None:
    assert not same(expression(one), expression(other), {})
    assert not same(expression(other), expression(one), {})


def test_holes() -> None:
    bound: Bindings = {}
    assert same(expression("f($A, $B)"), expression("f(a + 1, g(b))"), bound)
    assert {name: ast.unparse(node) for name, node in bound.items()} == {
        f"{HOLE}A": "a + 1",
        f"{HOLE}B": "g(b)",
    }
    assert same(expression("f($A, $A)"), expression("f('a', \"a\")"), {})
    assert not same(expression("f($A, $A)"), expression("f(a, b)"), {})
    assert not same(expression("f($A)"), expression("f(a, b)"), {})
    assert not same(expression("f(x=$A)"), expression("f(y=1)"), {})


def test_line_is_a_value() -> None:
    node = ast.Pass()
    assert Line("else", node, 0, 1) == Line("else", node, 0, 1)

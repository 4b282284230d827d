"""A Python file as bytes, rows of text and a syntax tree, and the logical lines of a scope in it.

Everything is on the standard library, since `cpfix status` must decide states without importing libcst.
"""

from __future__ import annotations

import ast
import codecs
import inspect
import io
import re
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

_ROW = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Unreadable(Exception):
    """The bytes are not Python that this interpreter can read; the message says why."""


@contextmanager
def without_warnings() -> Iterator[None]:
    """Keep the compiler quiet about what upstream writes, such as invalid escapes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@dataclass(frozen=True)
class Module:
    """One source file. `rows` keep their line ends and, joined, are the text without its byte order mark."""

    rows: tuple[str, ...] = field(repr=False)
    encoding: str
    bom: bytes

    @cached_property
    def text(self) -> str:
        """All rows."""
        return "".join(self.rows)

    @cached_property
    def tree(self) -> ast.Module:
        """The whole file's syntax tree. Raises `Unreadable`."""
        return _tree(self.text)

    @cached_property
    def parts(self) -> dict[str, list[Definition]]:
        """The top-level definitions that were asked for, by name."""
        return {}

    def encode(self, rows: Sequence[str]) -> bytes:
        """`rows` as the bytes of a file with this module's encoding and byte order mark."""
        return self.bom + "".join(rows).encode(self.encoding)


def skim(raw: bytes) -> Module:
    """Decode source bytes; what of them is parsed when, is up to who asks. Raises `Unreadable`."""
    bom = codecs.BOM_UTF8 if raw.startswith(codecs.BOM_UTF8) else b""
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(raw).readline)[0].replace("utf-8-sig", "utf-8")
        text = raw[len(bom) :].decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise Unreadable(f"not readable as Python: {error}") from error
    return Module(tuple(_ROW.findall(text)), encoding, bom)


@lru_cache(maxsize=64)
def parse(raw: bytes) -> Module:
    """Read source bytes and parse all of them. Raises `Unreadable`."""
    module = skim(raw)
    assert module.tree
    return module


def _tree(text: str) -> ast.Module:
    try:
        with without_warnings():
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise Unreadable(f"not readable as Python: {error}") from error


@dataclass(frozen=True)
class Line:
    """A logical line: a simple statement, or the header of a compound statement or of one of its clauses."""

    kind: str  # "statement", "header", "elif", "else", "except", "finally", "case"
    node: ast.AST
    depth: int  # 0 for the lines directly in the scope
    row: int  # 0-based row of its first token, decorators included


def first_row(node: ast.stmt) -> int:
    """0-based row where a statement starts, its decorators included."""
    decorators = node.decorator_list if isinstance(node, Definition) else []
    return min(node.lineno, *(d.lineno for d in decorators), node.lineno) - 1


def body_without_docstring(node: ast.Module | Definition) -> list[ast.stmt]:
    """The statements of a scope; a docstring belongs to the header."""
    match node.body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
    return node.body


def flatten(body: Sequence[ast.stmt], rows: Sequence[str], depth: int = 0) -> Iterator[Line]:
    """The logical lines of a block, nested ones included, in the order of the file."""
    for node in body:
        compound = hasattr(node, "body") or isinstance(node, ast.Match)
        yield Line("header" if compound else "statement", node, depth, first_row(node))
        if compound:
            yield from _clauses(node, rows, depth)


def _clauses(node: ast.stmt, rows: Sequence[str], depth: int) -> Iterator[Line]:
    if isinstance(node, ast.Match):
        for case in node.cases:
            yield Line("case", case, depth + 1, case.pattern.lineno - 1)
            yield from flatten(case.body, rows, depth + 2)
        return
    body: list[ast.stmt] = (
        body_without_docstring(node) if isinstance(node, Definition) else getattr(node, "body", [])
    )
    yield from flatten(body, rows, depth + 1)
    for handler in getattr(node, "handlers", []):
        yield Line("except", handler, depth, handler.lineno - 1)
        yield from flatten(handler.body, rows, depth + 1)
    previous = [*body, *(s for h in getattr(node, "handlers", []) for s in h.body)]
    for kind, block in (("else", getattr(node, "orelse", [])), ("finally", getattr(node, "finalbody", []))):
        if not block:
            continue
        inner = block[0]
        if isinstance(node, ast.If) and isinstance(inner, ast.If) and _starts_with(rows, inner, "elif"):
            yield Line("elif", inner, depth, inner.lineno - 1)
            yield from _clauses(inner, rows, depth)
        else:
            start = previous[-1].end_lineno or previous[-1].lineno if previous else node.lineno
            yield Line(kind, ast.Pass(), depth, _keyword_row(rows, kind, start, inner))
            yield from flatten(block, rows, depth + 1)
        previous = block


def _starts_with(rows: Sequence[str], node: ast.stmt, word: str) -> bool:
    return rows[node.lineno - 1].lstrip().startswith(word) and node.col_offset == _indent(
        rows[node.lineno - 1]
    )


def _indent(row: str) -> int:
    return len(row) - len(row.lstrip(" \t\f"))


def _keyword_row(rows: Sequence[str], keyword: str, start: int, inner: ast.stmt) -> int:
    """The row of `else` or `finally`, which the syntax tree does not keep: between two blocks."""
    for row in range(start, inner.lineno):
        if re.match(rf"\s*{keyword}\b", rows[row]):
            return row
    return first_row(inner)


def definitions(body: Sequence[ast.stmt]) -> Iterator[Definition]:
    """The functions and classes defined in a block, those under `if`, `try` and `with` included."""
    for node in body:
        if isinstance(node, Definition):
            yield node
        else:
            for block in ("body", "orelse", "finalbody"):
                yield from definitions(getattr(node, block, []))
            for handler in getattr(node, "handlers", []):
                yield from definitions(handler.body)


def find_scopes(module: Module, name: str) -> list[ast.Module | Definition]:
    """Every scope of that qualified name ("" is the module)."""
    if not name:
        return [module.tree]
    first, *parts = name.split(".")
    found: list[ast.Module | Definition] = list(top_level(module, first))
    for part in parts:
        found = [d for scope in found for d in definitions(scope.body) if d.name == part]
    return found


def top_level(module: Module, name: str) -> list[Definition]:
    """The top-level definitions of that name, those under `if`, `try` and `with` included.

    Most files are long and an edit is about one function, so only that one is parsed where its rows can be
    told without doubt: a statement of its own, at the margin, and the only one to define the name.
    """
    if name not in module.parts:
        module.parts[name] = _top_level(module, name)
    return module.parts[name]


def _top_level(module: Module, name: str) -> list[Definition]:
    if name not in module.text:
        return []
    head = re.compile(rf"[ \t\f]*(?:async[ \t]+def|def|class)[ \t]+{re.escape(name)}\b")
    heads = [index for index, row in enumerate(module.rows) if name in row and head.match(row)]
    if not heads:
        return []
    if len(heads) == 1 and "tree" not in vars(module) and (alone := _alone(module.rows, heads[0])):
        return [alone]
    return [d for d in definitions(module.tree.body) if d.name == name]


_NO_START = " \t\f\r\n#)]}"  # no statement at the margin starts with these


def _alone(rows: Sequence[str], head: int) -> Definition | None:
    """The definition whose header is at a row, parsed without the rest of its file; None in any doubt."""
    start = head
    while start and rows[start - 1].startswith("@"):
        start -= 1
    above = "".join(rows[:start])
    before = rows[start - 1].strip() if start else ""
    is_in_string = above.count('"""') % 2 or above.count("'''") % 2
    if rows[head][0].isspace() or is_in_string or (before and not before.startswith("#")):
        return None
    if next((rows[i][0] for i in range(start - 1, -1, -1) if rows[i][0] not in _NO_START), "") == "@":
        return None  # a decorator, with blank rows or comments behind it
    margin = (i for i in range(head + 1, len(rows)) if rows[i][0] not in _NO_START)
    try:
        body = _tree("\n" * start + "".join(rows[start : next(margin, len(rows))])).body
    except Unreadable:
        return None
    return body[0] if len(body) == 1 and isinstance(body[0], Definition) else None


_UNCOMPARED = frozenset({"ctx", "kind", "type_comment"})
_BLOCKS = frozenset({"body", "orelse", "finalbody", "handlers", "cases"})
HOLE = "__cpfix_hole_"  # `$NAME` is spelled so for the parser

Bindings = dict[str, ast.AST]


def same_line(pattern: Line, line: Line, bound: Bindings) -> bool:
    """Whether a pattern's line and a file's line are the same code; `bound` learns what holes stand for."""
    if pattern.kind != line.kind or type(pattern.node) is not type(line.node):
        return False
    skip = _BLOCKS if pattern.kind != "statement" else frozenset()
    if isinstance(pattern.node, Definition) and not pattern.node.decorator_list:
        skip = skip | {"decorator_list"}
    if (text := _string(pattern.node)) is not None and (other := _string(line.node)) is not None:
        return inspect.cleandoc(text) == inspect.cleandoc(
            other
        )  # a field's docstring, indented as its place asks
    return _same_fields(pattern.node, line.node, bound, skip)


def _string(node: ast.AST) -> str | None:
    match node:
        case ast.Expr(value=ast.Constant(value=str() as text)):
            return text
    return None


def same(pattern: object, node: object, bound: Bindings) -> bool:
    """Whether two syntax trees are the same code, formatting aside; `$NAME` matches any one expression."""
    if isinstance(pattern, ast.Name) and pattern.id.startswith(HOLE) and isinstance(node, ast.expr):
        known = bound.setdefault(pattern.id, node)
        return known is node or same(known, node, {})
    if isinstance(pattern, list):
        return (
            isinstance(node, list)
            and len(pattern) == len(node)
            and all(same(p, n, bound) for p, n in zip(pattern, node, strict=True))
        )
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, ast.AST) and isinstance(node, ast.AST):
        return _same_fields(pattern, node, bound, frozenset())
    return pattern == node


def _same_fields(pattern: ast.AST, node: ast.AST, bound: Bindings, skip: frozenset[str]) -> bool:
    return all(
        same(getattr(pattern, name, None), getattr(node, name, None), bound)
        for name in pattern._fields
        if name not in _UNCOMPARED and name not in skip
    )

"""The codemod: edits in, new source out. Pure, and byte-exact outside the statements that an edit names.

`match` says which statements; libcst says where they begin and end, which comments belong to them and where
an argument list can take one more. Only the statements concerned are parsed by libcst, never the whole file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

import libcst as cst
from libcst.metadata import CodePosition, PositionProvider, WhitespaceInclusivePositionProvider

from migrator import pattern
from migrator.extents import Extent, Unparsable, extents, parse_run
from migrator.match import Found, find
from migrator.model import Argument, Edit, Hunk, Insert
from migrator.source import Bindings, Definition, Line, Module, first_row


class CannotRewrite(Exception):
    """The edit matches but cannot be written; the message says why."""


@dataclass(frozen=True)
class Splice:
    """Text that takes the place of what stands between two positions (0-based row, column in characters)."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


def rewrite(module: Module, edits: Sequence[Edit]) -> bytes:
    """The module's bytes with every edit made. Raises `CannotRewrite`; each edit must be one to do."""
    splices = [splice for edit in edits for splice in _splices(edit, module)]
    # stable: insertions at one position keep the order of the edits
    return module.encode(_spliced(module.rows, sorted(splices, key=lambda s: (s.start, s.end))))


def _spliced(rows: Sequence[str], splices: Sequence[Splice]) -> list[str]:
    out: list[str] = []
    row, column = 0, 0
    for splice in splices:
        if splice.start < (row, column):
            raise CannotRewrite(f"two edits want line {splice.start[0] + 1}")
        out += _between(rows, (row, column), splice.start)
        if splice.text and splice.start[1] == 0 and out and not out[-1].endswith(("\n", "\r")):
            out.append(_eol(rows, splice.start[0]))  # the last row of the file has no line end
        if splice.text:
            out.append(splice.text)
        row, column = splice.end
    return out + _between(rows, (row, column), (len(rows), 0))


def _between(rows: Sequence[str], start: tuple[int, int], end: tuple[int, int]) -> list[str]:
    if start[0] == end[0]:
        return [rows[start[0]][start[1] : end[1]]] if start[1] < end[1] else []
    last = [rows[end[0]][: end[1]]] if end[1] else []
    return [rows[start[0]][start[1] :], *rows[start[0] + 1 : end[0]], *last]


def _splices(edit: Edit, module: Module) -> list[Splice]:
    finding = find(edit, module)
    if finding.found is not Found.TO_DO or finding.scope is None:
        raise CannotRewrite(finding.reason or "it is applied already")
    try:
        match edit:
            case Hunk():
                assert finding.site is not None
                return list(_hunk(edit, finding.site.lines, finding.site.bound, finding.scope, module))
            case Insert():
                return [_insert(edit, finding.scope, module)]
            case Argument():
                return list(_argument(edit, finding.scope, module))
    except Unparsable as error:
        raise CannotRewrite(str(error)) from error


# --- hunks


@dataclass(frozen=True)
class _Site:
    """What new lines have to fit into."""

    module: Module
    bound: Bindings
    indents: Mapping[int, str]  # of the depths of the edit that the file shows
    unit: str  # one step of indentation


def _hunk(
    hunk: Hunk, lines: Sequence[Line | None], bound: Bindings, scope: ast.Module | Definition, module: Module
) -> Iterator[Splice]:
    wanted = pattern.read(hunk.edit).wanted
    pairs = list(zip(wanted, lines, strict=True))
    known = extents(scope, module.rows, [line.row for line in lines if line is not None])
    shown, inner = _indents(pairs, known, module.rows)
    site = _Site(module, bound, inner | shown, _unit(scope, module.rows))
    for index, (want, line) in enumerate(pairs):
        added = _run(wanted, index + 1)
        if want.mark == "-" and line is not None:
            yield from _replace(_alone(line, known), line, added, wanted, site)
        elif want.mark == " " and line is not None and added:
            last = _alone(line, known).last
            yield Splice((last + 1, 0), (last + 1, 0), _text(added, last, site))
        elif want.mark == "+" and (index == 0 or wanted[index - 1].is_gap):
            added = _run(wanted, index)
            below = lines[index + len(added)]
            assert below is not None  # a pattern has no new lines between two gaps
            above = _extent(below, known).comments
            yield Splice((above, 0), (above, 0), _text(added, above, replace(site, indents=shown)))


def _replace(
    extent: Extent,
    line: Line,
    added: Sequence[pattern.Wanted],
    wanted: Sequence[pattern.Wanted],
    site: _Site,
) -> Iterator[Splice]:
    """A new header takes over the docstring of the one that goes, unless it brings its own."""
    if extent.last > extent.header and any(w.mark == "+" and w.is_bare_definition for w in wanted):
        if not added or not added[0].is_bare_definition:
            raise CannotRewrite(f"the docstring of line {line.row + 1} would be lost")
        header = _text(added[:1], extent.first, site, extent.comment)
        yield Splice((extent.first, 0), (extent.header + 1, 0), header)
        yield Splice((extent.last + 1, 0), (extent.last + 1, 0), _text(added[1:], extent.last, site))
        return
    text = _text(added, extent.first, site, extent.comment)
    yield Splice((extent.first, 0), (extent.last + 1, 0), text)


def _extent(line: Line, known: Mapping[int, Extent]) -> Extent:
    """Where a line is; nothing else may stand in front of it."""
    row = line.node.lineno - 1 if isinstance(line.node, Definition) else line.row
    if row not in known or not (known[row].alone or line.kind != "statement"):
        raise CannotRewrite(f"line {line.row + 1} holds more than one statement")
    return known[row]


def _alone(line: Line, known: Mapping[int, Extent]) -> Extent:
    extent = _extent(line, known)
    if not extent.alone:
        raise CannotRewrite(f"line {line.row + 1} holds more than one statement")
    return extent


def _run(wanted: Sequence[pattern.Wanted], start: int) -> list[pattern.Wanted]:
    """The new lines from `start` on, up to the next line that is none."""
    return list(takewhile(lambda want: want.mark == "+", wanted[start:]))


def _text(added: Sequence[pattern.Wanted], row: int, site: _Site, comment: str = "") -> str:
    """New lines as they are written near a row of the file, with `comment` at the end of their last code."""
    out: list[str] = []
    for want in added:
        rows = pattern.fill(want, site.bound, partial(_spelled, module=site.module))
        for number, text in enumerate(rows):
            code = text.lstrip(" ")
            depth = want.depth + (1 if want.docstring and number >= want.docstring else 0)
            indent = _indent_at(depth, site.indents, site.unit)
            beyond = len(text) - len(code) - pattern.STEP * depth
            end = f"  {comment}" if comment and want is added[-1] and number == want.last_code else ""
            out.append(indent + " " * max(0, beyond) + code + end if code else "")
    eol = _eol(site.module.rows, row)
    return "".join(text + eol for text in out)


def _spelled(node: ast.AST, module: Module) -> str:
    """What a hole stands for, as the file has it; on one row."""
    segment = ast.get_source_segment("".join(module.rows), node)
    return segment if segment and not re.search(r"[\r\n]", segment) else ast.unparse(node)


def _indents(
    pairs: Sequence[tuple[pattern.Wanted, Line | None]], known: Mapping[int, Extent], rows: Sequence[str]
) -> tuple[dict[int, str], dict[int, str]]:
    """The indentation of an edit's depths: as its lines have it in the file, and the blocks below them."""
    shown: dict[int, str] = {}
    inner: dict[int, str] = {}
    for want, line in pairs:
        if line is not None:
            shown[want.depth] = _indent(rows[line.row])
            extent = known.get(line.row)
            if extent is not None and extent.inner is not None:
                row, column = extent.inner
                inner[want.depth + 1] = rows[row][:column]
    return shown, inner


def _indent_at(depth: int, indents: Mapping[int, str], unit: str) -> str:
    nearest = min(indents, key=lambda known: (abs(known - depth), known))
    if depth >= nearest:
        return indents[nearest] + unit * (depth - nearest)
    return indents[nearest].removesuffix(unit * (nearest - depth))


def _indent(row: str) -> str:
    return row[: len(row) - len(row.lstrip(" \t\f"))]


def _unit(scope: ast.Module | Definition, rows: Sequence[str]) -> str:
    """One step of the file's indentation, as the scope (or the first block of the module) shows it."""
    for node in ast.walk(scope):
        body = getattr(node, "body", None)
        if isinstance(node, ast.stmt) and isinstance(body, list) and body and body[0].lineno > node.lineno:
            return _indent(rows[first_row(body[0])]).removeprefix(_indent(rows[first_row(node)]))
    return "    "


def _eol(rows: Sequence[str], row: int) -> str:
    for near in (*rows[row : row + 1], *reversed(rows[:row])):
        if stripped := near[len(near.rstrip("\r\n")) :]:
            return stripped
    return "\n"


# --- new definitions


def _insert(insert: Insert, before: ast.Module | Definition, module: Module) -> Splice:
    assert isinstance(before, Definition)
    row, rows = first_row(before), module.rows
    while row and rows[row - 1].startswith("#"):
        row -= 1
    eol = _eol(rows, row)
    text = "".join(f"{definition}\n\n\n" for definition in insert.text).replace("\n", eol)
    return Splice((row, 0), (row, 0), text)


# --- parameters and keyword arguments


@dataclass(frozen=True)
class _Last:
    """The parameter or argument behind which one is added, in rows and columns of what libcst parsed."""

    start: CodePosition
    end: CodePosition
    comma: bool
    opening: int  # row in which the whole list's function or call begins
    inside: tuple[int, int] | None  # columns of all that is in the parentheses, where that is in one row


class _Lists(cst.CSTVisitor):
    """The last parameter of a function, or the last plain argument of each call of a name."""

    METADATA_DEPENDENCIES = (PositionProvider, WhitespaceInclusivePositionProvider)

    def __init__(self, function: str, call: str) -> None:
        super().__init__()
        self.function, self.call = function, call
        self.found: list[_Last] = []

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if not self.call and node.name.value == self.function and not self.found:
            last = node.params.params[-1]
            around = self.get_metadata(WhitespaceInclusivePositionProvider, node.params)
            start = around.start.column - len(_code(node.whitespace_before_params))
            inside = (start, around.end.column) if around.start.line == around.end.line else None
            self._note(last, last.default or last.annotation or last.name, node, inside)

    def visit_Call(self, node: cst.Call) -> None:
        if self.call and ast.unparse(ast.parse(_code(node.func))) == self.call:
            last = [a for a in node.args if a.star != "**"][-1]
            first = self.get_metadata(WhitespaceInclusivePositionProvider, node.args[0]).start
            end = self.get_metadata(PositionProvider, node).end
            start = first.column - len(_code(node.whitespace_before_args))
            inside = (start, end.column - 1) if first.line == end.line else None
            self._note(last, last.value, node, inside)

    def _note(
        self, last: cst.Param | cst.Arg, part: cst.CSTNode, node: cst.CSTNode, inside: tuple[int, int] | None
    ) -> None:
        start = self.get_metadata(PositionProvider, last).start
        opening = self.get_metadata(PositionProvider, node).start.line
        end = self.get_metadata(WhitespaceInclusivePositionProvider, part).end  # parentheses included
        self.found.append(_Last(start, end, isinstance(last.comma, cst.Comma), opening, inside))


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def _argument(argument: Argument, scope: ast.Module | Definition, module: Module) -> Iterator[Splice]:
    assert isinstance(scope, Definition)
    wrapper, offset = parse_run(module.rows, first_row(scope), scope.end_lineno or scope.lineno)
    lists = _Lists(scope.name, argument.call)
    wrapper.visit(lists)
    for last in lists.found:
        yield from _behind(last, argument, offset, module.rows, _unit(scope, module.rows))


def _behind(last: _Last, argument: Argument, offset: int, rows: Sequence[str], unit: str) -> Iterator[Splice]:
    """On a row of its own where the last one has that; a row that gets too long is broken at its brackets."""
    add = argument.add
    first, row, column = last.start.line - 1 + offset, last.end.line - 1 + offset, last.end.column
    indent, eol = rows[first][: last.start.column], _eol(rows, row)
    rest = rows[row][column:].strip()
    if indent.strip() or last.start.line == last.opening:
        whole = rows[row].rstrip()
        broken = last.inside if argument.width and len(f"{whole}, {add}") > argument.width else None
        if broken:
            yield Splice((row, broken[0]), (row, broken[0]), eol + _indent(whole) + unit)
        yield Splice((row, column), (row, column), f", {add}")
        if broken:
            yield Splice((row, broken[1]), (row, broken[1]), eol + _indent(whole))
    elif last.comma and re.fullmatch(r",\s*(#.*)?", rest):
        yield Splice((row + 1, 0), (row + 1, 0), f"{indent}{add},{eol}")
    elif not last.comma and re.fullmatch(r"(#.*)?", rest):
        yield Splice((row, column), (row, column), ",")
        yield Splice((row + 1, 0), (row + 1, 0), f"{indent}{add}{eol}")
    else:
        yield Splice((row, column), (row, column), f",{eol}{indent}{add}")

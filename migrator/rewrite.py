"""The codemod: edits in, new source out. Pure, and byte-exact outside the statements that an edit names.

`match` says which statements; libcst says where they begin and end, which comments belong to them and where
an argument list can take one more. Only the statements concerned are parsed by libcst, never the whole file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider, WhitespaceInclusivePositionProvider

from migrator import pattern
from migrator.match import Found, find
from migrator.model import Argument, Edit, Hunk, Insert
from migrator.source import HOLE, Definition, Line, Module, body_without_docstring, first_row


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
    match edit:
        case Hunk():
            assert finding.site is not None
            return list(_hunk(edit, finding.site.lines, finding.site.bound, finding.scope, module))
        case Insert():
            return [_insert(edit, finding.scope, module)]
        case Argument():
            return list(_argument(edit, finding.scope, module))


# --- where statements begin and end


@dataclass(frozen=True)
class Extent:
    """Rows of one logical line: of its leading comments, of its first token, and of its last (a docstring's
    for a definition), and the comment at the end of that row."""

    comments: int
    first: int
    last: int
    comment: str
    alone: bool  # nothing else on these rows


class _Extents(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider, WhitespaceInclusivePositionProvider)

    def __init__(self, offset: int) -> None:
        super().__init__()
        self.offset = offset
        self.found: dict[int, Extent] = {}  # by the 0-based row of the keyword or first token

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.SimpleStatementLine):
            trailing, block = node.trailing_whitespace, None
        elif isinstance(block := getattr(node, "body", None), cst.IndentedBlock):
            trailing = block.header
        elif isinstance(block, cst.SimpleStatementSuite):
            trailing = block.trailing_whitespace
        else:
            return True
        position = self.get_metadata(PositionProvider, node)
        whole = self.get_metadata(WhitespaceInclusivePositionProvider, node)
        leading: Sequence[cst.EmptyLine] = getattr(node, "leading_lines", ())
        own = 0  # comment rows right above
        while own < len(leading) and leading[-1 - own].comment is not None:
            own += 1
        first = whole.start.line + len(leading)
        last = position.end.line
        if isinstance(block, cst.IndentedBlock) and block.body:
            last = self._header_end(node, block)
        alone = (
            isinstance(block, cst.IndentedBlock) if block is not None else len(getattr(node, "body", ())) == 1
        )
        comment = trailing.comment.value if trailing.comment else ""
        self.found[position.start.line - 1 + self.offset] = Extent(
            first - own - 1 + self.offset, first - 1 + self.offset, last - 1 + self.offset, comment, alone
        )
        return True

    def _header_end(self, node: cst.CSTNode, block: cst.IndentedBlock) -> int:
        opening = block.body[0]
        if isinstance(node, cst.FunctionDef | cst.ClassDef) and node.get_docstring() is not None:
            return int(self.get_metadata(PositionProvider, opening).end.line)
        return int(self.get_metadata(WhitespaceInclusivePositionProvider, opening).start.line) - 1


def _chunk(scope: ast.Module | Definition, rows: Sequence[str], wanted: Sequence[int]) -> tuple[int, int]:
    """First and last (exclusive) row of the scope's own statements that hold the wanted rows."""
    body = body_without_docstring(scope)
    ends = [node.end_lineno or node.lineno for node in body]
    holding = [
        i
        for i, (node, end) in enumerate(zip(body, ends, strict=True))
        if _holds(first_row(node), end, wanted)
    ]
    start = first_row(body[holding[0]])
    above = ends[holding[0] - 1] if holding[0] else 0
    while start > above and rows[start - 1].lstrip().startswith("#"):
        start -= 1
    return start, ends[holding[-1]]


def _holds(first: int, end: int, wanted: Sequence[int]) -> bool:
    return any(first <= row < end for row in wanted)


def _parse(rows: Sequence[str], start: int, end: int) -> tuple[MetadataWrapper, int]:
    """A run of whole statements as a libcst module, and what to add to its rows to get the file's."""
    text = "".join(row.rstrip("\r\n") + "\n" for row in rows[start:end])
    indented = (
        next(row for row in rows[start:end] if row.strip() and not row.lstrip().startswith("#"))[0] in " \t\f"
    )
    if indented:
        text = "class _:\n" + text
    try:
        tree = cst.parse_module(text)
    except Exception as error:  # libcst's own errors and, in old releases, its panics
        raise CannotRewrite(f"libcst cannot read lines {start + 1} to {end}: {error}") from error
    return MetadataWrapper(tree, unsafe_skip_copy=True), start - (1 if indented else 0)


def _extents(
    scope: ast.Module | Definition, rows: Sequence[str], wanted: Sequence[int]
) -> Mapping[int, Extent]:
    wrapper, offset = _parse(rows, *_chunk(scope, rows, wanted))
    visitor = _Extents(offset)
    wrapper.visit(visitor)
    return visitor.found


# --- hunks


def _hunk(
    hunk: Hunk,
    lines: Sequence[Line | None],
    bound: Mapping[str, ast.AST],
    scope: ast.Module | Definition,
    module: Module,
) -> Iterator[Splice]:
    wanted, rows = pattern.read(hunk.edit).wanted, module.rows
    there = [line for line in lines if line is not None]
    known = _extents(scope, rows, [line.row for line in there])
    indents = {w.depth: _indent(rows[ln.row]) for w, ln in zip(wanted, lines, strict=True) if ln is not None}
    unit = _unit(scope, rows)

    def extent(line: Line) -> Extent:
        key = line.row if not isinstance(line.node, Definition) else line.node.lineno - 1
        if key not in known or not known[key].alone:
            raise CannotRewrite(f"line {line.row + 1} holds more than one statement")
        return known[key]

    for index, (want, line) in enumerate(zip(wanted, lines, strict=True)):
        added = _run(wanted, index + 1)
        if want.mark == "-" and line is not None:
            e = extent(line)
            text = _text(added, bound, module, indents, unit, _eol(rows, e.first), e.comment)
            yield Splice((e.first, 0), (e.last + 1, 0), text)
        elif want.mark == " " and line is not None and added:
            e = extent(line)
            text = _text(added, bound, module, indents, unit, _eol(rows, e.last))
            yield Splice((e.last + 1, 0), (e.last + 1, 0), text)
        elif want.mark == "+" and (index == 0 or wanted[index - 1].is_gap):
            added = _run(wanted, index)
            below = lines[index + len(added)] if index + len(added) < len(lines) else None
            if below is None:
                raise CannotRewrite("new lines between two `...`")
            e = extent(below)
            text = _text(added, bound, module, indents, unit, _eol(rows, e.first))
            yield Splice((e.comments, 0), (e.comments, 0), text)


def _run(wanted: Sequence[pattern.Wanted], start: int) -> list[pattern.Wanted]:
    """The new lines from `start` on, up to the next line that is none."""
    run: list[pattern.Wanted] = []
    for want in wanted[start:]:
        if want.mark != "+":
            break
        run.append(want)
    return run


def _text(
    added: Sequence[pattern.Wanted],
    bound: Mapping[str, ast.AST],
    module: Module,
    indents: Mapping[int, str],
    unit: str,
    eol: str,
    comment: str = "",
) -> str:
    """New lines as they are written into the file; `comment` is kept at the end of the last one."""
    out: list[str] = []
    for want in added:
        indent = _indent_at(want.depth, indents, unit)
        for row in want.rows:
            code = row.lstrip(" ")
            beyond = len(row) - len(code) - pattern.STEP * want.depth
            out.append(indent + " " * max(0, beyond) + code if code else "")
    text = eol.join(out) + eol if out else ""
    for name, node in bound.items():
        segment = ast.get_source_segment("".join(module.rows), node) or ast.unparse(node)
        text = text.replace("$" + name.removeprefix(HOLE), segment)
    if comment and text:
        text = text.removesuffix(eol) + f"  {comment}{eol}"
    return text


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


class _Lists(cst.CSTVisitor):
    """The last parameter of a function, or the last plain argument of each call of a name."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, function: str, call: str) -> None:
        super().__init__()
        self.function, self.call = function, call
        self.found: list[tuple[cst.Param | cst.Arg, CodeRange, CodeRange]] = []

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if not self.call and node.name.value == self.function and not self.found:
            named = [*node.params.posonly_params, *node.params.params]
            self._note(named[-1], node)

    def visit_Call(self, node: cst.Call) -> None:
        if self.call and cst.Module([]).code_for_node(node.func) == self.call:
            plain = [a for a in node.args if a.star != "**"]
            self._note(plain[-1], node)

    def _note(self, last: cst.Param | cst.Arg, node: cst.CSTNode) -> None:
        end = self.get_metadata(PositionProvider, last).end
        for part in last.children:  # libcst ends a parameter before its annotation
            if not isinstance(part, cst.Comma | cst.BaseParenthesizableWhitespace):
                end = max(
                    end, self.get_metadata(PositionProvider, part).end, key=lambda p: (p.line, p.column)
                )
        start = self.get_metadata(PositionProvider, last).start
        self.found.append((last, CodeRange(start, end), self.get_metadata(PositionProvider, node)))


def _argument(argument: Argument, scope: ast.Module | Definition, module: Module) -> Iterator[Splice]:
    assert isinstance(scope, Definition)
    start, end = first_row(scope), scope.end_lineno or scope.lineno
    wrapper, offset = _parse(module.rows, start, end)
    lists = _Lists(scope.name, argument.call)
    wrapper.visit(lists)
    for last, at, around in lists.found:
        row, column = at.end.line - 1 + offset, at.end.column
        has_comma = isinstance(last.comma, cst.Comma)
        own_row = module.rows[at.start.line - 1 + offset][: at.start.column].strip() == ""
        if not own_row or around.start.line == around.end.line:
            yield Splice((row, column), (row, column), f", {argument.add}")
            continue
        eol, indent = _eol(module.rows, row), _indent(module.rows[at.start.line - 1 + offset])
        if has_comma and module.rows[row][column:].lstrip().startswith(","):
            yield Splice((row + 1, 0), (row + 1, 0), f"{indent}{argument.add},{eol}")
        else:
            yield Splice((row, column), (row, column), f",{eol}{indent}{argument.add}")

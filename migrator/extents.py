"""Where logical lines begin and end in a file, and which comments belong to them, as libcst sees it."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, WhitespaceInclusivePositionProvider

from migrator.source import Definition, body_without_docstring, first_row


class Unparsable(Exception):
    """libcst cannot read what Python can; the message says which lines."""


@dataclass(frozen=True)
class Extent:
    """Rows of one logical line, 0-based, and what else stands on them."""

    comments: int  # of the comment rows right above
    first: int
    header: int  # its last row
    last: int  # the same, but for a definition with a docstring that one's last row
    comment: str  # at the end of its last row
    alone: bool  # nothing else on these rows
    inner: tuple[int, int] | None  # row and column of the first statement of a header's block


class _Extents(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (WhitespaceInclusivePositionProvider,)

    def __init__(self, offset: int, rows: Sequence[str]) -> None:
        super().__init__()
        self.offset, self.rows = offset, rows
        self.found: dict[int, Extent] = {}  # by the row of the keyword or first token

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.SimpleStatementLine):
            trailing, block = node.trailing_whitespace, None
        elif isinstance(block := getattr(node, "body", None), cst.IndentedBlock):
            trailing = block.header
        elif isinstance(block, cst.SimpleStatementSuite):
            trailing = block.trailing_whitespace
        else:
            return isinstance(node, cst.Module | cst.BaseCompoundStatement | cst.BaseSuite)
        whole = self._whole(node)
        leading: Sequence[cst.EmptyLine] = getattr(node, "leading_lines", ())
        own = 0  # comment rows right above
        while own < len(leading) and leading[-1 - own].comment is not None:
            own += 1
        first = whole.start.line + len(leading)
        header = last = _last_row(whole)
        inner = None
        if isinstance(block, cst.IndentedBlock) and block.body:
            opening = self._whole(block.body[0])
            header = last = opening.start.line - 1
            row = header + len(getattr(block.body[0], "leading_lines", ())) + self.offset
            inner = (row, len(self.rows[row]) - len(self.rows[row].lstrip(" \t\f")))
            if isinstance(node, cst.FunctionDef | cst.ClassDef) and node.get_docstring() is not None:
                last = _last_row(opening)
        keyword = first
        if isinstance(node, cst.FunctionDef | cst.ClassDef) and node.decorators:
            keyword = self._whole(node.name).start.line
        self.found[keyword - 1 + self.offset] = Extent(
            comments=first - own - 1 + self.offset,
            first=first - 1 + self.offset,
            header=header - 1 + self.offset,
            last=last - 1 + self.offset,
            comment=trailing.comment.value if trailing.comment else "",
            alone=len(node.body) == 1
            if isinstance(node, cst.SimpleStatementLine)
            else isinstance(block, cst.IndentedBlock),
            inner=inner,
        )
        return not isinstance(node, cst.SimpleStatementLine)

    def _whole(self, node: cst.CSTNode) -> CodeRange:
        return self.get_metadata(WhitespaceInclusivePositionProvider, node)


def _last_row(whole: CodeRange) -> int:
    return whole.end.line if whole.end.column else whole.end.line - 1


def extents(
    scope: ast.Module | Definition, rows: Sequence[str], wanted: Sequence[int]
) -> Mapping[int, Extent]:
    """The extents of a scope's logical lines, by row of keyword or first token: those on the wanted rows,
    and some more. Raises `Unparsable`."""
    start, end = _run(scope, rows, wanted)
    wrapper, offset = parse_run(rows, start, end)
    visitor = _Extents(offset, rows)
    wrapper.visit(visitor)
    return {row: extent for row, extent in visitor.found.items() if row >= start}


def _run(scope: ast.Module | Definition, rows: Sequence[str], wanted: Sequence[int]) -> tuple[int, int]:
    """First and last (exclusive) row of the scope's own statements that hold the wanted rows."""
    body = body_without_docstring(scope)
    ends = [node.end_lineno or node.lineno for node in body]
    holding = [
        index
        for index, (node, end) in enumerate(zip(body, ends, strict=True))
        if any(first_row(node) <= row < end for row in wanted)
    ]
    start = first_row(body[holding[0]])
    above = ends[holding[0] - 1] if holding[0] else 0
    while start > above and rows[start - 1].lstrip().startswith("#"):
        start -= 1
    return start, ends[holding[-1]]


def parse_run(rows: Sequence[str], start: int, end: int) -> tuple[MetadataWrapper, int]:
    """Some rows of whole statements as a libcst module, and what to add to its rows to get the file's.
    Raises `Unparsable`."""
    code = [row for row in rows[start:end] if row.strip() and not row.lstrip().startswith("#")]
    # libcst gives the comments above a module's first statement to the module
    opening = "class _:\n" if code[0][0] in " \t\f" else "pass\n"
    text = opening + "".join(row.rstrip("\r\n") + "\n" for row in rows[start:end])
    try:
        return _parsed(text), start - 1
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # the panics of old releases are no Exception
        raise Unparsable(f"libcst cannot read lines {start + 1} to {end}: {error}") from error


@lru_cache(maxsize=64)  # edits of one function mostly want the same run
def _parsed(text: str) -> MetadataWrapper:
    return MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)

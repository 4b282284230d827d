"""The `edit` of a hunk, read: which logical lines are looked for and which take their place."""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

from migrator.source import HOLE, Bindings, Definition, Line, same_line

_HOLE = re.compile(r"\$([A-Z][A-Z0-9_]*)")
_OPENS = re.compile(r"""[(\[{'"\\]""")  # what can make a logical line longer than a row
STEP = 4  # blanks a level in a patch file


class BadPattern(Exception):
    """The edit is not what patches/README.md asks for; the message says where."""


@dataclass(frozen=True)
class Wanted:
    """One logical line of an edit."""

    mark: str  # "-", "+", " "
    line: Line | None  # None for `...`; `depth` counts from the outermost line of the edit
    depth: int
    rows: tuple[str, ...]  # as in the patch file, marks taken off; with blank and comment rows before it
    docstring: int = 0  # index of the row where the docstring of this definition's header begins; 0 without

    @property
    def is_gap(self) -> bool:
        """True for `...`."""
        return self.line is None

    @property
    def is_bare_definition(self) -> bool:
        """True for the header of a definition without a docstring."""
        return self.line is not None and isinstance(self.line.node, Definition) and not self.docstring

    @property
    def last_code(self) -> int:
        """Index of its last row that is neither blank nor a comment."""
        return max(index for index, row in enumerate(self.rows) if _is_code(row))


@dataclass(frozen=True)
class Pattern:
    """The logical lines of an edit in order. `before` is what is looked for, `after` what is left."""

    wanted: tuple[Wanted, ...]

    @property
    def before(self) -> tuple[Wanted, ...]:
        """Lines that must be there for the edit to apply."""
        return tuple(w for w in self.wanted if w.mark != "+")

    @property
    def after(self) -> tuple[Wanted, ...]:
        """Lines that are there when the edit is applied."""
        return tuple(w for w in self.wanted if w.mark != "-")


@cache
def read(edit: str) -> Pattern:
    """Read an edit. Raises `BadPattern`."""
    rows = edit.strip("\n").splitlines()
    if not rows:
        raise BadPattern("an empty edit")
    for row in rows:
        if row and row[0] not in "+- ":
            raise BadPattern(f"a line must start with '+', '-' or a blank: {row!r}")
    pattern = Pattern(tuple(_logical_lines(rows)))
    for side, lines in (("stays or goes", pattern.before), ("stays or comes", pattern.after)):
        if all(w.is_gap for w in lines):
            raise BadPattern(f"an edit needs a line that {side}")
        if lines[0].is_gap or lines[-1].is_gap:
            raise BadPattern("`...` stands between two lines")
    if any(w.is_gap and w.mark != " " for w in pattern.wanted):
        raise BadPattern("`...` neither comes nor goes")
    if any(a.is_gap and c.is_gap for a, c in _around_new(pattern.wanted)):
        raise BadPattern("new lines between two `...` have no place")
    if unknown := _holes(w for w in pattern.wanted if w.mark == "+") - _holes(pattern.before):
        raise BadPattern(f"nothing says what ${min(unknown)} stands for")
    return pattern


def read_change(edit: str) -> Pattern:
    """Read the edit of a hunk, which has to change something. Raises `BadPattern`."""
    pattern = read(edit)
    marks = [w.mark for w in pattern.wanted]
    if set(marks) == {" "}:
        raise BadPattern("an edit that changes nothing")
    # one line of context is there in many files that never had the other
    if "+" not in marks and (marks[0] == "-" or marks[-1] == "-"):
        raise BadPattern("where lines only go, the edit needs the line above them and the one below")
    return pattern


def read_context(lines: str) -> Pattern:
    """Read lines that are only looked for. Raises `BadPattern`."""
    pattern = read(lines)
    if any(w.mark != " " for w in pattern.wanted):
        raise BadPattern("lines that are looked for start with a blank")
    return pattern


def _around_new(wanted: Sequence[Wanted]) -> Iterator[tuple[Wanted, Wanted]]:
    """The lines above and below each run of new lines that has both."""
    old = [index for index, want in enumerate(wanted) if want.mark != "+"]
    return ((wanted[one], wanted[other]) for one, other in pairwise(old) if other > one + 1)


def fill(want: Wanted, bound: Bindings, spell: Callable[[ast.AST], str]) -> tuple[str, ...]:
    """The rows of a line with what its holes stand for, in parentheses where it is other code without."""
    if not want.line or want.docstring or not _holes([want]):
        return want.rows
    spelled = {hole.removeprefix(HOLE): spell(node) for hole, node in bound.items()}
    enclosed = {name: f"({code})" for name, code in spelled.items()}
    plain = tuple(_HOLE.sub(lambda m: spelled.get(m[1], m[0]), row) for row in want.rows)
    try:
        line = _line(textwrap.dedent("\n".join(filter(_is_code, plain))), want.depth)
    except BadPattern:
        line = None
    if line is not None and same_line(want.line, line, dict(bound)):
        return plain
    return tuple(_HOLE.sub(lambda m: enclosed.get(m[1], m[0]), row) for row in want.rows)


def _holes(lines: Iterable[Wanted]) -> set[str]:
    return {name for want in lines for name in _HOLE.findall("\n".join(filter(_is_code, want.rows)))}


def _logical_lines(rows: Sequence[str]) -> list[Wanted]:
    found: list[Wanted] = []
    pending: list[str] = []  # rows of the logical line that is being read, marks taken off
    mark = ""
    margin = min((_indent(r[1:]) for r in rows if _is_code(r[1:])), default=0)
    for row in rows:
        row_mark = row[0] if row else mark or " "
        if pending and row_mark != mark:
            if any(map(_is_code, pending)):
                raise BadPattern(f"one statement carries two marks: {row!r}")
            if found and found[-1].mark == mark:  # blank and comment rows at the end of a group
                found[-1] = replace(found[-1], rows=(*found[-1].rows, *pending))
            pending = []
        mark = row_mark
        pending.append(row[1 + margin :])
        if _is_code(row[1:]) and _is_complete(pending) and not _is_decorator(pending):
            want = _wanted(mark, pending)
            pending = []
            if found and _is_docstring_of(want, found[-1]):
                header = found[-1].rows
                found[-1] = replace(found[-1], rows=(*header, *want.rows), docstring=len(header))
            else:
                found.append(want)
    if any(map(_is_code, pending)):
        raise BadPattern(f"the edit ends inside a statement: {pending[-1]!r}")
    if pending and found and found[-1].mark == mark:
        found[-1] = replace(found[-1], rows=(*found[-1].rows, *pending))
    return found


def _is_docstring_of(want: Wanted, header: Wanted) -> bool:
    if want.line is None or header.line is None or not isinstance(header.line.node, Definition):
        return False
    match want.line.node:
        case ast.Expr(value=ast.Constant(value=str())):
            return want.mark == header.mark and want.depth == header.depth + 1
    return False


def _is_code(row: str) -> bool:
    return bool(row.strip()) and not row.lstrip().startswith("#")


def _indent(row: str) -> int:
    return len(row) - len(row.lstrip(" "))


def _plain(rows: Sequence[str]) -> str:
    return _HOLE.sub(rf"{HOLE}\1", textwrap.dedent("\n".join(rows)).strip("\n"))


def _is_complete(rows: Sequence[str]) -> bool:
    """Whether brackets, strings and backslashes are closed at the end of these rows."""
    if len(rows) == 1 and not _OPENS.search(rows[0]):
        return True
    if rows[-1].rstrip().endswith("\\"):
        return False
    try:
        for _ in tokenize.generate_tokens(io.StringIO(_plain(rows) + "\n").readline):
            pass
    except (tokenize.TokenError, SyntaxError):
        return False
    return True


def _is_decorator(rows: Sequence[str]) -> bool:
    code = [r.strip() for r in rows if _is_code(r)]
    defines = any(re.match(r"(async\s+def|def|class)\b", row) for row in code)
    return bool(code) and code[0].startswith("@") and not defines


def _wanted(mark: str, rows: Sequence[str]) -> Wanted:
    code = [r for r in rows if _is_code(r)]
    indent = _indent(code[0])
    if indent % STEP:
        raise BadPattern(f"indentation goes in steps of {STEP} blanks: {code[0]!r}")
    depth = indent // STEP
    text = _plain(code)
    line = None if text == "..." else _line(text, depth)
    return Wanted(mark, line, depth, tuple(rows))


def _line(text: str, depth: int) -> Line:
    header = text + "\n    pass"
    for word in ("else", "finally"):
        if re.fullmatch(rf"{word}\s*:\s*(#.*)?", text):
            return Line(word, ast.Pass(), depth, 0)
    if text.startswith("elif") and (node := _first(f"if 0:\n    pass\n{header}")):
        return Line("elif", node.orelse[0], depth, 0)
    if text.startswith("except") and (node := _first(f"try:\n    pass\n{header}")):
        return Line("except", node.handlers[0], depth, 0)
    if text.startswith("case") and (node := _first("match 0:\n" + textwrap.indent(header, "    "))):
        return Line("case", node.cases[0], depth, 0)
    if node := _first(text):
        if hasattr(node, "body") or isinstance(node, ast.Match):
            raise BadPattern(f"a header and its body are two lines: {text!r}")
        return Line("statement", node, depth, 0)
    for rest in ("\n    pass", "\n    pass\nfinally:\n    pass", "\n    case _:\n        pass"):
        if node := _first(text + rest):
            return Line("header", node, depth, 0)
    raise BadPattern(f"neither one statement nor the header of one: {text!r}")


def _first(source: str) -> Any:
    """The one statement of a source; None where it has none, more or is no Python."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return None
    return body[0] if len(body) == 1 else None

"""Find an edit in a module on the standard library's syntax tree: to be made, made already, or neither."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from migrator import pattern
from migrator.model import Argument, Edit, Hunk, Insert, Probe
from migrator.source import (
    Bindings,
    Definition,
    Line,
    Module,
    body_without_docstring,
    definitions,
    find_scopes,
    flatten,
    same,
    same_line,
    top_level,
)


class Found(Enum):
    """What a module says of one edit."""

    TO_DO = "to do"
    DONE = "done"
    NEITHER = "neither"


@dataclass(frozen=True)
class Site:
    """Where a hunk's lines stand: the file's line for each line of the edit, None for `...` and new lines."""

    lines: tuple[Line | None, ...]
    bound: Bindings


@dataclass(frozen=True)
class Finding:
    """The answer for one edit; `reason` explains NEITHER, the other fields say where to write if TO_DO."""

    found: Found
    reason: str = ""
    site: Site | None = None  # of a hunk
    scope: ast.Module | Definition | None = None  # of a hunk, insert (the definition after it) or argument


def find(edit: Edit, module: Module) -> Finding:
    """Look for one edit in a module."""
    match edit:
        case Hunk():
            return _find_hunk(edit, module)
        case Insert():
            return _find_insert(edit, module)
        case Argument():
            return _find_argument(edit, module)


def holds(probe: Probe, module: Module) -> bool:
    """Whether upstream's own fix, as the probe knows it, is in the module."""
    for scope in find_scopes(module, probe.scope):
        conditions = (
            not probe.present or bool(_sites(pattern.read(probe.present).before, _lines(scope, module))),
            not probe.calls or any(_last(c.func) == probe.calls for c in _calls(scope)),
            not probe.passes or any(k.arg == probe.passes for c in _calls(scope) for k in c.keywords),
            not probe.defines or probe.defines in _defined(scope),
        )
        if all(conditions):
            return True
    return False


def _lines(scope: ast.Module | Definition, module: Module) -> list[Line]:
    return list(flatten(body_without_docstring(scope), module.rows))


def _one_scope(name: str, module: Module) -> ast.Module | Definition | str:
    """The scope of that name, or why there isn't one."""
    found = find_scopes(module, name)
    if len(found) == 1:
        return found[0]
    if found:
        rows = ", ".join(str(d.lineno) for d in found if isinstance(d, Definition))
        return f"`{name}` is defined {len(found)} times (lines {rows})"
    names = [d.name for d in definitions(module.tree.body)]
    near = difflib.get_close_matches(name.split(".")[0], names, n=1, cutoff=0.5)
    return f"there is no `{name}`" + (f"; the nearest name is `{near[0]}`" if near else "")


def _find_hunk(hunk: Hunk, module: Module) -> Finding:
    scope = _one_scope(hunk.scope, module)
    if isinstance(scope, str):
        return Finding(Found.NEITHER, scope)
    wanted, lines = pattern.read(hunk.edit), _lines(scope, module)
    to_do, done = _sites(wanted.before, lines), _sites(wanted.after, lines)
    # what an edit adds to, it still finds when it is made; and what a deletion leaves, it finds before it is
    to_do, done = (
        [s for s in to_do if not any(_rows(s) < _rows(other) for other in done)],
        [s for s in done if not any(_rows(s) <= _rows(other) for other in to_do)],
    )
    match len(to_do), len(done):
        case 1, 0:
            by_wanted = iter(to_do[0].lines)
            spread = tuple(None if w.mark == "+" else next(by_wanted) for w in wanted.wanted)
            site = Site(spread, to_do[0].bound)
            if begun := _begun(wanted.wanted, site, lines):
                why = f"`{_spelled(begun)}` (line {begun.row + 1}) is there already, but not all of the edit"
                return Finding(Found.NEITHER, why)
            return Finding(Found.TO_DO, site=site, scope=scope)
        case 0, 1:
            return Finding(Found.DONE)
        case 0, 0:
            return Finding(Found.NEITHER, _nothing(wanted.before, lines))
    rows = ", ".join(str(_first_line(site).row + 1) for site in [*to_do, *done])
    return Finding(
        Found.NEITHER, f"{len(to_do) + len(done)} places fit (lines {rows}), exactly one is wanted"
    )


def _rows(site: Site) -> set[int]:
    return {id(line) for line in site.lines if line}


def _begun(wanted: Sequence[pattern.Wanted], site: Site, lines: Sequence[Line]) -> Line | None:
    """A line to come that is there already, right where it would be put: half of the edit has been made."""
    at = {id(line): index for index, line in enumerate(lines)}
    for index, want in enumerate(wanted):
        for step, beside in ((1, index - 1), (-1, index + 1)):
            anchor = site.lines[beside] if 0 <= beside < len(wanted) else None
            if want.mark != "+" or want.line is None or anchor is None:
                continue
            place = at[id(anchor)] + step
            if not 0 <= place < len(lines) or any(lines[place] is line for line in site.lines):
                continue
            depth = anchor.depth + want.depth - wanted[beside].depth
            if lines[place].depth == depth and same_line(want.line, lines[place], dict(site.bound)):
                return lines[place]
    return None


def _first_line(site: Site) -> Line:
    return next(line for line in site.lines if line is not None)


def _sites(wanted: Sequence[pattern.Wanted], lines: Sequence[Line]) -> list[Site]:
    """Every way in which the wanted lines are found, consecutive but for `...`."""
    first = wanted[0]
    return [
        Site(found, bound)
        for start, line in enumerate(lines)
        for found, bound in _follow(wanted, 0, lines, start, line.depth - first.depth, {})
    ]


def _follow(
    wanted: Sequence[pattern.Wanted], at: int, lines: Sequence[Line], index: int, shift: int, bound: Bindings
) -> Iterator[tuple[tuple[Line | None, ...], Bindings]]:
    if at == len(wanted):
        yield (), bound
        return
    want = wanted[at]
    if want.line is None:  # `...`: skip lines at its depth or deeper, as few or as many as lead to a match
        for stop in range(index, len(lines) + 1):
            for rest, known in _follow(wanted, at + 1, lines, stop, shift, bound):
                yield (None, *rest), known
            if stop < len(lines) and lines[stop].depth < want.depth + shift:
                return
        return
    known = dict(bound)
    if (
        index < len(lines)
        and lines[index].depth == want.depth + shift
        and same_line(want.line, lines[index], known)
    ):
        for rest, more in _follow(wanted, at + 1, lines, index + 1, shift, known):
            yield (lines[index], *rest), more


def _nothing(wanted: Sequence[pattern.Wanted], lines: Sequence[Line]) -> str:
    """Say which line of the edit was not found, and what comes nearest to it."""
    code = [w for w in wanted if w.line is not None]
    absent = [w for w in code if w.line and not any(same_line(w.line, line, {}) for line in lines)]
    want = (absent or code)[0]
    assert want.line is not None
    text = " ".join(" ".join(want.rows).split())
    if not absent:
        return f"`{text}` is there, but not in the surroundings that the patch knows"
    spelled = _spelled(want.line)
    scores = [(difflib.SequenceMatcher(None, spelled, _spelled(line)).ratio(), line) for line in lines]
    score, line = max(scores, key=lambda pair: pair[0], default=(0.0, None))
    if line is None or score < 0.4:
        return f"`{text}` was not found, nor anything like it"
    return f"`{text}` was not found; the nearest candidate is line {line.row + 1}: `{_spelled(line)}`"


def _spelled(line: Line) -> str:
    if line.kind in ("else", "finally"):
        return f"{line.kind}:"
    text = ast.unparse(line.node)
    if line.kind == "statement":
        return text
    header = next((t for t in text.split("\n") if t.strip() and not t.startswith("@")), text)
    return "el" + header if line.kind == "elif" else header


def _find_insert(insert: Insert, module: Module) -> Finding:
    present = {name: found for name in insert.names if (found := _top_level(module, name))}
    if not present:
        scope = _one_scope(insert.before, module)
        if isinstance(scope, str):
            return Finding(Found.NEITHER, scope)
        return Finding(Found.TO_DO, scope=scope)
    if missing := [name for name in insert.names if name not in present]:
        return Finding(Found.NEITHER, f"`{next(iter(present))}` is there, but `{missing[0]}` is not")
    for name, text in zip(insert.names, insert.text, strict=True):
        ours = ast.parse(text).body[0]
        if len(present[name]) != 1 or not same(ours, present[name][0], {}):
            return Finding(
                Found.NEITHER, f"`{name}` is there already, but it is other code than this patch's"
            )
    return Finding(Found.DONE)


def _top_level(module: Module, name: str) -> list[ast.stmt]:
    """The definitions of that name, and the assignments to it at the margin."""
    assigned = [s for s in module.tree.body if name in _targets(s)] if _may_assign(module, name) else []
    return [*top_level(module, name), *assigned]


def _may_assign(module: Module, name: str) -> bool:
    return re.search(rf"^{name}\b.*=|=\s*{name}\s*=", module.text, re.MULTILINE) is not None


def _targets(node: ast.stmt) -> set[str]:
    match node:
        case ast.Assign(targets=targets):
            return {t.id for t in targets if isinstance(t, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


def _find_argument(argument: Argument, module: Module) -> Finding:
    scope = _one_scope(argument.function, module)
    if isinstance(scope, str):
        return Finding(Found.NEITHER, scope)
    if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        return Finding(Found.NEITHER, f"`{argument.function}` is not a function")
    return _find_keyword(argument, scope) if argument.call else _find_parameter(argument, scope)


def parameter(add: str) -> tuple[ast.arg, ast.expr]:
    """The parameter and its default that `add` ("name: type = default") spells. Raises `ValueError`."""
    match _parsed(f"def _({add}): pass"):
        case ast.FunctionDef(args=ast.arguments(args=[only], defaults=[default], kwonlyargs=[])):
            return only, default
    raise ValueError(f"a parameter is added as `name: type = default`, not {add!r}")


def keyword(add: str) -> ast.keyword:
    """The keyword argument that `add` ("name=value") spells. Raises `ValueError`."""
    match _parsed(f"_({add})"):
        case ast.Expr(value=ast.Call(args=[], keywords=[ast.keyword(arg=str()) as only])):
            return only
    raise ValueError(f"a keyword argument is added as `name=value`, not {add!r}")


def _parsed(statement: str) -> ast.stmt | None:
    try:
        return ast.parse(statement).body[0]
    except SyntaxError:
        return None


def _find_parameter(argument: Argument, scope: ast.FunctionDef | ast.AsyncFunctionDef) -> Finding:
    ours, default = parameter(argument.add)
    args = scope.args
    defaults: dict[str, ast.expr | None] = dict.fromkeys(a.arg for a in args.args)
    defaults.update({a.arg: d for a, d in zip(reversed(args.args), reversed(args.defaults), strict=False)})
    defaults.update({a.arg: d for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)})
    others = [*args.posonlyargs, *filter(None, (args.vararg, args.kwarg))]
    for found in [*args.args, *args.kwonlyargs, *others]:
        if found.arg == ours.arg:
            if same(ours, found, {}) and same(default, defaults.get(found.arg), {}):
                return Finding(Found.DONE)
            return Finding(Found.NEITHER, f"`{argument.function}` has its own parameter `{ours.arg}`")
    if not args.args:
        return Finding(Found.NEITHER, f"`{argument.function}` has no parameter to add `{ours.arg}` behind")
    return Finding(Found.TO_DO, scope=scope)


def _find_keyword(argument: Argument, scope: ast.FunctionDef | ast.AsyncFunctionDef) -> Finding:
    ours = keyword(argument.add)
    calls = [c for c in _calls(scope) if ast.unparse(c.func) == argument.call]
    where = f"`{argument.function}` calls `{argument.call}`"
    if len(calls) != argument.calls:
        return Finding(Found.NEITHER, f"{where} {len(calls)} times, {argument.calls} wanted")
    given = [next((k for k in c.keywords if k.arg == ours.arg), None) for c in calls]
    if all(k is None for k in given):
        if any(not c.args and all(k.arg is None for k in c.keywords) for c in calls):
            return Finding(Found.NEITHER, f"{where} without an argument to add `{ours.arg}` behind")
        return Finding(Found.TO_DO, scope=scope)
    if all(k is not None and same(ours.value, k.value, {}) for k in given):
        return Finding(Found.DONE)
    return Finding(Found.NEITHER, f"{where} with another `{ours.arg}`, or not every time")


def _calls(scope: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(scope) if isinstance(node, ast.Call)]


def _last(func: ast.expr) -> str:
    match func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _defined(scope: ast.Module | Definition) -> set[str]:
    """Parameters, and what the scope itself assigns or defines."""
    names = {d.name for d in definitions(scope.body)}
    for node in scope.body:
        names |= _targets(node)
    if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        args = scope.args
        names |= {a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
    return names

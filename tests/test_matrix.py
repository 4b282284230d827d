"""Every locked wheel goes through apply, a second apply and revert; and again in another layout."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fixtures import fetch
from migrator import cli, series
from migrator.model import Argument, Hunk, Insert
from migrator.pattern import read
from migrator.ranges import edits_for
from tests.sandbox import hashes, patched_files

Sandbox = Callable[..., Path]

FINE = {"applied", "fixed-upstream", "not-applicable"}
WHEELS = [pytest.param(w.project, w.version, id=w.requirement) for w in fetch.lock()]
OPTIONAL = [p.name for p in series.load().patches if not p.default]


def cpfix(*arguments: str | Path, exit_code: int = 0) -> Any:
    """Run a command in this process; its JSON object."""
    result = CliRunner().invoke(cli.main, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


def check_settled(found: Sequence[dict[str, Any]]) -> None:
    """Each patch is there, or is known not to be needed."""
    wrong = [f"{p['id']}: {p['state']}: {p['reason']}" for p in found if p["state"] not in FINE]
    assert not wrong
    assert not [p for p in found if "not known" in p["reason"] or "expected" in p["reason"]]


@pytest.mark.parametrize(("project", "version"), WHEELS)
def test_wheel(sandbox: Sandbox, project: str, version: str) -> None:
    root = sandbox({project: version})
    pristine = hashes(root)
    old = {path: (root / path).read_bytes() for path in pristine}

    done = cpfix("apply", "--root", root, "--verify", "static")
    check_settled(done["patches"])
    changed = {Path(c["path"]).relative_to(root).as_posix() for c in done["changed"]}
    assert changed <= patched_files(project)
    assert changed == {f for p in done["patches"] if p["state"] == "applied" for f in p["files"]}
    for path in changed:
        check_difference(project, version, path, old[path], (root / path).read_bytes(), optional=False)
    cpfix("status", "--check", "--root", root)

    once = hashes(root)
    again = cpfix("apply", "--root", root)
    assert (again["changed"], again["written"], again["patches"]) == ([], False, done["patches"])
    assert hashes(root) == once

    with_all = cpfix("apply", "--root", root, *(x for name in OPTIONAL for x in ("--with", name)))
    check_settled(with_all["patches"])
    for path in {Path(c["path"]).relative_to(root).as_posix() for c in with_all["changed"]}:
        check_difference(project, version, path, old[path], (root / path).read_bytes(), optional=True)

    cpfix("revert", "--root", root)
    assert hashes(root) == pristine
    assert not (root / ".cpfix").exists()


@pytest.mark.parametrize(("project", "version"), WHEELS)
def test_wheel_in_another_layout(sandbox: Sandbox, project: str, version: str) -> None:
    """Quotes, line breaks, parentheses, comments and blank lines are all gone; line ends are others."""
    root = sandbox({project: version})
    before = {p["id"]: p["state"] for p in cpfix("status", "--root", root)["patches"]}
    files = [root / path for path in sorted(patched_files(project)) if (root / path).is_file()]
    for number, file in enumerate(files):
        plain = ast.unparse(ast.parse(file.read_bytes()))
        file.write_bytes(plain.replace("\n", ("\n", "\r\n", "\r")[number % 3]).encode())
    assert {p["id"]: p["state"] for p in cpfix("status", "--root", root)["patches"]} == before
    plain_files = hashes(root)
    done = cpfix("apply", "--root", root, *(x for name in OPTIONAL for x in ("--with", name)))
    check_settled(done["patches"])
    assert {p["id"] for p in done["patches"] if p["state"] == "applied"} >= {
        id for id, state in before.items() if state == "needed"
    }
    for change in done["changed"]:
        raw = Path(change["path"]).read_bytes()
        compile(raw, change["path"], "exec")
        ends = {b"\r\n": raw.count(b"\r\n"), b"\n": raw.count(b"\n"), b"\r": raw.count(b"\r")}
        assert ends[b"\r\n"] in (0, ends[b"\n"])
        assert ends[b"\r\n"] == ends[b"\r"] or ends[b"\n"] == 0
    cpfix("revert", "--root", root)
    assert hashes(root) == plain_files


# --- only what the patches say


def check_difference(
    project: str, version: str, path: str, old: bytes, new: bytes, *, optional: bool
) -> None:
    """The file compiles, and differs from the original only where its edits say so."""
    compile(new, path, "exec")
    patches = [p for p in series.load().of(project) if p.default or optional]
    edits = [e for p in patches for e in edits_for(p, version) if e.file == path]
    before, after = dict(parts(old)), dict(parts(new))
    touched = {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)}
    named = {e.scope for e in edits if isinstance(e, Hunk)} | {
        e.function for e in edits if isinstance(e, Argument)
    }
    added = {name for e in edits if isinstance(e, Insert) for name in e.names} | {
        f"{e.scope}.{want.line.node.name}".lstrip(".")
        for e in edits
        if isinstance(e, Hunk)
        for want in read(e.edit).wanted
        if want.mark == "+" and want.line and isinstance(want.line.node, ast.FunctionDef)
    }
    fresh = {n for n in touched if n not in before}
    assert {n for n in fresh if not n.startswith(tuple(f"{a}." for a in added))} <= added
    assert {n for n in touched if n in before} <= named
    # rows go only where a line of an edit says so
    gone = [r for r in old.splitlines() if r not in set(new.splitlines())]
    removed = sum(w.mark == "-" for e in edits if isinstance(e, Hunk) for w in read(e.edit).wanted)
    assert bool(gone) <= bool(removed or any(isinstance(e, Argument) for e in edits))


def parts(raw: bytes) -> Iterator[tuple[str, str]]:
    """The text of each definition, by qualified name, without those in it; and of what is around them."""
    text = raw.decode()
    rows = text.splitlines(keepends=True)

    def walk(node: ast.AST, name: str, start: int, end: int) -> Iterator[tuple[str, str]]:
        rest, at = [], start
        for child in getattr(node, "body", []):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)]) - 1
                rest += rows[at:first]
                at = child.end_lineno or child.lineno
                yield from walk(child, f"{name}.{child.name}".lstrip("."), first, at)
        # blank rows and comments come with the definitions around them
        yield name, "".join(row for row in rest + rows[at:end] if row.strip() and row.strip()[0] != "#")

    yield from walk(ast.parse(text), "", 0, len(rows))

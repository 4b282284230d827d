"""The text of commits and pull requests, from a patch's TOML: strings in, strings out."""

from __future__ import annotations

import ast
import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from migrator.model import Argument, Contribution, Edit, Hunk, Insert, Patch, UsageError
from migrator.verify.check import Check, from_json

WIDTH = 72  # of a commit message's body


@dataclass(frozen=True)
class Facts:
    """What a pull request says of itself."""

    upstream: str  # repository URL
    branch: str
    base: str  # as it was named
    commit: str  # its full hash
    version: str  # of the project at the base
    own: tuple[Patch, ...]  # what it is about, in order
    below: tuple[Patch, ...]  # patches whose commits come first
    edits: tuple[tuple[Edit, ...], ...]  # of `own`, on this version
    sources: tuple[str, ...]  # posix paths of the changed files, tests left out
    tests: tuple[str, ...]  # posix paths of the new tests of `own`
    longest_line: int  # of those added
    signed_off: bool
    folder: str = ""  # of the packages in the repository, "" or "src/"
    elsewhere: tuple[Patch, ...] = ()  # patches of other projects that `own` requires
    outdated: tuple[str, ...] = ()  # tests at the base that state what `own` changes, as pytest names them


def message(patch: Patch, signature: str) -> str:
    """A commit message; `signature` is `Name <mail>`, "" for a commit that is not signed off."""
    parts = [patch.title, fill(patch.why), _seen(patch, WIDTH)]
    if patch.references:
        parts.append("\n".join(["References:", *(f"- {url}" for url in patch.references)]))
    if signature:
        parts.append(f"Signed-off-by: {signature}")
    return "\n\n".join(parts) + "\n"


def fill(text: str, width: int = WIDTH) -> str:
    """`text` as one paragraph; addresses and names stay whole."""
    return textwrap.fill(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)


def _seen(patch: Patch, width: int) -> str:
    return fill(f"Symptom: {patch.symptom}", width)


def evidence_of(file: Path | None) -> tuple[Check, ...] | None:
    """The checks of a report that `cpfix verify --json` wrote. Raises `UsageError`; None without a file."""
    if file is None:
        return None
    try:
        return tuple(from_json(check) for check in json.loads(file.read_bytes())["checks"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--evidence {file} is no report of `cpfix verify --json`: {error}") from error


def document(facts: Facts, contribution: Contribution, checks: Sequence[Check] | None) -> str:
    """`PULL_REQUEST.md`."""
    several = len(facts.own) > 1
    heading = facts.own[0].title if not several else f"{facts.own[0].title} (and {len(facts.own) - 1} more)"
    head = [f"# {heading}", "", f"Branch `{facts.branch}`, off `{facts.base}` ({facts.commit[:12]}, version"]
    head[-1] += f" {facts.version}) of {facts.upstream}."
    if facts.below:
        head += ["", "Stacked: the commits of these come first, and without them it would be wrong.", ""]
        head += [f"- {patch.title}" for patch in facts.below]
    if facts.elsewhere:
        head += ["", "It would be wrong without a change in another project as well:", ""]
        head += [f"- {patch.project}: {patch.title}" for patch in facts.elsewhere]
    sections = [
        ("Problem", _problem(facts, several)),
        ("Reproduction", _reproduction(facts)),
        ("Fix", _fix(facts, several)),
        ("Existing tests", _outdated(facts)),
        ("Evidence", _evidence(checks)),
        ("Before it is ready for review", _rules(facts, contribution)),
        ("References", [f"- {url}" for url in dict.fromkeys(u for p in facts.own for u in p.references)]),
    ]
    text = head + [row for name, rows in sections if rows for row in ("", f"## {name}", "", *rows)]
    return "\n".join(text) + "\n"


def _problem(facts: Facts, several: bool) -> list[str]:
    rows: list[str] = []
    for patch in facts.own:
        rows += [f"### {patch.title}", ""] if several else []
        rows += [fill(patch.why, width=100), "", _seen(patch, 100), ""]
    return rows[:-1]


def _reproduction(facts: Facts) -> list[str]:
    if not facts.tests:
        return ["No unit test comes along; what is seen without the change stands above."]
    tests, sources = " ".join(facts.tests), " ".join(facts.sources)
    return [
        "The new tests fail without the change and pass with it. They need no GPU; where the repository's "
        "conftest does, `--noconftest` leaves it out.",
        "",
        "```",
        f"git checkout {facts.branch}",
        f"git checkout {facts.branch}~{len(facts.own)} -- {sources}",
        f"pytest {tests}    # fails",
        f"git checkout {facts.branch} -- {sources}",
        f"pytest {tests}    # passes",
        "```",
    ]


def _fix(facts: Facts, several: bool) -> list[str]:
    rows: list[str] = []
    for patch, edits in zip(facts.own, facts.edits, strict=True):
        rows += ["", f"{patch.title}:", ""] if several else []
        for file in dict.fromkeys(edit.file for edit in edits):
            here = [edit for edit in edits if edit.file == file]
            added = dict.fromkeys(name for e in here if isinstance(e, Insert) for name in e.names)
            changed = dict.fromkeys(_scope(e) for e in here if not isinstance(e, Insert))
            parts = [
                f"{verb} {_code(names)}" for verb, names in (("changes", changed), ("adds", added)) if names
            ]
            rows.append(f"- `{facts.folder}{file}`: {'; '.join(parts)}")
    return rows[1:] if several else rows


def _scope(edit: Hunk | Argument) -> str:
    scope = edit.scope if isinstance(edit, Hunk) else edit.function
    return scope or "module level"


def _code(names: Iterable[str]) -> str:
    return ", ".join(name if " " in name else f"`{name}`" for name in names)


def test_ids(path: str, source: str, names: Iterable[str]) -> list[str]:
    """Which of these tests the file `path` has, as pytest names them; none where it is no Python."""
    wanted = set(names)
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return []
    within = [(f"{path}::", body)]
    within += [(f"{path}::{node.name}::", node.body) for node in body if isinstance(node, ast.ClassDef)]
    return [
        front + node.name
        for front, nodes in within
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.name in wanted
    ]


def _outdated(facts: Facts) -> list[str]:
    if not facts.outdated:
        return []
    return [
        "They state what this changes, and fail with it:",
        "",
        *(f"- `{test}`" for test in facts.outdated),
    ]


def _evidence(checks: Sequence[Check] | None) -> list[str]:
    if checks is None:
        return ["`cpfix verify` was not run for this; `cpfix export --evidence FILE` puts its report here."]
    rows = ["| check | CP size | result | measured | bound | |", "| --- | --- | --- | --- | --- | --- |"]
    for c in checks:
        cells = [c.name, _cell(c.cp), c.status, _cell(c.measured), _cell(c.bound), c.detail]
        rows.append("| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |")
    if failed := sum(c.status == "failed" for c in checks):
        rows += ["", f"**{failed} of {len(checks)} checks failed.**"]
    return rows


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _rules(facts: Facts, contribution: Contribution) -> list[str]:
    limit = contribution.line_length
    kept = [
        (facts.signed_off, "Every commit is signed off (Developer Certificate of Origin)."),
        (facts.longest_line <= limit, f"No added line is longer than {limit} columns."),
        (bool(facts.tests), f"New unit tests: {_code(facts.tests) or 'none'}."),
    ]
    if facts.outdated:
        kept.append((False, "The existing tests named above are brought up to date."))
    rows = [f"- [{'x' if done else ' '}] {rule}" for done, rule in kept]
    return rows + [f"- [ ] {rule}" for rule in contribution.rules]

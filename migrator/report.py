"""Tables, diffs and JSON: the only place that prints. Coloured on a terminal, plain where it is piped."""

from __future__ import annotations

import json
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from migrator import shapes
from migrator.commands import Outcome
from migrator.difference import tree_of, unified
from migrator.ledger import Entry
from migrator.model import CpfixError, FileChange, Install, Patch, PatchState, State
from migrator.scene import Scene
from migrator.verify.check import Report

if TYPE_CHECKING:
    from migrator.export import Export

_COLOURS = {
    State.NEEDED: "yellow",
    State.APPLIED: "green",
    State.FIXED_UPSTREAM: "green",
    State.NOT_APPLICABLE: "bright_black",
    State.PARTIAL: "red",
    State.CONFLICT: "red",
    State.DRIFTED: "yellow",
}
_DIFF_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True)
class Style:
    """How much is said, and in which form."""

    json: bool = False
    verbosity: int = 0  # -1 quiet, 0 normal, 1 verbose


def _say(text: str = "") -> None:
    click.echo(text)


def _json(data: Any) -> None:
    click.echo(json.dumps(data, indent=2))


# --- status


def status(scene: Scene, states: Sequence[PatchState], style: Style, container: str) -> None:
    """Installs and patches, and what to do."""
    if style.json:
        _json(shapes.of_status(scene, states, container))
        return
    for sentence in scene.pending:
        click.secho(f"interrupted: {sentence}", fg="red", err=True)
    for sentence in scene.busy:
        click.secho(f"at work: {sentence}", fg="red", err=True)
    if style.verbosity >= 0:
        _table(
            ("project", "version", "kind", "imported", "writable", "root"),
            [
                (i.project, i.version or "?", i.kind, _yes(i.imports), _yes(i.writable), _root(i))
                for i in scene.installs
            ],
        )
        for install in scene.installs:
            for note in install.notes:
                _say(f"  {install.project} {install.version}: {note}")
        if container:
            _say(container)
        _say()
    _states(states, style)
    _advice(scene, states, style)


def _root(install: Install) -> str:
    if install.git is None:
        return str(install.root)
    dirty = {True: ", changed", False: "", None: ", state unknown"}[install.git.dirty]
    return f"{install.root} (git {install.git.head[:12] or 'no commit'}{dirty})"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _states(states: Sequence[PatchState], style: Style) -> None:
    several = {k for k, n in Counter((s.install.project, s.patch.id) for s in states).items() if n > 1}
    shown = [s for s in states if style.verbosity >= 0 or s.state.is_error or s.state.is_work or s.in_doubt]
    rows = []
    for s in shown:
        name = s.patch.name + (f" in {s.install.root}" if (s.install.project, s.patch.id) in several else "")
        rows.append((name, click.style(s.state.value, fg=_COLOURS[s.state]), s.reason))
    _table(("patch", "state", "why"), rows)
    if style.verbosity > 0:
        for s in shown:
            for file in s.files:
                _say(f"  {s.patch.id}: {file}")


def _advice(scene: Scene, states: Sequence[PatchState], style: Style) -> None:
    if any(s.state.is_error for s in states):
        _say("\nSome patches cannot be applied: the reason says where. `cpfix explain ID` says what for.")
    elif any(s.in_doubt for s in states):
        _say("\nSome versions are not known to this cpfix: look for a newer one, or use --project.")
    elif scene.outdated or any(s.state.is_work for s in states):
        for path in scene.outdated:
            _say(f"{path} was patched by another cpfix: apply brings it up to date.")
        _say("\n`cpfix diff` shows what would be written, `cpfix apply` writes it.")
    elif style.verbosity >= 0:
        _say("\nNothing to do." if states else "\nNo patch was looked at.")
    if (
        style.verbosity >= 0
        and any(not i.imports for i in scene.installs)
        and len(scene.targets) < len(scene.installs)
    ):
        _say("Copies that are not imported are left alone; name one with --root to patch it.")


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns; the last one is folded to the width of a terminal and left as it is in a pipe."""
    if not rows:
        return
    if sys.stdout.isatty():
        _rich_table(headers, rows)
        return
    plain = [[click.unstyle(cell) for cell in row] for row in [headers, *rows]]
    widths = [max(len(row[i]) for row in plain) for i in range(len(headers))]
    for row in plain:
        _say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _rich_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*headers, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(Text.from_ansi(cell) for cell in row))
    plain = click.get_current_context().color is False
    Console(color_system=None if plain else "auto").print(table)


# --- apply, revert, diff


def outcome(result: Outcome, style: Style, done: str, *, dry_run: bool = False) -> None:
    """What was written, or why nothing was."""
    if style.json:
        _json(shapes.of_outcome(result, dry_run=dry_run))
        return
    for message in result.messages:
        click.secho(message, fg="yellow", err=True)
    if result.failed:
        for failure in result.failed:
            name = f"{failure.project}/{failure.id}"
            click.secho(f"{name} on {failure.version} in {failure.root}:", fg="red", err=True)
            for part in failure.reason.split("; "):
                click.echo(f"  {part}", err=True)
        count = len({(f.project, f.id, f.root) for f in result.failed})
        written = "" if result.written else " Nothing was written."
        click.echo(f"{count} of {len(result.states)} patches failed.{written}", err=True)
        return
    if result.proof is not None and result.exit_code:
        _disproved(result.proof)
        return
    if style.verbosity < 0:
        return
    if not result.written:
        _states(result.states, style)
        _say("Nothing to do.")
        return
    for change in result.written:
        _say(f"{'would write' if dry_run else done}  {change.target}")
    if not dry_run:
        _say()
        _states(result.states, style)
    if result.proof is not None:
        _say()
        _proven(result.proof, style)


def _disproved(found: Report) -> None:
    """Why what was written did not stay, or should not have."""
    for check in (*found.failed, *found.unmet):
        at = f" at CP={check.cp}" if check.cp else ""
        off = "" if check.measured is None else f" ({check.measured:.3g}, at most {check.bound:.3g})"
        click.secho(f"{check.name}{at}: {check.status}{off}", fg="red", err=True)
        for part in check.detail.split("; ") if check.detail else ():
            click.echo(f"  {part}", err=True)
    on_gpus_only = all("gpu" in check.name for check in (*found.failed, *found.unmet))
    less = (
        "--verify cpu leaves the GPUs out"
        if on_gpus_only
        else "--verify static looks at no more than the files"
    )
    click.echo(f"The verification did not pass. --keep leaves what was written for a look, {less}.", err=True)


def _proven(found: Report, style: Style) -> None:
    """What the verification showed: in full with -v, else counted, with what could not be shown."""
    if style.verbosity > 0:
        verification(found, style)
        return
    _say(f"verified ({', '.join(found.levels)}): {_counted(found)}")
    for check in found.checks:
        if check.status == "not run":
            _say(f"  not run: {check.name}: {check.detail}")


def _counted(found: Report) -> str:
    count = Counter(c.status for c in found.checks)
    return f"{count['passed']} passed, {count['failed']} failed, {count['not run']} not run."


def verification(found: Report, style: Style) -> None:
    """Each check with what was measured against its bound, and what stood in for what isn't there."""
    if style.json:
        _json(shapes.of_verification(found))
        return
    shown = [c for c in found.checks if style.verbosity >= 0 or c.status == "failed"]
    colours = {"passed": "green", "failed": "red", "not run": "yellow"}
    rows = [
        (
            c.name,
            "" if c.cp is None else str(c.cp),
            click.style(c.status, fg=colours[c.status]),
            "" if c.measured is None else f"{c.measured:.3g}",
            "" if c.bound is None else f"{c.bound:.3g}",
            c.detail,
        )
        for c in shown
    ]
    _table(("check", "CP", "result", "measured", "bound", ""), rows)
    if found.stubs and style.verbosity >= 0:
        _say(f"\nReplaced for the checks: {', '.join(found.stubs)}")
    _say(f"\n{_counted(found)}")


def diff(changes: Sequence[FileChange], style: Style) -> None:
    """The unified diff, one part a tree; each part is valid input of `git apply` at its top."""
    trees = {c.root: tree_of(c.root) for c in changes}
    diffs = {
        top: unified([c for c in changes if trees[c.root] == top], top)
        for top in dict.fromkeys(trees.values())
    }
    if style.json:
        _json(shapes.of_diff(diffs))
        return
    for top, raw in diffs.items():
        if len(diffs) > 1:
            _say(f"# git -C {top} apply")
        if sys.stdout.isatty():
            for row in raw.decode(errors="replace").splitlines():
                _say(click.style(row, fg=_DIFF_COLOURS.get(row[:1])))
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(raw)


def log(entries: Sequence[tuple[Path, Entry]], style: Style) -> None:
    """The journal's history."""
    if style.json:
        _json(shapes.of_log(entries))
        return
    for root, entry in entries:
        _say(f"{entry.time}  {entry.command}  (cpfix {entry.cpfix})  {root}")
        for what, names in (("applied", entry.applied), ("removed", entry.removed), ("wrote", entry.files)):
            if names:
                _say(f"  {what} {', '.join(names)}")
    if not entries:
        _say("The journal is empty.")


# --- explain, errors


def explain(patches: Sequence[Patch], style: Style, *, whole: bool) -> None:
    """What patches do and why."""
    if style.json:
        _json(shapes.of_patches(patches))
        return
    if not whole:
        _table(
            ("patch", "title"), [(p.name + ("" if p.default else " (optional)"), p.title) for p in patches]
        )
        _say("\n`cpfix explain ID` says more of one.")
        return
    for patch in patches:
        click.secho(f"{patch.name}: {patch.title}", bold=True)
        if not patch.default:
            _say(f"Optional: applied by `cpfix apply --with {patch.name}` only.")
        for heading, text in (
            ("Why", patch.why),
            ("Symptom", patch.symptom),
            ("Retire when", patch.retire_when),
        ):
            _say(f"\n{heading}")
            _say(textwrap.fill(" ".join(text.split()), 100, initial_indent="  ", subsequent_indent="  "))
        for heading, lines in (
            ("Versions and files", shapes.places(patch)),
            ("Requires", patch.requires),
            ("References", patch.references),
        ):
            if lines:
                _say(f"\n{heading}")
                for line in lines:
                    _say(f"  {line}")
        _say()


# --- export, container --------------------------------------------------------------------------------------


def export(result: Export, style: Style) -> None:
    """The branches that were made, or would be."""
    if style.json:
        _json(shapes.of_export(result))
        return
    if style.verbosity >= 0:
        _say(f"{result.project.name} {result.version} at {result.base} in {result.top}")
        _states(result.states, style)
        _say()
    for branch in result.branches:
        click.secho(f"{'branch' if result.written else 'would make branch'} {branch.name}", bold=True)
        for commit in branch.commits:
            _say(f"  {commit.patch.title}")
            for entry in commit.files if style.verbosity > 0 else ():
                _say(f"    {entry.path}")
        if result.written and branch.folder is not None:
            _say(f"  git am --keep-non-patch {branch.folder}/*.patch")
    if not result.branches:
        _say("Nothing to export: no patch is needed at this base.")
    elif result.written and style.verbosity >= 0:
        _say("\nNothing was pushed. `git log -p BRANCH` shows what would be sent.")


def container(text: str, tag: str, name: str, style: Style) -> None:
    """A recipe, as it is."""
    if style.json:
        _json({"tag": tag, "name": name, "text": text})
    else:
        click.echo(text, nl=False)


def error(problem: CpfixError, style: Style) -> None:
    """A failure, on standard error; with --json, as the one object on standard output."""
    if style.json:
        _json({"error": str(problem), "exit_code": problem.exit_code})
    else:
        click.secho(f"cpfix: {problem}", fg="red", err=True)

"""The command line: options in, a command of `commands` run, its result handed to `report`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from migrator import __version__, commands, containers, ledger, recipes, report, scene, series
from migrator.model import CpfixError, UsageError
from migrator.report import Style
from migrator.scene import Options

_OPTIONS = (
    click.option(
        "--root",
        "roots",
        multiple=True,
        type=click.Path(path_type=Path),
        help="A site-packages folder or a checkout. May be repeated. Default: what the interpreter imports.",
    ),
    click.option("--python", default="", metavar="EXE", help="Look at what this interpreter imports."),
    click.option(
        "--project", "projects", multiple=True, metavar="NAME", help="Only this project. May be repeated."
    ),
    click.option(
        "--only", multiple=True, metavar="ID", help="Only this patch (ID or PROJECT/ID). May be repeated."
    ),
    click.option("--skip", multiple=True, metavar="ID", help="Not this patch. May be repeated."),
    click.option(
        "--with", "optional", multiple=True, metavar="ID", help="This optional patch too. May be repeated."
    ),
)
_STYLE = (
    click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, nothing else."),
    click.option("--no-color", is_flag=True, help="No colours on a terminal."),
    click.option("-q", "--quiet", is_flag=True, help="Say only what went wrong or is to be done."),
    click.option("-v", "--verbose", is_flag=True, help="Say more."),
)

Command = Callable[..., int | None]


class _Command(click.Command):
    """Says with an object what is wrong with the options, too, if `--json` is among them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it."""
        as_json = "--json" in args
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as problem:
            if not as_json:
                raise
            report.error(UsageError(problem.format_message()), Style(json=True))
            ctx.exit(problem.exit_code)


def _command(*options: Any) -> Callable[[Command], click.Command]:
    """A command with the common options; errors become messages and exit codes."""

    def decorate(function: Command) -> click.Command:
        @functools.wraps(function)
        def run(*, as_json: bool, no_color: bool, quiet: bool, verbose: bool, **given: Any) -> None:
            context = click.get_current_context()
            if no_color or os.environ.get("NO_COLOR"):
                context.color = False
            style = Style(as_json, -1 if quiet else int(verbose))
            if "roots" in given:
                names = ("roots", "python", "projects", "only", "skip", "optional")
                given["options"] = Options(**{name: given.pop(name) for name in names})
            try:
                context.exit(function(style=style, **given) or 0)
            except CpfixError as problem:
                report.error(problem, style)
                context.exit(problem.exit_code)

        wrapped: Any = run
        for option in reversed([*options, *_STYLE]):
            wrapped = option(wrapped)
        return main.command(cls=_Command)(wrapped)

    return decorate


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cpfix")
def main() -> None:
    """Repair sequence packing with context parallelism in an installed NeMo, Megatron-Core or
    Megatron-Bridge.

    Exit codes: 0 done or nothing to do; 1 a check found work or a verification failed; 2 usage; 3 a patch
    cannot be applied (nothing was written); 4 nothing supported found, or the environment forbids it.
    """


@_command(*_OPTIONS, click.option("--check", is_flag=True, help="Exit with 1 unless there is nothing to do."))
def status(options: Options, style: Style, check: bool) -> int:
    """Show what is installed, the state of each patch, and what to do."""
    found = scene.look(options)
    scene.require_targets(found, options)
    states = scene.selected(found, options)
    report.status(found, states, style, containers.describe(found.targets))
    settled = not (found.pending or found.busy or found.outdated)
    fine = settled and not any(s.state.is_work or s.state.is_error or s.in_doubt for s in states)
    return 1 if check and not fine else 0


@_command(*_OPTIONS)
def diff(options: Options, style: Style) -> int:
    """Print the unified diff that apply would write; valid for `git apply`."""
    result = commands.rehearse(options)
    if result.failed:
        report.outcome(result, style, "")
    else:
        report.diff(result.written, style)
    return result.exit_code


@_command(
    *_OPTIONS,
    click.option("--dry-run", is_flag=True, help="Say what would be written; write nothing."),
    click.option(
        "--check", is_flag=True, help="Like --dry-run, and exit with 1 if there is anything to write."
    ),
    click.option(
        "--verify",
        type=click.Choice(["none", "static", "cpu", "gpu", "auto"]),
        default="auto",
        envvar="CPFIX_VERIFY",
        show_default=True,
        show_envvar=True,
        help="The level of `cpfix verify` that what was written has to pass; else it is taken back.",
    ),
    click.option("--keep", is_flag=True, help="Keep what was written where the verification fails."),
)
def apply(options: Options, style: Style, dry_run: bool, check: bool, verify: str, keep: bool) -> int:
    """Apply the patches that are needed: all of them, or none."""
    if dry_run or check:
        result = commands.rehearse(options)
        if check and result.changes:
            result = replace(result, exit_code=1)
    else:
        result = commands.apply(options, verify=verify, keep=keep)
        if not result.changes and not result.exit_code and verify not in ("none", "auto"):
            result = replace(result, messages=(*result.messages, *_unverified(verify)))
    report.outcome(result, style, "patched", dry_run=dry_run or check)
    return result.exit_code


def _unverified(level: str) -> list[str]:
    """For who asked for a level on the command line. It isn't run: each of N ranks that start would do so."""
    source = click.get_current_context().get_parameter_source("verify")
    if source is not click.core.ParameterSource.COMMANDLINE:
        return []
    return [f"Nothing was to be written, so nothing was verified: `cpfix verify --level {level}` does that."]


@_command(
    *_OPTIONS,
    click.option(
        "--level",
        type=click.Choice(["static", "cpu", "gpu", "auto"]),
        default="auto",
        show_default=True,
        help="static needs no torch, cpu no GPU; auto goes as far as the machine allows.",
    ),
    click.option("--cp", default="2,4", show_default=True, help="Context parallel sizes, with commas."),
    click.option("--timeout", default=600.0, show_default=True, help="Seconds for each level's process."),
    click.option(
        "--report", "page", type=click.Path(path_type=Path), metavar="FILE.html", help="Write a page, too."
    ),
)
def verify(options: Options, style: Style, level: str, cp: str, timeout: float, page: Path | None) -> int:
    """Prove that the installed stack trains right: in a child process, on the code that is there."""
    from migrator import proof

    sizes = [size.strip() for size in cp.split(",")]
    if not all(size.isdecimal() for size in sizes):
        raise UsageError(f"--cp takes numbers with commas between them, not {cp!r}")
    seen = scene.look_when_settled(options)
    found = proof.prove(seen, options, proof.Request(level, tuple(map(int, sizes)), timeout))
    if page is not None:
        proof.write_page(page, found, seen)
    report.verification(found, style)
    return found.exit_code


@_command(
    *_OPTIONS, click.option("--dry-run", is_flag=True, help="Say what would be restored; write nothing.")
)
def revert(options: Options, style: Style, dry_run: bool) -> int:
    """Take patches back, byte for byte."""
    result = commands.revert(options, dry_run=dry_run)
    report.outcome(result, style, "restored", dry_run=dry_run)
    return result.exit_code


@_command(*_OPTIONS)
def log(options: Options, style: Style) -> None:
    """Show the journal: what cpfix wrote when."""
    roots = scene.look(options).roots
    report.log([(root, entry) for root in roots for entry in ledger.history(root)], style)


@_command(
    click.option(
        "--repo",
        type=click.Path(path_type=Path),
        required=True,
        help="A clone of the upstream repository. Its work tree and index are not touched.",
    ),
    click.option("--project", default="", metavar="NAME", help="Default: the one that the repository holds."),
    click.option("--base", default="", metavar="REF", help="Tag, branch or commit to start from."),
    click.option("--branch", default="", metavar="NAME", help="One series branch instead of one a patch."),
    click.option("--only", multiple=True, metavar="ID", help="This patch, on those it requires."),
    click.option("--signoff", is_flag=True, help="Sign the commits off, as git's settings name you."),
    click.option(
        "--format-patch",
        type=click.Path(path_type=Path),
        metavar="OUTDIR",
        help="A folder a branch: files for `git am`, and PULL_REQUEST.md.",
    ),
    click.option(
        "--evidence",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The report of `cpfix verify --json`, for PULL_REQUEST.md.",
    ),
    click.option("--dry-run", is_flag=True, help="Say what would be made; make nothing."),
)
def export(style: Style, dry_run: bool, **asked: Any) -> None:
    """Make branches for upstream pull requests in a clone; nothing is pushed."""
    from migrator import export as exporting  # GitPython

    report.export(exporting.run(exporting.Request(**asked), dry_run=dry_run), style)


@_command(
    click.option("--tag", default="", metavar="TAG", help="The image's tag. Default: what the versions fit."),
    click.option(
        "--recipe", "name", type=click.Choice(list(recipes.RECIPES)), default="dockerfile", show_default=True
    ),
    click.option(
        "--root", "places", multiple=True, type=click.Path(path_type=Path), help="Where to look for versions."
    ),
)
def container(tag: str, name: str, places: tuple[Path, ...], style: Style) -> None:
    """Print the recipe that puts cpfix into NVIDIA's NeMo container."""
    tag = tag or recipes.tag_of(scene.look(Options(roots=places)).targets)
    report.container(recipes.recipe(name, tag), tag, name, style)


@_command(click.argument("names", nargs=-1, metavar="[ID]..."))
def explain(names: tuple[str, ...], style: Style) -> None:
    """Say what a patch does and why; without ID, list all patches."""
    patches = series.shipped().patches
    wanted = scene.named(names, patches) if names else {p.name for p in patches}
    report.explain([p for p in patches if p.name in wanted], style, whole=bool(names))

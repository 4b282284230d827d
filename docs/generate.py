"""Write the pages that come from the patch series: the support matrix, and a page for each patch.

    python docs/generate.py [--check]

With --check nothing is written; exit code 1 says that a page is out of date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from packaging.version import Version

from fixtures.fetch import lock
from migrator import plan, series
from migrator.model import Patch, Project

NOTE = "<!-- written by docs/generate.py from patches/: change it there -->\n"


def cell(patch: Patch, project: Project, version: str) -> str:
    """What a patch is on a release, as far as the series says: the code decides in the end."""
    number = plan.release(version)
    if number is None or not project.known.contains(number, prereleases=True):
        return "not known"
    if plan.edits_for(patch, version):
        return "needed" if patch.default else "optional"
    if any(probe.versions.contains(number, prereleases=True) for probe in patch.probes):
        return "fixed"
    return "-"


def columns(project: Project, patches: Sequence[Patch], versions: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Runs of releases on which every patch is the same, as (label, cells)."""
    rows = [(v, [cell(p, project, v) for p in patches]) for v in sorted(versions, key=Version)]
    found = []
    for cells, run in groupby(rows, key=lambda row: row[1]):
        names = [v for v, _ in run]
        found.append((names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}", cells))
    return found


def support_matrix(everything: series.Series, versions: Mapping[str, Sequence[str]]) -> str:
    """The page: a table a project, a row a patch, a column for each run of releases."""
    parts = [
        NOTE,
        "# Support matrix\n",
        "What each patch is on each release, as the series has it. `needed`: the defect is there and the patch "
        "repairs it; `fixed`: upstream's own fix is there; `optional`: applied by `--with` only; `-`: the patch "
        "has nothing to do with that release. cpfix decides by the code it finds: see `cpfix status`.\n",
    ]
    for project in everything.projects:
        patches = everything.of(project.name)
        table = columns(project, patches, versions[project.name])
        parts.append(f"## {project.distribution}\n")
        head = ["patch", *(label for label, _ in table)]
        rows = [[f"[{p.id}]({page_name(p)})", *(cells[i] for _, cells in table)] for i, p in enumerate(patches)]
        parts.append("\n".join(_row(r) for r in [head, ["---"] * len(head), *rows]) + "\n")
    return "\n".join(parts)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def page_name(patch: Patch) -> str:
    """Where a patch's page stands, below docs/."""
    return f"patches/{patch.project}-{patch.id}.md"


def patch_page(patch: Patch) -> str:
    """One patch: what goes wrong, on which versions, where it is repaired."""
    lines = [NOTE, f"# {patch.name}\n", f"**{patch.title}**\n"]
    if not patch.default:
        lines.append(f"Optional: `cpfix apply --with {patch.name}` applies it.\n")
    lines += ["## What goes wrong without it\n", patch.why + "\n", "## What you see\n", patch.symptom + "\n"]
    lines += ["## Where it is repaired\n", "| versions | file | function |", "| --- | --- | --- |"]
    places = dict.fromkeys(
        (str(e.versions), e.file, getattr(e, "scope", "") or getattr(e, "function", "") or getattr(e, "before", ""))
        for e in patch.edits
    )
    lines += [_row([f"`{versions}`", f"`{file}`", f"`{where}`" if where else "the module"]) for versions, file, where in places]
    lines.append("")
    if patch.requires:
        lines += ["## Requires\n", *(f"- `{name}`" for name in series.requirements(patch)), ""]
    if patch.references:
        lines += ["## References\n", *(f"- <{reference}>" for reference in patch.references), ""]
    lines += ["## Retire when\n", patch.retire_when, ""]
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """Every generated page by its path."""
    everything = series.load()
    versions: dict[str, list[str]] = {p.name: [] for p in everything.projects}
    for wheel in lock():
        # Megatron-Bridge before 0.3 has nothing but pre-releases on the package index
        if not Version(wheel.version).is_prerelease or wheel.project == "megatron-bridge":
            versions[wheel.project].append(wheel.version)
    found = {ROOT / "docs" / page_name(patch): patch_page(patch) for patch in everything.patches}
    return {ROOT / "docs" / "support-matrix.md": support_matrix(everything, versions), **found}


def main() -> int:
    """Write the pages, or say which ones are out of date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    wanted = pages()
    stale = [p for p, text in wanted.items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    stale += [p for p in (ROOT / "docs" / "patches").glob("*.md") if p not in wanted]
    for path in stale:
        sys.stdout.write(f"{'out of date' if check else 'written'}: {path.relative_to(ROOT)}\n")
        if not check and path in wanted:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
        elif not check:
            path.unlink()
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

"""Write the pages, and the parts of pages, that come from the patch series.

    python -m docs.generate [--check]

With --check nothing is written; exit code 1 says that a page is out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from docs import padding_cost
from fixtures.fetch import lock
from migrator import containers, plan, recipes, series
from migrator.model import Edit, Patch, Project

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
NOTE = "<!-- written by docs/generate.py from patches/: change it there -->\n"
TAGS = {"megatron-bridge": ("0.2.0", "0.2.1", "0.2.2")}  # releases that are on no package index
CELLS = {
    "needed": "the defect is there, and the patch repairs it",
    "fixed": "upstream's own fix is there",
    "optional": "the patch is applied by `--with` only",
    "-": "the patch has nothing to do with that release",
    "not known": "the series was never tried against that release",
}
PREPADS = {"megatron-bridge": ">=0.3"}  # upstream pads samples itself, to a multiple that the user sets
NAMES = {"nemo": "NeMo", "megatron-core": "Megatron-Core", "megatron-bridge": "Megatron-Bridge"}
CODE = re.compile(r"(?<![\w`'*.-])(?:[A-Za-z_]\w*\.)*[\w*]*_\w+(?:=[\w.]*\w)?(?:\(\))?")


def releases(project: str) -> list[str]:
    """The releases that the pages speak of, in order.

    Megatron-Bridge before 0.3 has nothing but pre-releases on the package index.
    """
    locked = [w.version for w in lock() if w.project == project]
    spoken = [v for v in locked if project == "megatron-bridge" or not Version(v).is_prerelease]
    return sorted({*spoken, *TAGS.get(project, ())}, key=Version)


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


def columns(project: Project, patches: Sequence[Patch]) -> list[tuple[str, list[str]]]:
    """Runs of releases on which every patch is the same, as (label, cells)."""
    rows = [(v, [cell(p, project, v) for p in patches]) for v in releases(project.name)]
    found = []
    for cells, run in groupby(rows, key=lambda row: row[1]):
        names = [v for v, _ in run]
        found.append((names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}", cells))
    return found


def support_matrix(everything: series.Series) -> str:
    """The page: a table a project, a row a patch, a column for each run of releases."""
    parts = [
        NOTE,
        "# Support matrix\n",
        "What each patch is on each release, as the series has it. cpfix itself decides by the code that it "
        "finds: see [how it decides](how-it-decides.md).\n",
        table(["cell", "means"], [[f"`{word}`", meaning] for word, meaning in CELLS.items()]),
    ]
    for project in everything.projects:
        patches = everything.of(project.name)
        shown = columns(project, patches)
        head = ["patch", *(label for label, _ in shown)]
        rows = [
            [f"[{p.id}]({page_name(p)})", *(cells[i] for _, cells in shown)] for i, p in enumerate(patches)
        ]
        parts += [f"## {NAMES[project.name]}\n", f"Distribution `{project.distribution}`.\n"]
        parts.append(table(head, rows))
        if tags := TAGS.get(project.name):
            parts.append(f"{', '.join(tags)} are git tags; they are on no package index.\n")
    return "\n".join(parts)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(r) + " |" for r in [head, ["---"] * len(head), *rows]) + "\n"


def page_name(patch: Patch) -> str:
    """Where a patch's page stands, below docs/."""
    return f"patches/{patch.project}-{patch.id}.md"


def prose(text: str) -> str:
    """Text from a TOML file, its identifiers set as code."""
    return CODE.sub(r"`\g<0>`", text.strip())


def spelled(versions: SpecifierSet) -> str:
    """A specifier with its lower bound first."""
    return ", ".join(str(s) for s in sorted(versions, key=lambda s: (Version(s.version), s.operator)))


def place(edit: Edit) -> str:
    """The function or class that an edit is about, "" for the module."""
    return getattr(edit, "scope", "") or getattr(edit, "function", "") or getattr(edit, "before", "")


def patch_page(patch: Patch, project: Project) -> str:
    """One patch: what goes wrong, on which versions, where it is repaired."""
    lines = [NOTE, f"# {patch.name}\n", f"> {prose(patch.title)}\n"]
    if not patch.default:
        lines.append(f"Optional: `cpfix apply --with {patch.name}` applies it.\n")
    lines += ["## What goes wrong without it\n", prose(patch.why) + "\n"]
    lines += ["## What you see\n", prose(patch.symptom) + "\n"]
    states = [f"| {label} | {cells[0]} |" for label, cells in columns(project, [patch])]
    lines += ["## Releases\n", "| release | state |", "| --- | --- |", *states, ""]
    lines += ["## Where it is repaired\n", *_places(patch), ""]
    if patch.requires:
        names = [name.replace("/", "-") for name in series.requirements(patch)]
        links = zip(series.requirements(patch), names, strict=True)
        lines += ["## Requires\n", *(f"- [{name}]({page}.md)" for name, page in links), ""]
    if patch.references:
        lines += ["## References\n", *(f"- <{reference}>" for reference in patch.references), ""]
    lines += ["## Retire when\n", _sentence(prose(patch.retire_when)), ""]
    return "\n".join(lines)


def _places(patch: Patch) -> list[str]:
    """An item for each file and range of versions."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for edit in patch.edits:
        where = f"`{name}`" if (name := place(edit)) else "the module"
        found.setdefault((edit.file, spelled(edit.versions)), {})[where] = None
    return [f"- `{file}` ({versions}): {', '.join(places)}" for (file, versions), places in found.items()]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


# --- containers


def held(project: str, leading: str) -> list[str]:
    """The releases of a project whose version starts so; its release candidates if there are no others."""
    count = leading.count(".") + 1
    found = [v for v in releases(project) if ".".join(map(str, Version(v).release[:count])) == leading]
    return [v for v in found if not Version(v).is_prerelease] or found


def container_page(everything: series.Series) -> str:
    """The page: for each container the versions that it holds, and what each patch is there."""
    parts = [
        NOTE,
        "# Containers\n",
        "Which patches `cpfix apply` applies in which container. The commands are the same in all of them: "
        "[Quickstart](quickstart.md).\n",
        "```console\n$ cpfix status\n$ cpfix apply\n```\n",
        "`cpfix status` says which container the versions that it finds fit. An image that was built since "
        "may hold other releases; `status` then says what is needed there.\n",
    ]
    for image in containers.load():
        rows = []
        for name, leading in image.versions.items():
            project = everything.project(name)
            known = held(name, leading)
            cells = {p: [cell(p, project, v) for v in known] for p in everything.of(name)}
            rows.append([NAMES[name], f"{leading}.x", *(_patches(cells, known, c) for c in list(CELLS)[:3])])
        parts.append(f"## nemo:{image.tag}\n")
        parts.append(table(["project", "version", "needed", "fixed upstream", "optional"], rows))
        parts.append(_on_data(image.versions))
    return "\n".join(parts)


def _on_data(versions: Mapping[str, str]) -> str:
    """Who sets the multiple that packs are padded to."""
    upstreams_own = [
        n for n, leading in versions.items() if SpecifierSet(PREPADS.get(n, "<0")).contains(leading)
    ]
    derived = [NAMES[n] for n in versions if n != "megatron-core" and n not in upstreams_own]
    said = [f"{' and '.join(derived)}: leave `pad_seq_to_mult` unset, it is derived."] if derived else []
    said += [f"{NAMES[n]}: set `pad_seq_to_mult` to a multiple of 2 * CP." for n in upstreams_own]
    return f"Data: {' '.join(said)} See [Data](data.md#how-to-get-it).\n"


def _patches(cells: Mapping[Patch, Sequence[str]], versions: Sequence[str], wanted: str) -> str:
    """The patches that are `wanted` on any of the versions; on which ones, where it is not all of them."""
    found = []
    for patch, states in cells.items():
        on = [v for v, state in zip(versions, states, strict=True) if state == wanted]
        only = "" if len(on) == len(versions) else f" ({', '.join(on)})"
        found += [f"[{patch.id}]({page_name(patch)}){only}"] if on else []
    return ", ".join(found) or "-"


def dockerfile() -> dict[str, str]:
    """What docker/Dockerfile does on top of the image."""
    steps = re.split(r"^FROM .*\n", recipes.recipe("dockerfile", "25.09"), flags=re.MULTILINE)[1]
    return {"dockerfile": f"\n```dockerfile\n{steps.strip()}\n```\n\n"}


# --- writing


def filled(text: str, name: str, body: str, mark: str = "<!-- {} -->") -> str:
    """`text` with `body` between the marks `name` and `/name`. Raises `ValueError` where they are missing."""
    start, end = mark.format(name), mark.format(f"/{name}")
    before, found, rest = text.partition(start + "\n")
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"no {start} ... {end}")
    indent = before[before.rfind("\n") + 1 :]
    return f"{before}{found}{body}{indent}{closed}{after}"


def pages() -> dict[Path, str]:
    """Every page that is generated, whole or in part, by its path."""
    everything = series.load()
    found = {
        DOCS / page_name(patch): patch_page(patch, everything.project(patch.project))
        for patch in everything.patches
    }
    found[DOCS / "support-matrix.md"] = support_matrix(everything)
    found[DOCS / "containers.md"] = container_page(everything)
    for page, parts in {"data.md": padding_cost.tables(), "images.md": dockerfile()}.items():
        text = (DOCS / page).read_text(encoding="utf-8")
        for name, body in parts.items():
            text = filled(text, name, body)
        found[DOCS / page] = text
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = "".join(
        f"      - {NAMES[project.name]}:\n"
        + "".join(f"          - {p.id}: {page_name(p)}\n" for p in everything.of(project.name))
        for project in everything.projects
    )
    found[ROOT / "mkdocs.yml"] = filled(settings, "patches", nav, "# <{}>")
    return found


def main() -> int:
    """Write the pages, or say which ones are out of date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    check = parser.parse_args().check
    wanted = pages()
    stale = [p for p, text in wanted.items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    stale += [p for p in (DOCS / "patches").glob("*.md") if p not in wanted]
    for path in stale:
        sys.stdout.write(f"{'out of date' if check else 'written'}: {path.relative_to(ROOT)}\n")
        if not check and path in wanted:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
        elif not check:
            path.unlink()
    if check and stale:
        sys.stdout.write("`python -m docs.generate` writes them.\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

"""The patch series in `patches/`, read into frozen dataclasses and checked."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from migrator import pattern
from migrator.match import keyword, parameter
from migrator.model import (
    Argument,
    Contribution,
    CpfixError,
    Edit,
    Hunk,
    Insert,
    OutdatedTests,
    Patch,
    Probe,
    Project,
    TestFile,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HERE = Path(__file__).resolve().parent
PATCHES = next((p for p in (_HERE / "patches", _HERE.parent / "patches") if p.is_dir()), _HERE / "patches")


class BadSeries(CpfixError):
    """A file in `patches/` is not what patches/README.md asks for."""


@dataclass(frozen=True)
class Series:
    """All projects and their patches, in the order in which they apply."""

    projects: tuple[Project, ...]
    patches: tuple[Patch, ...]

    def project(self, name: str) -> Project:
        """The project of that name. Raises `KeyError`."""
        return {p.name: p for p in self.projects}[name]

    def of(self, project: str) -> tuple[Patch, ...]:
        """The patches of one project, in order."""
        return tuple(p for p in self.patches if p.project == project)


@cache
def load(folder: Path = PATCHES) -> Series:
    """Read every project below `folder` and check each edit. Raises `BadSeries` naming the file."""
    series = _read_all(folder)
    for patch in series.patches:
        _check_edits(patch, folder / patch.project / f"{patch.id}.toml")
    return series


@cache
def shipped() -> Series:
    """The series that came with this cpfix, whose edits were checked when it was made. Raises `BadSeries`."""
    return _read_all(PATCHES)


def _read_all(folder: Path) -> Series:
    files = sorted(folder.glob("*/project.toml"))
    if not files:
        raise BadSeries(f"no patch series in {folder}: this installation of cpfix is incomplete")
    projects = tuple(_project(file) for file in files)
    patches = tuple(
        _patch(file.parent / f"{id}.toml", project)
        for file, project in zip(files, projects, strict=True)
        for id in project.series
    )
    _check_requirements(patches)
    return Series(projects, patches)


def read_toml(file: Path) -> dict[str, Any]:
    """A TOML file. Raises `BadSeries` naming it."""
    return _read(file)[0]


def _read(file: Path) -> tuple[dict[str, Any], bytes]:
    try:
        raw = file.read_bytes()
        return tomllib.loads(raw.decode()), raw
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadSeries(f"{file}: {error}") from error


def _project(file: Path) -> Project:
    data = read_toml(file)
    take = _taker(data, file)
    project = Project(
        name=take("name"),
        distribution=take("distribution"),
        package=take("package"),
        version_file=take("version-file"),
        upstream=take("upstream"),
        known=_specifier(take("known"), file),
        series=tuple(take("series")),
        contribution=_contribution(take("contribution", {}), file),
    )
    _nothing_left(data, file)
    return project


def _contribution(table: dict[str, Any], file: Path) -> Contribution:
    take = _taker(table, file)
    contribution = Contribution(take("line-length", 0), tuple(take("rules", ())))
    _nothing_left(table, file)
    return contribution


def _patch(file: Path, project: Project) -> Patch:
    data, raw = _read(file)
    digest = hashlib.sha256(raw)
    edits: list[Edit] = []
    for kind, read in _EDITS.items():
        for table in data.pop(kind, []):
            edit = read(table, file, digest.update)
            width = project.contribution.line_length
            edits.append(replace(edit, width=width) if isinstance(edit, Argument) else edit)
            _nothing_left(table, file)
    probes = tuple(_probe(table, file) for table in data.pop("probe", []))
    tests = tuple(_test(table, file) for table in data.pop("test", []))
    outdated = tuple(_outdated(table, file) for table in data.pop("outdated", []))
    take = _taker(data, file)
    patch = Patch(
        project=project.name,
        id=file.stem,
        title=take("title"),
        why=take("why").strip(),
        symptom=take("symptom").strip(),
        references=tuple(take("references")),
        retire_when=take("retire-when").strip(),
        edits=tuple(edits),
        probes=probes,
        requires=tuple(take("requires", ())),
        default=take("default", True),
        fingerprint=digest.hexdigest(),
        tests=tests,
        outdated=outdated,
    )
    _nothing_left(data, file)
    if not edits:
        raise BadSeries(f"{file}: a patch without an edit")
    variants = {"", *(edit.variant for edit in edits)}
    if strange := [test for test in tests if test.variant not in variants]:
        raise BadSeries(f"{file}: {strange[0].source} tests {strange[0].variant!r}, a variant of no edit")
    return patch


Update = Callable[[bytes], None]


def _hunk(table: dict[str, Any], file: Path, _: Update) -> Hunk:
    take = _taker(table, file)
    versions, target, scope = _specifier(take("versions"), file), take("file"), take("scope")
    return Hunk(versions, target, scope, take("edit"), take("variant", ""))


def _insert(table: dict[str, Any], file: Path, update: Update) -> Insert:
    take = _taker(table, file)
    versions, target, before = _specifier(take("versions"), file), take("file"), take("before")
    source, names, variant = take("source"), tuple(take("names")), take("variant", "")
    texts = _definitions(file.parent / source)
    for name in names:
        if name not in texts:
            raise BadSeries(f"{file}: {source} defines no `{name}`")
        update(texts[name].encode())
    return Insert(versions, target, before, source, names, tuple(texts[name] for name in names), variant)


def _argument(table: dict[str, Any], file: Path, _: Update) -> Argument:
    take = _taker(table, file)
    return Argument(
        _specifier(take("versions"), file),
        take("file"),
        take("function"),
        take("add"),
        take("call", ""),
        take("calls", 1),
        take("variant", ""),
    )


_EDITS: Mapping[str, Callable[[dict[str, Any], Path, Update], Edit]] = {
    "hunk": _hunk,
    "insert": _insert,
    "argument": _argument,
}


def _probe(table: dict[str, Any], file: Path) -> Probe:
    take = _taker(table, file)
    probe = Probe(
        _specifier(take("versions"), file),
        take("file"),
        take("scope"),
        take("present", ""),
        take("calls", ""),
        take("passes", ""),
        take("defines", ""),
    )
    _nothing_left(table, file)
    if not (probe.present or probe.calls or probe.passes or probe.defines):
        raise BadSeries(f"{file}: a probe that asks for nothing")
    return probe


def _test(table: dict[str, Any], file: Path) -> TestFile:
    take = _taker(table, file)
    versions, source, path = _specifier(take("versions"), file), take("source"), take("path")
    variant = take("variant", "")
    _nothing_left(table, file)
    try:
        return TestFile(versions, source, path, (file.parent / source).read_text(encoding="utf-8"), variant)
    except (OSError, UnicodeDecodeError) as error:
        raise BadSeries(f"{file}: {source}: {error}") from error


def _outdated(table: dict[str, Any], file: Path) -> OutdatedTests:
    take = _taker(table, file)
    found = OutdatedTests(_specifier(take("versions"), file), take("path"), tuple(take("names")))
    _nothing_left(table, file)
    return found


@cache
def _definitions(file: Path) -> dict[str, str]:
    """Source text of every top-level function, class and constant of a Python file."""
    try:
        source = file.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, SyntaxError) as error:
        raise BadSeries(f"{file}: {error}") from error
    rows = source.splitlines()
    found: dict[str, str] = {}
    for node in tree.body:
        name = getattr(node, "name", "")
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        if name:
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            while rows[first - 2].startswith("#") and first > 1:
                first -= 1
            found[name] = "\n".join(rows[first - 1 : node.end_lineno])
    return found


def _taker(table: dict[str, Any], file: Path) -> Callable[..., Any]:
    def take(key: str, *default: Any) -> Any:
        if key not in table and not default:
            raise BadSeries(f"{file}: `{key}` is missing")
        return table.pop(key, *default)

    return take


def _nothing_left(table: Mapping[str, Any], file: Path) -> None:
    if table:
        raise BadSeries(f"{file}: unknown key `{next(iter(table))}`")


def _specifier(text: str, file: Path) -> SpecifierSet:
    try:
        return SpecifierSet(text)
    except InvalidSpecifier as error:
        raise BadSeries(f"{file}: {error}") from error


def _check_edits(patch: Patch, file: Path) -> None:
    try:
        for edit in patch.edits:
            match edit:
                case Hunk():
                    pattern.read_change(edit.edit)
                case Argument(call=""):
                    parameter(edit.add)
                case Argument():
                    keyword(edit.add)
        for probe in patch.probes:
            if probe.present:
                pattern.read_context(probe.present)
    except (pattern.BadPattern, ValueError) as error:
        raise BadSeries(f"{file}: {error}") from error


def _check_requirements(patches: Sequence[Patch]) -> None:
    named = {patch.name: patch for patch in patches}
    for patch in patches:
        for name in requirements(patch):
            if name not in named:
                raise BadSeries(f"{patch.name} requires `{name}`, which is not in the series")
            if patch.default and not named[name].default:
                raise BadSeries(f"{patch.name} requires `{name}`, which is optional")


def requirements(patch: Patch) -> list[str]:
    """The patches that this one is wrong without, as `project/id`."""
    return [name if "/" in name else f"{patch.project}/{name}" for name in patch.requires]

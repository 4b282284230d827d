"""Which edits make up a patch on one version."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from migrator.files import Files, find_in
from migrator.match import Found
from migrator.model import Edit, Patch


def release(version: str) -> Version | None:
    """The release number that picks a patch's variant: 2.5.0rc0, 0.16.0rc0.dev1 and 0.15.0+0d8e071 lose their
    tails. None where there is no version."""
    try:
        return Version(Version(version).base_version)
    except InvalidVersion:
        return None


def edits_for(patch: Patch, version: str, files: Files | None = None) -> tuple[Edit, ...]:
    """The edits that make up a patch on one version; their order is that of the TOML file.

    Release candidates can differ in shape from the release whose number they bear. Where the edits in range
    have variants, `files` decide: the variant with the fewest edits that don't fit. Without `files`, all are
    meant.
    """
    number = release(version)
    edits = tuple(
        e for e in patch.edits if number is not None and e.versions.contains(number, prereleases=True)
    )
    variants = list(dict.fromkeys(e.variant for e in edits if e.variant))
    if not variants or files is None:
        return edits
    misfits = {
        v: sum(find_in(e, files).found is Found.NEITHER for e in edits if e.variant == v) for v in variants
    }
    best = min(variants, key=lambda v: misfits[v])
    return tuple(e for e in edits if e.variant in ("", best))


def spelled(ranges: Iterable[SpecifierSet]) -> str:
    """Version ranges in words, those that touch or overlap as one: ">=0.3,<0.7"."""
    spans: list[tuple[Version, Version]] = []
    others: list[str] = []
    for versions in ranges:
        found = {s.operator: Version(s.version) for s in versions}
        if len(versions) == 2 and found.keys() == {">=", "<"}:
            spans.append((found[">="], found["<"]))
        elif str(versions) not in others:
            others.append(str(versions))
    merged: list[tuple[Version, Version]] = []
    for low, high in sorted(spans):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return " or ".join([*(f">={low},<{high}" for low, high in merged), *others])

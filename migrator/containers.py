"""Which NeMo container a set of versions comes from, as patches/containers.toml knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from migrator.model import Install
from migrator.plan import release
from migrator.series import PATCHES, read_toml


@dataclass(frozen=True)
class Container:
    """One image: its tag, and the leading numbers of each project's version."""

    tag: str
    versions: Mapping[str, str]


def load() -> tuple[Container, ...]:
    """Every container, oldest first. Raises `BadSeries`."""
    tables = read_toml(PATCHES / "containers.toml")["container"]
    return tuple(Container(t["tag"], {k: v for k, v in t.items() if k != "tag"}) for t in tables)


def fitting(versions: Mapping[str, str], containers: Sequence[Container]) -> list[str]:
    """The tags of the containers that hold all of these projects in these versions."""
    return [
        c.tag
        for c in containers
        if versions and all(p in c.versions and _fits(v, c.versions[p]) for p, v in versions.items())
    ]


def _fits(version: str, leading: str) -> bool:
    number = release(version)
    return number is not None and ".".join(map(str, number.release[: leading.count(".") + 1])) == leading


def describe(installs: Sequence[Install]) -> str:
    """A sentence on the stack: its container, or that its parts don't belong together."""
    versions = {i.project: i.version for i in installs if i.imports and i.version}
    if not versions:
        return ""
    known = load()
    if tags := fitting(versions, known):
        return f"These versions fit the container nemo:{tags[0]}."
    stack = ", ".join(f"{p} {v}" for p, v in versions.items())
    if len(versions) == 1:
        return ""
    return f"No NeMo container holds this set of versions ({stack}): make sure that they belong together."

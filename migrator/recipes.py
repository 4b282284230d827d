"""Recipes that put cpfix into a container: the files of docker/, for the image with a given tag."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from migrator import containers
from migrator.containers import Container
from migrator.model import EnvironmentRefuses, Install, UsageError

_HERE = Path(__file__).resolve().parent
FOLDER = next((p for p in (_HERE / "docker", _HERE.parent / "docker") if p.is_dir()), _HERE / "docker")
WRITTEN_FOR = "25.09"  # the tag that the files name
PROJECTS = ("nemo", "megatron-core", "megatron-bridge")
RECIPES: Mapping[str, str] = {
    "dockerfile": "Dockerfile",
    "wheelhouse": "wheelhouse.sh",
    "entrypoint": "entrypoint.sh",
    "enroot": "enroot.sh",
    "pyxis": "pyxis.sbatch",
    "kubernetes": "kubernetes.yaml",
}


def recipe(name: str, tag: str) -> str:
    """The text of one recipe for `nvcr.io/nvidia/nemo:<tag>`. Raises `UsageError` for an unknown tag.

    Rows that end in a comment with the name of a project are left out where the image has no such project.
    """
    image = _image(tag, containers.load())
    absent = [f"# {project}" for project in PROJECTS if project not in image.versions]
    rows = (FOLDER / RECIPES[name]).read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [row for row in rows if not any(row.rstrip().endswith(comment) for comment in absent)]
    return "".join(kept).replace(WRITTEN_FOR, tag)


def tag_of(installs: Sequence[Install]) -> str:
    """The tag of the container that the installed versions fit. Raises `EnvironmentRefuses`."""
    versions = {i.project: i.version for i in installs if i.imports and i.version}
    known = containers.load()
    if tags := containers.fitting(versions, known):
        return tags[0]
    found = ", ".join(f"{p} {v}" for p, v in versions.items()) or "none of the projects"
    tags = [c.tag for c in known]
    raise EnvironmentRefuses(f"found {found}, which fits no known container: use --tag ({', '.join(tags)})")


def _image(tag: str, known: Sequence[Container]) -> Container:
    """25.09.01 is an image like 25.09."""
    for container in known:
        if re.fullmatch(rf"{re.escape(container.tag)}(\.[\w.-]+)?", tag, re.ASCII):
            return container
    tags = ", ".join(c.tag for c in known)
    raise UsageError(f"no container nemo:{tag} is known; there are {tags}, and later builds (25.09.01)")

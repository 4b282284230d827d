"""Which container a set of versions comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrator.containers import describe, fitting, load
from migrator.model import Install
from migrator.series import load as load_series


def install(project: str, version: str, imports: bool = True) -> Install:
    """A copy in site-packages."""
    return Install(project, project, version, Path("/"), "wheel", imports, True)


@pytest.mark.parametrize(
    ("versions", "tags"),
    [
        ({"nemo": "2.3.3", "megatron-core": "0.12.3"}, ["25.04"]),
        ({"nemo": "2.4.0", "megatron-core": "0.13.1"}, ["25.07"]),
        ({"nemo": "2.5.0", "megatron-core": "0.14.0", "megatron-bridge": "0.1.0rc3"}, ["25.09"]),
        ({"nemo": "2.6.1", "megatron-core": "0.15.0+0d8e071", "megatron-bridge": "0.2.0"}, ["25.11"]),
        ({"nemo": "2.7.0", "megatron-core": "0.16.1", "megatron-bridge": "0.3.1"}, ["26.02"]),
        ({"megatron-core": "0.17.0", "megatron-bridge": "0.4.2"}, ["26.04"]),
        ({"megatron-core": "0.18.2", "megatron-bridge": "0.5.1"}, ["26.06"]),
        ({"nemo": "2.5.0"}, ["25.09"]),
        ({"nemo": "2.50.0"}, []),
        ({"nemo": "2.5.0", "megatron-core": "0.15.0"}, []),
        ({"nemo": "2.3.0", "megatron-core": "0.12.0", "megatron-bridge": "0.1.0"}, []),
        ({"nemo": "unknown"}, []),
        ({"nemo": "3"}, []),
        ({}, []),
    ],
)
def test_fitting(versions: dict[str, str], tags: list[str]) -> None:
    assert fitting(versions, load()) == tags


def test_describe() -> None:
    stack = [
        install("nemo", "2.5.0"),
        install("megatron-core", "0.14.0"),
        install("nemo", "2.7.0", imports=False),
    ]
    assert describe(stack) == "These versions fit the container nemo:25.09."
    mixed = [install("nemo", "2.5.0"), install("megatron-core", "0.15.0")]
    assert describe(mixed) == (
        "No NeMo container holds this set of versions (nemo 2.5.0, megatron-core 0.15.0): "
        "make sure that they belong together."
    )
    assert describe([install("megatron-core", "0.19.0")]) == ""
    assert describe([install("nemo", "")]) == ""
    assert describe([]) == ""


def test_containers_name_projects_of_the_series_and_known_versions() -> None:
    projects = {p.name: p for p in load_series().projects}
    for container in load():
        for project, leading in container.versions.items():
            assert projects[project].known.contains(f"{leading}.0"), (container.tag, project)
    assert [c.tag for c in load()] == sorted(c.tag for c in load())

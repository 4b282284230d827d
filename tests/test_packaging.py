"""What is built and what a plain install brings: the patches, and neither torch nor numpy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import migrator
from tests.sandbox import make_sandbox

pytestmark = pytest.mark.xdist_group("packaging")  # one worker, so that it is built once

REPOSITORY = Path(migrator.__file__).parents[1]
RUNTIME = {"click", "gitpython", "libcst", "packaging", "rich", "tomli"}


def run(command: Sequence[str | Path], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run it as a user would, without this checkout on the path."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def tree(*folders: str) -> set[str]:
    """The posix paths of the files below these folders of the repository that belong into a package."""
    return {
        path.relative_to(REPOSITORY).as_posix()
        for folder in folders
        for path in (REPOSITORY / folder).rglob("*")
        if path.is_file() and not {"__pycache__", ".ruff_cache", ".mypy_cache"} & set(path.parts)
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel built from that sdist."""
    folder = tmp_path_factory.mktemp("dist")
    done = run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder], REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return message_from_bytes(archive.read(f"cpfix-{migrator.__version__}.dist-info/METADATA"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a virtual environment that the wheel, and what it asks for, is installed in."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    commands: list[list[str | Path]] = [
        [sys.executable, "-m", "venv", folder],
        [folder / "bin/python", "-m", "pip", "install", "--quiet", wheel],
    ]
    for command in commands:
        done = run(command, folder.parent)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "bin"


class TestWheel:
    def test_ships_the_whole_patch_series(self, names: set[str]) -> None:
        shipped = {name for name in names if name.startswith("migrator/patches/")}
        assert shipped == {f"migrator/{path}" for path in tree("patches")}
        for project in ("nemo", "megatron-core", "megatron-bridge"):
            assert f"migrator/patches/{project}/project.toml" in shipped
        assert any(re.fullmatch(r"migrator/patches/[^/]+/[^/]+\.py", name) for name in shipped)

    def test_ships_the_container_recipes(self, names: set[str]) -> None:
        shipped = {name for name in names if name.startswith("migrator/docker/")}
        assert shipped == {f"migrator/{path}" for path in tree("docker")}

    def test_ships_the_package_and_nothing_else(self, names: set[str]) -> None:
        data = (".dist-info/", "/patches/", "/docker/")
        other = {name for name in names if not any(folder in name for folder in data)}
        assert other == tree("migrator")
        assert "migrator/py.typed" in other

    def test_carries_the_licence(self, names: set[str], metadata: Message) -> None:
        assert f"cpfix-{migrator.__version__}.dist-info/licenses/LICENSE" in names
        assert metadata["License-Expression"] == "Apache-2.0"

    def test_a_plain_install_asks_for_these_alone(self, metadata: Message) -> None:
        needs = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
        plain = {need.name for need in needs if "extra" not in str(need.marker)}
        assert plain == RUNTIME
        assert {str(s.operator) for need in needs for s in need.specifier} == {">="}

    def test_torch_and_numpy_come_with_the_extras(self, metadata: Message) -> None:
        needs = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]

        def extra(name: str) -> set[str]:
            return {n.name for n in needs if n.marker and n.marker.evaluate({"extra": name})} - RUNTIME

        assert extra("verify") == {"torch", "numpy"}
        assert extra("data") == {"numpy"}


class TestSdist:
    def test_has_everything_that_the_tests_need(self, built: Path) -> None:
        (path,) = built.glob("*.tar.gz")
        with tarfile.open(path) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        assert (
            tree("migrator", "patches", "docker", "tests", "fixtures", "requirements", "scripts", ".ci")
            <= names
        )
        assert {"Makefile", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"} <= names
        assert not {name for name in names if name.startswith((".git/", ".venv", "dist/"))}


class TestInstalled:
    @pytest.mark.parametrize("command", [["cpfix"], ["python", "-m", "migrator"]])
    def test_runs(self, environment: Path, tmp_path: Path, command: list[str]) -> None:
        done = run([environment / command[0], *command[1:], "--version"], tmp_path)
        assert done.returncode == 0, done.stderr
        assert migrator.__version__ in done.stdout

    def test_brings_neither_torch_nor_numpy(self, environment: Path, tmp_path: Path) -> None:
        done = run([environment / "python", "-m", "pip", "list", "--format=json"], tmp_path)
        installed = {entry["name"].lower() for entry in json.loads(done.stdout)}
        assert "cpfix" in installed
        assert not installed & {"torch", "numpy"}

    @pytest.mark.upstream
    def test_finds_its_patches(self, environment: Path, tmp_path: Path) -> None:
        root = make_sandbox(tmp_path, {"nemo": "2.5.3", "megatron-core": "0.14.0"})
        done = run([environment / "cpfix", "status", "--json", "--root", root], tmp_path)
        assert done.returncode == 0, done.stderr
        status = json.loads(done.stdout)
        assert {i["project"]: i["version"] for i in status["installs"]} == {
            "nemo": "2.5.3",
            "megatron-core": "0.14.0",
        }
        needed = {patch["id"] for patch in status["patches"] if patch["state"] == "needed"}
        assert needed >= {"prepad", "skip-packed", "thd-split", "padded-params"}

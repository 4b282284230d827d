"""Small fake installs of the three projects, and what a real Python says of them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from packaging.specifiers import SpecifierSet

from migrator.installs import find_installs, search_path_of
from migrator.model import Install, Project

NEMO = Project("nemo", "nemo_toolkit", "nemo", "nemo/package_info.py", "", SpecifierSet())
CORE = Project(
    "megatron-core", "megatron-core", "megatron.core", "megatron/core/package_info.py", "", SpecifierSet()
)
BRIDGE = Project(
    "megatron-bridge",
    "megatron-bridge",
    "megatron.bridge",
    "megatron/bridge/package_info.py",
    "",
    SpecifierSet(),
)
PROJECTS = (NEMO, CORE, BRIDGE)

_TRUTH = """
import importlib.util, json
def locations(name):
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return list(spec.submodule_search_locations or []) if spec else None
print(json.dumps({name: locations(name) for name in ("nemo", "megatron.core", "megatron.bridge")}))
"""


def put(root: Path, project: Project, version: str = "1.2.3") -> Path:
    """A package with a version file below the import root `root`; returns the package folder."""
    folder = root.joinpath(*project.package.split("."))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").touch()
    major, minor, patch = version.split(".", 2)
    digits = len(patch) - len(patch.lstrip("0123456789"))
    (root / project.version_file).write_text(
        f"MAJOR = {major}\nMINOR = {minor}\nPATCH = {patch[:digits]}\nPRE_RELEASE = {patch[digits:]!r}\n"
        "__version__ = '.'.join(map(str, (MAJOR, MINOR, PATCH))) + PRE_RELEASE\n"
    )
    return folder


def put_wheel(site: Path, project: Project, version: str = "1.2.3", claims: str = "") -> Path:
    """The same with the dist-info that an installer leaves; `claims` is a version of its own for that."""
    folder = put(site, project, version)
    info = site / f"{project.distribution.replace('-', '_')}-{claims or version}.dist-info"
    info.mkdir()
    package = project.package.replace(".", "/")
    (info / "RECORD").write_text(f"{package}/__init__.py,,\n{project.version_file},,\n{info.name}/RECORD,,\n")
    return folder


def put_project(folder: Path, project: Project, version: str, src: bool = False) -> Path:
    """A checkout that setuptools can install; returns its import root."""
    root = folder / "src" if src else folder
    put(root, project, version)
    find = 'where = ["src"]' if src else f'include = ["{project.package}", "{project.package}.*"]'
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        f'[project]\nname = "{project.distribution}"\nversion = "{version}"\n'
        f"[tool.setuptools.packages.find]\n{find}\n"
    )
    return root


def make_venv(folder: Path) -> tuple[Path, Path]:
    """A virtual environment without pip: its interpreter and its site-packages folder."""
    venv.EnvBuilder(symlinks=True).create(folder)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return folder / "bin/python", folder / "lib" / version / "site-packages"


def install_editable(python: Path, *projects: Path, mode: str = "") -> None:
    """`pip install -e` by the pip and the setuptools of the tests."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index"]
    command += ["--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    if mode:
        command += ["--config-settings", f"editable_mode={mode}"]
    for project in projects:
        command += ["--editable", str(project)]
    setuptools = importlib.util.find_spec("setuptools")
    assert setuptools is not None
    assert setuptools.origin is not None
    environment = os.environ | {"PYTHONPATH": str(Path(setuptools.origin).parents[1])}
    subprocess.run(command, env=environment, check=True, timeout=120)


def truth(python: Path, cwd: Path) -> dict[str, list[str] | None]:
    """The `__path__` that a real interpreter finds for each package, as a console script would."""
    code = f"import sys\nif sys.path[0] == '': del sys.path[0]\n{_TRUTH}"
    run = subprocess.run(
        [str(python), "-c", code], cwd=cwd, capture_output=True, text=True, check=True, timeout=60
    )
    found: dict[str, list[str] | None] = json.loads(run.stdout)
    return found


def agreed(python: Path, cwd: Path, projects: Sequence[Project] = PROJECTS) -> dict[str, list[Install]]:
    """The installs of each project, after checking that `imports` is what the interpreter says."""
    says = truth(python, cwd)
    installs = find_installs(projects, search_path=search_path_of(str(python)))
    for project in projects:
        locations = says[project.package]
        real = [Path(place).resolve() for place in locations or [] if Path(place).exists()]
        ours = [
            i.root.joinpath(*project.package.split(".")).resolve()
            for i in installs
            if i.project == project.name and i.imports
        ]
        assert ours == real, f"{project.name}: Python finds {real}, cpfix {ours}"
    return {project.name: [i for i in installs if i.project == project.name] for project in projects}

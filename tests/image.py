"""A folder in the shape of NVIDIA's image, and the build of a Dockerfile in it, without Docker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import distribution
from pathlib import Path

from tests.sandbox import make_sandbox

TORCH = "2.8.0a0+5228986c39.nv25.6"
STACK = {"nemo": "2.5.0", "megatron-core": "0.14.0", "megatron-bridge": "0.1.0rc3"}  # of 25.09
FOLDERS = {"nemo": "NeMo", "megatron-core": "megatron-lm", "megatron-bridge": "Megatron-Bridge/src"}
PLACES = {"nemo": "nemo", "megatron-core": "megatron/core", "megatron-bridge": "megatron/bridge"}
# what cpfix runs on, and pip: part of the image, in a layer that no later step writes into
LAYER = (
    *("click", "gitpython", "gitdb", "smmap", "libcst", "pyyaml", "packaging", "rich", "markdown-it-py"),
    *("mdurl", "pygments", "pip", *(["tomli"] if sys.version_info < (3, 11) else [])),
)


@dataclass(frozen=True)
class Image:
    """Where things lie."""

    root: Path
    environment: Mapping[str, str]

    @property
    def opt(self) -> Path:
        """The projects, installed as editable ones, and the environment."""
        return self.root / "opt"

    @property
    def layer(self) -> Path:
        """The site-packages folder below the environment."""
        return self.root / "usr/local/dist-packages"

    @property
    def site(self) -> Path:
        """The environment's own site-packages folder."""
        return next((self.opt / "venv/lib").glob("python3*")) / "site-packages"

    def run(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container that this would be."""
        return subprocess.run(
            list(map(str, command)),
            cwd=self.root / "workspace",
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def packages(self) -> dict[str, str]:
        """Every installed package and its version, as pip sees them."""
        done = self.run("python", "-m", "pip", "list", "--format=freeze")
        assert done.returncode == 0, done.stderr
        return dict(row.split("==") for row in done.stdout.split())


def make_image(root: Path) -> Image:
    """The image 25.09 as far as cpfix is concerned, with a constraints file and a read-only layer."""
    opt = root / "opt"
    for project, version in STACK.items():
        site = make_sandbox(root / "unpacked", {project: version})
        (opt / FOLDERS[project]).parent.mkdir(parents=True, exist_ok=True)
        for info in site.glob("*.dist-info"):
            shutil.rmtree(info)
        site.rename(opt / FOLDERS[project])
    shutil.rmtree(root / "unpacked")
    venv.EnvBuilder(symlinks=True).create(opt / "venv")
    (root / "workspace").mkdir()
    (root / "etc").mkdir()
    constraints = root / "etc/constraint.txt"
    constraints.write_text(f"torch=={TORCH}\nclick=={distribution('click').version}\n")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON", "CPFIX_", "GIT_"))}
    own = {
        "PATH": f"{opt / 'venv/bin'}{os.pathsep}{kept['PATH']}",
        "HOME": str(root / "workspace"),
        "PIP_CONSTRAINT": str(constraints),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INDEX": "1",
    }
    image = Image(root, kept | own)
    image.layer.mkdir(parents=True)
    (image.site / "layer.pth").write_text(f"{image.layer}\n")
    for project, folder in FOLDERS.items():
        name = project.replace("nemo", "nemo_toolkit").replace("-", "_")
        (image.site / f"__editable__.{name}.pth").write_text(f"{opt / folder}\n")
        put_metadata(image.site, name, STACK[project])
    put_metadata(image.layer, "torch", TORCH)
    for name in LAYER:
        link(name, image.layer)
    image.layer.chmod(0o555)
    return image


def put_metadata(site: Path, name: str, version: str) -> Path:
    """A distribution that is nothing but its metadata."""
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{info.name}/METADATA,,\n{info.name}/RECORD,,\n")
    (info / "INSTALLER").write_text("pip\n")
    return info


def link(name: str, site: Path) -> None:
    """Have a distribution of the running interpreter in `site` as well."""
    installed = distribution(name)
    for top in {
        file.parts[0] for file in installed.files or () if file.parts[0] not in ("..", "__pycache__")
    }:
        (site / top).symlink_to(Path(str(installed.locate_file(top))).resolve())


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile in order: the keyword, and the rest with its line breaks joined."""
    rows = [row for row in dockerfile.splitlines() if row.strip() and not row.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", "", "\n".join(rows))
    pairs = (row.partition(" ") for row in joined.splitlines())
    return [(keyword, rest.strip()) for keyword, _, rest in pairs]


def build(
    image: Image, dockerfile: str, context: Path, arguments: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """What `docker build` does after FROM: the first RUN that fails ends it, with its exit code."""
    environment = dict(image.environment)
    steps = instructions(dockerfile)
    first = [keyword for keyword, _ in steps].index("FROM") + 1
    done = subprocess.CompletedProcess([], 0, "", "")
    for keyword, rest in steps[first:]:
        if keyword == "ARG":
            name, _, default = rest.partition("=")
            environment[name] = arguments.get(name, default.strip('"'))
        elif keyword == "COPY":
            source, target = rest.split()
            folder = Path(target.replace("${WHEELS}", environment["WHEELS"]))
            folder.mkdir(parents=True, exist_ok=True)
            for file in context.glob(source):
                shutil.copy(file, folder)
        elif keyword == "RUN":
            inside = replace(image, environment=environment)
            done = inside.run("/bin/sh", "-c", rest)
            if done.returncode:
                return done
        else:
            raise AssertionError(f"{keyword} is not known to this build")
    return done


def build_wheel(folder: Path) -> Path:
    """cpfix's wheel, of the checkout that the tests belong to."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run(command, cwd=Path(__file__).parents[1], check=True, capture_output=True)
    (wheel,) = folder.glob("cpfix-*.whl")
    return wheel


def put_shims(folder: Path, log: Path, commands: Sequence[str], failing: int) -> None:
    """Programs in front of the real ones that note each call in `log`; call `failing` (from 1) fails."""
    folder.mkdir()
    for name in commands:
        shim = folder / name
        shim.write_text(
            f'#!/bin/sh\necho "{name} $*" >> "{log}"\n'
            f'[ "$(wc -l < "{log}")" -ne {failing} ] || exit 7\n'
            f'PATH="${{PATH#"{folder}":}}" exec {name} "$@"\n'
        )
        shim.chmod(0o755)

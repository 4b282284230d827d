"""Real stacks to verify: their interpreters, trees and what cpfix makes of them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from fixtures import fetch
from migrator.verify.check import Report
from migrator.verify.run import verify

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class RealStack:
    """Releases that belong together, and the file that pins what they import."""

    name: str
    versions: Mapping[str, str]  # by project, as fixtures/upstream.lock has them
    requirements: str

    def __str__(self) -> str:
        return self.name


NEMO_25 = RealStack("25.09", {"nemo": "2.5.3", "megatron-core": "0.14.0"}, "stack-nemo25.txt")
NEMO_23 = RealStack("25.04", {"nemo": "2.3.3", "megatron-core": "0.12.3"}, "stack-nemo23.txt")
BRIDGE_03 = RealStack("26.02", {"megatron-bridge": "0.3.1", "megatron-core": "0.16.1"}, "stack-bridge03.txt")
STACKS = (NEMO_25, NEMO_23, BRIDGE_03)
WHOLE = RealStack(  # NeMo and Megatron-Bridge in one place, as the containers have them
    "25.09 whole",
    {"nemo": "2.5.3", "megatron-core": "0.14.0", "megatron-bridge": "0.1.0rc4"},
    "stack-bridge03.txt",
)
MORE = (
    RealStack("25.07", {"nemo": "2.4.1", "megatron-core": "0.13.1"}, "stack-nemo25.txt"),
    WHOLE,
    RealStack(
        "25.11 whole",
        {"nemo": "2.6.2", "megatron-core": "0.15.3", "megatron-bridge": "0.2.0rc6"},
        "stack-bridge03.txt",
    ),
    RealStack(
        "26.02 whole",
        {"nemo": "2.7.3", "megatron-core": "0.16.1", "megatron-bridge": "0.3.1"},
        "stack-bridge03.txt",
    ),
)

# These need Python 3.12 and a torch for it, gigabytes to download on most machines: they are run where this
# variable names a Python that has what the file pins.
PY312 = "CPFIX_STACK_PY312"
ON_PY312 = "stack-bridge05.txt"
BRIDGE_05 = RealStack("26.06", {"megatron-bridge": "0.5.1", "megatron-core": "0.18.2"}, ON_PY312)
BRIDGE_06 = RealStack("Bridge 0.6", {"megatron-bridge": "0.6.2", "megatron-core": "0.19.2"}, ON_PY312)
NEEDS_PY312 = (
    RealStack("26.04", {"megatron-bridge": "0.4.2", "megatron-core": "0.17.1"}, ON_PY312),
    RealStack("26.06 first", {"megatron-bridge": "0.5.0", "megatron-core": "0.18.0"}, ON_PY312),
    BRIDGE_05,
    BRIDGE_06,
)


def at_hand(*stacks: RealStack) -> tuple[RealStack, ...]:
    """Those of `stacks` that can be run here."""
    return tuple(stack for stack in stacks if stack.requirements != ON_PY312 or os.environ.get(PY312))


def _pinned(name: str) -> str:
    """A requirements file with the files that it includes."""
    text = (REPOSITORY / "requirements" / name).read_text()
    included = [line.split()[1] for line in text.splitlines() if line.startswith("-r ")]
    return "".join(_pinned(other) for other in included) + "".join(
        f"{line}\n" for line in text.splitlines() if line and not line.startswith(("#", "-r "))
    )


def interpreter(stack: RealStack) -> str:
    """The Python of a virtual environment with the stack's third-party packages; made once and kept.

    Stacks that pin the same share one; those that need Python 3.12 use the one that `PY312` names.
    """
    if stack.requirements == ON_PY312:
        return os.environ[PY312]
    pinned = _pinned(stack.requirements)
    digest = hashlib.sha256(f"{sys.version}{sys.prefix}{pinned}".encode()).hexdigest()[:16]
    folder = fetch.cache_dir().parent / f"stack-{digest}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python"
    with FileLock(f"{folder}.lock"):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True)
            (folder / "requirements.txt").write_text(pinned)
            command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*command, "-r", str(folder / "requirements.txt")], check=True, timeout=900)
            (folder / "complete").touch()
    return str(python)


def tree(stack: RealStack, folder: Path) -> list[Path]:
    """Copies of the stack's projects, one import root each, as they come from upstream."""
    roots = []
    for project, version in stack.versions.items():
        shutil.copytree(fetch.path(project, version), folder / project)
        roots.append(folder / project)
    return roots


def apply(roots: list[Path]) -> None:
    """`cpfix apply` on the import roots; AssertionError where it doesn't exit with 0."""
    command = [sys.executable, "-m", "migrator", "apply", "--verify", "none"]
    for root in roots:
        command += ["--root", str(root)]
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def verified(stack: RealStack, roots: list[Path], cps: tuple[int, ...], seed: int) -> Report:
    """`cpfix verify --level cpu`."""
    return verify(roots, "cpu", cps, interpreter(stack), 300, seed=seed)


def failures(report: Report) -> dict[str, str]:
    """Failed checks, "name at CP=n" to what they say."""
    return {f"{check.name} at CP={check.cp}": check.detail for check in report.failed}

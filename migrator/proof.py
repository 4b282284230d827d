"""What `cpfix verify` says of what `scene` finds: the states of the patches, and the checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from migrator import __version__
from migrator.model import EnvironmentRefuses
from migrator.page import render
from migrator.scene import Options, Scene, require_targets, selected
from migrator.verify.check import Report, counted
from migrator.verify.run import verify

PATCHES = "static: patches are applied"


@dataclass(frozen=True)
class Request:
    """How much is checked."""

    level: str = "auto"  # static, cpu, gpu or auto
    cps: tuple[int, ...] = (2, 4)  # context parallel sizes
    timeout: float = 600.0  # seconds, for each child process


def prove(scene: Scene, options: Options, request: Request) -> Report:
    """Verify what is installed. Raises `CpfixError`; what is wrong with the stack is a failed check."""
    require_targets(scene, options)
    files = [root / path for root, path in scene.journal.records]
    found = verify(scene.roots, request.level, request.cps, options.python, request.timeout, files=files)
    states = counted(PATCHES, None, _unsettled(scene, options))
    return replace(found, checks=(states, *found.checks))


def write_page(file: Path, found: Report, scene: Scene) -> None:
    """Write the report as one HTML page. Raises `EnvironmentRefuses`."""
    stack = [f"{i.project} {i.version} in {i.root}" for i in scene.targets]
    try:
        file.write_text(render(found, stack, __version__), encoding="utf-8")
    except OSError as error:
        raise EnvironmentRefuses(f"--report {file} cannot be written: {error.strerror}") from error


def _unsettled(scene: Scene, options: Options) -> Sequence[str]:
    """The patches that are neither applied nor superfluous."""
    return [
        f"{s.patch.name} on {s.install.version} is {s.state.value}: {s.reason}"
        for s in selected(scene, options)
        if s.state.is_work or s.state.is_error or s.in_doubt
    ]

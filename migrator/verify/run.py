"""Start the checks in the target's interpreter, with a time limit, and collect what they say. Imports nothing
heavy.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from migrator.model import UsageError
from migrator.verify.check import Check, Report, from_json

WORKER = Path(__file__).with_name("worker.py")
LEVELS = ("static", "cpu", "gpu")
# Launchers' variables would make libraries in the child wait for ranks that don't exist.
LAUNCHERS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
LAUNCHER_PREFIXES = ("SLURM_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_", "FLUX_")
TAIL_LINES = 3


@dataclass
class _Collected:
    """What a child has said so far."""

    checks: list[Check] = field(default_factory=list)
    stubs: list[str] = field(default_factory=list)
    levels: list[str] = field(default_factory=list)
    pictures: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)  # levels that need torch, which isn't there
    done: bool = False


def verify(
    roots: Sequence[Path],
    level: str = "auto",
    cps: Sequence[int] = (2, 4),
    python: str = "",
    timeout_s: float = 600.0,
    files: Sequence[Path] = (),
    seed: int | None = None,
) -> Report:
    """Check the stack that is installed below `roots`, in a child process of the interpreter `python`.

    roots: import roots, looked at in this order; those that `python` doesn't search go in front of its path.
    level: "static", "cpu", "gpu" (static and cpu with it) or "auto": as far as torch and GPUs allow. cps:
    context parallel sizes; 1 always belongs to them. python: "" is the running interpreter. timeout_s: for
    each child. files: absolute paths that were written, looked at by the static checks besides the known
    ones. seed: of the random data, fresh when None.

    Nothing raises because of the target: what can't be checked is a `Check` that says so. Raises UsageError
    for an unknown level or a context parallel size below 1.
    """
    if level not in (*LEVELS, "auto"):
        raise UsageError(f"unknown verification level {level!r}: static, cpu, gpu or auto")
    if any(cp < 1 for cp in cps):
        raise UsageError("context parallel sizes start at 1")
    wanted = LEVELS if level == "auto" else LEVELS[: LEVELS.index(level) + 1]
    request = {
        "roots": [str(root.resolve()) for root in roots],
        "files": [str(file.resolve()) for file in files],
        "cps": sorted(set(cps)),
        "seed": random.randrange(2**31) if seed is None else seed,
    }
    collected = _Collected()
    # The cpu level must not see GPUs, so the gpu level has a child of its own.
    for levels in (tuple(name for name in wanted if name != "gpu"), ("gpu",) if "gpu" in wanted else ()):
        if levels:
            known = len(collected.checks)
            _child(request | {"levels": levels}, python, timeout_s, collected)
            if level == "auto" and levels == ("gpu",):
                collected.checks[known:] = map(_unasked, collected.checks[known:])
            if all(check.status == "not run" for check in collected.checks[known:]):
                collected.levels = [level for level in collected.levels if level not in levels]
    for name in collected.missing:
        collected.checks.append(
            Check(f"{name} level", None, "not run", detail="torch is not installed there")
        )
    return Report(
        tuple(collected.checks),
        tuple(dict.fromkeys(collected.stubs)),
        tuple(collected.levels),
        collected.pictures,
        level != "auto",
    )


def _unasked(check: Check) -> Check:
    """A check of the gpu level, which nobody asked for by name: what was measured there can fail, what broke
    did not run. A library that doesn't load or ranks that hang say nothing of the stack, and would take
    good patches back.
    """
    if check.status == "failed" and check.measured is None:
        return replace(check, status="not run", detail=f"it broke: {check.detail}")
    return check


def environment(levels: Sequence[str], scratch: Path, base: Mapping[str, str]) -> dict[str, str]:
    """The child's environment: no launcher, no network, no caches in the user's home, one thread a rank."""
    kept = {
        key: value
        for key, value in base.items()
        if key not in LAUNCHERS and not key.startswith(LAUNCHER_PREFIXES) and key != "PYTHONHOME"
    }
    own = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONFAULTHANDLER": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "NEMO_HOME": str(scratch / "nemo"),
        "HF_HOME": str(scratch / "huggingface"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "MPLCONFIGDIR": str(scratch / "matplotlib"),
    }
    return kept | own | ({} if "gpu" in levels else {"CUDA_VISIBLE_DEVICES": ""})


def _child(request: Mapping[str, Any], python: str, timeout_s: float, collected: _Collected) -> None:
    """Run one child and add what it says; a child that doesn't finish adds a failed check."""
    with tempfile.TemporaryDirectory(prefix="cpfix-verify-") as name:
        scratch = Path(name)
        results, log = scratch / "results.jsonl", scratch / "log"
        results.touch()
        (scratch / "request.json").write_text(json.dumps({**request, "results": str(results)}))
        try:
            ended = _run(
                _command(python, scratch), environment(request["levels"], scratch, os.environ), log, timeout_s
            )
        except OSError as error:
            ended = f"{python} cannot be started: {error}"
        collected.done = False
        _collect(results, collected)
        if not collected.done:
            what = " and ".join(request["levels"])
            detail = f"{ended}{_tail(log)}"
            collected.checks.append(Check(f"{what}: verification finishes", None, "failed", detail=detail))


def _command(python: str, scratch: Path) -> list[str]:
    # the child has another working directory; a bare name is looked for on PATH
    found = os.path.abspath(python) if os.path.dirname(python) else python  # noqa: PTH100, PTH120  # no symlink is resolved
    return [found or sys.executable, "-B", str(WORKER), str(scratch / "request.json")]


def _run(command: Sequence[str], env: Mapping[str, str], log: Path, timeout_s: float) -> str:
    """Run in a session of its own, so that its ranks end with it. Returns how it ended."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd="/",
        )
        try:
            status = process.wait(timeout_s)
            ended = f"it ended with status {status}"
        except subprocess.TimeoutExpired:
            ended = f"it took longer than {timeout_s:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return ended


def _tail(log: Path) -> str:
    """The last lines that a child printed, " (...)" or ""."""
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return f" ({' | '.join(line.strip() for line in lines[-TAIL_LINES:])})" if lines else ""


def _records(results: Path) -> Iterator[dict[str, Any]]:
    for line in results.read_text().splitlines():
        with suppress(json.JSONDecodeError):  # the last line of a child that was killed
            yield json.loads(line)


def _collect(results: Path, collected: _Collected) -> None:
    for record in _records(results):
        if "check" in record:
            collected.checks.append(from_json(record["check"]))
        elif "stub" in record:
            collected.stubs.append(str(record["stub"]))
        elif "level" in record:
            collected.levels.append(str(record["level"]))
        elif "missing" in record:
            collected.missing.append(str(record["missing"]))
        elif "picture" in record:
            collected.pictures[str(record["picture"])] = record["data"]
        elif "done" in record:
            collected.done = True

"""The child: runs in the target's interpreter, imports the target's code, writes what it finds line by line.

Started as a file, `python worker.py request.json`, so that the target's interpreter need not have cpfix: the
two packages above are registered by hand and nothing else of cpfix's own environment gets on the path. The
ranks of the gpu level are this file again, `python worker.py --rank 3 FOLDER`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any


def _register() -> None:
    """Make `migrator.verify` importable, and this folder's modules not importable by their bare names."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    for name, folder in (("migrator", here.parent), ("migrator.verify", here)):
        if name not in sys.modules:
            module = ModuleType(name)
            module.__path__ = [str(folder)]
            sys.modules[name] = module


@dataclass(frozen=True)
class Request:
    """What the parent asks for."""

    roots: tuple[Path, ...]
    files: tuple[Path, ...]
    levels: tuple[str, ...]
    cps: tuple[int, ...]
    seed: int
    results: Path


def read_request(path: Path) -> Request:
    """The request that `run.py` wrote."""
    data = json.loads(path.read_text())
    return Request(
        tuple(map(Path, data["roots"])),
        tuple(map(Path, data["files"])),
        tuple(data["levels"]),
        tuple(data["cps"]),
        int(data["seed"]),
        Path(data["results"]),
    )


def put_on_path(roots: Sequence[Path]) -> None:
    """Roots that Python doesn't search yet go first; those that it does keep their rank, so that shadowing
    shows.
    """
    known = {Path(entry).resolve() for entry in sys.path if entry}
    sys.path[:0] = [str(root) for root in roots if root.resolve() not in known]


class Results:
    """The file that the parent reads: one JSON object a line, complete even if this process dies."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, **record: Any) -> None:
        """Append one record."""
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def run(self, name: str, checks: Callable[[], Iterable[Any]]) -> None:
        """Run a group of checks and write each as it comes; an exception is a failed check."""
        from migrator.verify.check import Check, to_json

        try:
            for check in checks():
                self.write(check=to_json(check))
        except Exception as error:  # whatever goes wrong, it is no evidence
            traceback.print_exc()
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            self.write(check=to_json(Check(name, None, "failed", detail=why)))


def _cpu(request: Request, results: Results) -> None:
    """The checks that need torch, in the order in which defects show."""
    from migrator.verify import cpu

    with tempfile.TemporaryDirectory(prefix="cpfix-verify-") as scratch:
        found = cpu.groups(
            Path(scratch),
            request.cps,
            request.seed,
            say=lambda stub: results.write(stub=stub),
            show=lambda picture, data: results.write(picture=picture, data=data),
        )
        for name, group in found:
            results.run(name, group)


def _gpu(request: Request, results: Results) -> None:
    from migrator.verify import accelerator, gpu

    results.run(
        "gpu",
        lambda: gpu.check_gpu(
            accelerator.cuda(), request.cps, request.seed, say=lambda stub: results.write(stub=stub)
        ),
    )


def be_rank(rank: int, folder: Path) -> None:
    """Do what `fresh.run_fresh` left in `folder`, as rank `rank`; ends the process."""
    sys.path[:] = json.loads((folder / "path.json").read_text())
    from migrator.verify import fresh

    fresh.serve_task(rank, folder)


def main(path: Path) -> None:
    """Serve one request."""
    from migrator.verify import static

    request = read_request(path)
    results = Results(request.results)
    put_on_path(request.roots)
    has_torch = find_spec("torch") is not None
    results.write(torch=has_torch)
    for level in request.levels:
        if level != "static" and not has_torch:
            results.write(missing=level)
            continue
        results.write(level=level)
        if level == "static":
            results.run("static", lambda: static.check_static(request.roots, request.files))
        else:
            (_cpu if level == "cpu" else _gpu)(request, results)
    results.write(done=True)


if __name__ == "__main__":
    _register()
    if sys.argv[1] == "--rank":
        be_rank(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(Path(sys.argv[1]))

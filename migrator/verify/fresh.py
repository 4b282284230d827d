"""Ranks that are started afresh: a process that has touched CUDA must not be forked."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import TypeVar

from migrator.verify.ranks import Work, collect, serve

T = TypeVar("T")

WORKER = Path(__file__).with_name("worker.py")


def run_fresh(world: int, work: Work[T], timeout_s: float) -> list[T]:
    """Run `work(rank)` on `world` new processes of this interpreter, in no group yet; results by rank.

    They search the modules where this process does, as it is now. `work` and the results are pickled, so
    `work` is a module's function, with arguments where need be (`functools.partial`). Errors, time limit and
    end are those of `run_ranks`: RankFailed is raised.
    """

    def start(rank: int, folder: Path) -> int:
        task = folder / "task"
        if not task.exists():
            (folder / "path.json").write_text(json.dumps(sys.path))
            task.write_bytes(pickle.dumps(work))
        command = [sys.executable, "-B", str(WORKER), "--rank", str(rank), str(folder)]
        nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        # no fork of this process, and no session of its own: whoever ends this process' group ends the rank
        return os.posix_spawn(sys.executable, command, os.environ, file_actions=[nothing])

    return collect(world, start, timeout_s)


def serve_task(rank: int, folder: Path) -> None:
    """Be rank `rank` of the task that lies in `folder`; ends the process."""

    def work(rank: int) -> object:
        return pickle.loads((folder / "task").read_bytes())(rank)  # reading it imports what it names

    serve(rank, work, folder)

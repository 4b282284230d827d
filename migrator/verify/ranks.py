"""Several ranks on one machine: forked after the imports, joined by a file store, never left hanging."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")
Work = Callable[[int], T]  # what a rank does, given its number

COLLECTIVE_TIMEOUT_S = 20.0
ATTEMPTS = 3
MISSED = "connectFullMesh"  # gloo where ranks of a busy machine could not connect: no word on what they ran
GRACE_S = 2.0  # for the peers of a rank that failed: their own errors may tell more


class RankFailed(Exception):
    """A rank raised, died or took too long; the message holds the first traceback."""


def join(backend: str, store: Path, rank: int, world: int, timeout_s: float) -> None:
    """Make this process rank `rank` of a group of `world`, which meets in the file `store`."""
    dist.init_process_group(
        backend,
        init_method=f"file://{store}",  # a TCP store fails now and then on a busy machine
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=timeout_s),
    )


def serve(rank: int, work: Work[T], folder: Path) -> None:
    """Body of a rank's process: leaves its result or its traceback in `folder` and ends the process."""
    code = 1
    try:
        (folder / f"{rank}.part").write_bytes(pickle.dumps(work(rank)))
        (folder / f"{rank}.part").rename(folder / f"{rank}.result")
        code = 0
    except BaseException:  # a forked rank that falls through would run the parent's code a second time
        (folder / f"{rank}.error").write_text(traceback.format_exc())
    finally:
        os._exit(code)  # nothing that hangs in a library's exit handler matters any more


def _in_group(work: Work[T], world: int, store: Path, rank: int) -> T:
    # The parent's thread pool did not come along, waiting for it would never end.
    torch.set_num_threads(1)
    join("gloo", store, rank, world, COLLECTIVE_TIMEOUT_S)
    return work(rank)


def _reap(pids: dict[int, int], rank: int) -> int | None:
    """Exit status of a rank that ended (negative: killed by that signal), None while it runs."""
    pid, status = os.waitpid(pids[rank], os.WNOHANG)
    return None if pid == 0 else os.waitstatus_to_exitcode(status)


def run_ranks(world: int, work: Work[T], timeout_s: float) -> list[T]:
    """Run `work(rank)` on `world` forked ranks in one gloo group and return their results, by rank.

    Results are pickled. Raises RankFailed when one of them raises or dies, or when `timeout_s` is over; all
    of them are gone when this returns. Where they could not connect to each other they are all run anew.
    """
    for left in reversed(range(ATTEMPTS)):
        with tempfile.TemporaryDirectory(prefix="cpfix-store-") as name:
            try:
                return run_forked(world, partial(_in_group, work, world, Path(name) / "store"), timeout_s)
            except RankFailed as error:
                if MISSED not in str(error) or not left:
                    raise
    raise AssertionError("the last attempt returns or raises")


def run_forked(world: int, work: Work[T], timeout_s: float) -> list[T]:
    """As `run_ranks`, but the ranks are in no group yet."""

    def start(rank: int, folder: Path) -> int:
        pid = os.fork()
        if pid == 0:
            serve(rank, work, folder)
        return pid

    return collect(world, start, timeout_s)


def collect(world: int, start: Callable[[int, Path], int], timeout_s: float) -> list[Any]:
    """Start `world` ranks, wait for them all and return their results, by rank.

    start: makes a child process that calls `serve` for the given rank and folder; returns its process id.
    Raises as `run_ranks`.
    """
    with tempfile.TemporaryDirectory(prefix="cpfix-ranks-") as name:
        folder = Path(name)
        pids = {rank: start(rank, folder) for rank in range(world)}
        first_failure = _wait(pids, time.monotonic() + timeout_s)
        if first_failure is not None:
            raise RankFailed(_reason(first_failure, world, folder, timeout_s))
        return [pickle.loads((folder / f"{rank}.result").read_bytes()) for rank in range(world)]


def _wait(pids: dict[int, int], deadline: float) -> tuple[int, int | None] | None:
    """Wait for all ranks. Returns (rank, status) of the first that failed, (-1, None) past the deadline."""
    running, failure = dict(pids), None
    try:
        while running:
            for rank in list(running):
                status = _reap(running, rank)
                if status is None:
                    continue
                del running[rank]
                if status != 0 and failure is None:
                    failure = (rank, status)
                    deadline = min(deadline, time.monotonic() + GRACE_S)
            if running and time.monotonic() > deadline:
                return failure or (-1, None)
            time.sleep(0.002)
    finally:
        for pid in running.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return failure


def _reason(failure: tuple[int, int | None], world: int, folder: Path, timeout_s: float) -> str:
    rank, status = failure
    if status is None:
        return f"{world} ranks took longer than {timeout_s:.0f} s"
    written = folder / f"{rank}.error"
    if written.exists():
        return f"rank {rank} of {world}: {written.read_text().strip()}"
    return f"rank {rank} of {world} died with status {status}"


def last_line(error: BaseException) -> str:
    """The line of a failure that names it: the last one of a rank's traceback."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[-1] if isinstance(error, RankFailed) else f"{type(error).__name__}: {text}"

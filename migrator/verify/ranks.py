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
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")

COLLECTIVE_TIMEOUT_S = 20.0
GRACE_S = 2.0  # for the peers of a rank that failed: their own errors may tell more


class RankFailed(Exception):
    """A rank raised, died or took too long; the message holds the first traceback."""


def _rank(rank: int, world: int, work: Callable[[int], T], folder: Path) -> None:
    """Body of a forked rank; never returns to the parent's code."""
    code = 1
    try:
        torch.set_num_threads(
            1
        )  # the parent's thread pool did not come along, waiting for it would never end
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder / 'store'}",  # a TCP store fails now and then on a busy machine
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S),
        )
        (folder / f"{rank}.part").write_bytes(pickle.dumps(work(rank)))
        (folder / f"{rank}.part").rename(folder / f"{rank}.result")
        code = 0
    except BaseException:  # a rank that falls through would run the parent's code a second time
        (folder / f"{rank}.error").write_text(traceback.format_exc())
    finally:
        os._exit(code)


def _reap(pids: dict[int, int], rank: int) -> int | None:
    """Exit status of a rank that ended (negative: killed by that signal), None while it runs."""
    pid, status = os.waitpid(pids[rank], os.WNOHANG)
    return None if pid == 0 else os.waitstatus_to_exitcode(status)


def run_ranks(world: int, work: Callable[[int], T], timeout_s: float) -> list[T]:
    """Run `work(rank)` on `world` forked ranks in one gloo group and return their results, by rank.

    Results are pickled. Raises RankFailed when one of them raises or dies, or when `timeout_s` is over; all
    of them are gone when this returns.
    """
    with tempfile.TemporaryDirectory(prefix="cpfix-ranks-") as name:
        folder = Path(name)
        pids: dict[int, int] = {}
        for rank in range(world):
            pid = os.fork()
            if pid == 0:
                _rank(rank, world, work, folder)
            pids[rank] = pid
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

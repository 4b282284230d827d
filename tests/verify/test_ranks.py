"""Ranks end together, whatever one of them does."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from migrator.verify.ranks import GRACE_S, RankFailed, last_line, run_ranks

pytestmark = pytest.mark.torch


def total(rank: int) -> tuple[int, float]:
    value = torch.tensor(float(rank))
    dist.all_reduce(value)
    return rank, float(value)


def test_results_come_by_rank_and_ranks_talk() -> None:
    assert run_ranks(3, total, 60) == [(0, 3.0), (1, 3.0), (2, 3.0)]


def multiplies(_: int) -> float:
    return float((torch.ones(600, 600) @ torch.ones(600, 600)).sum())


def test_a_parent_with_a_thread_pool_may_fork() -> None:
    torch.set_num_threads(2)
    assert run_ranks(2, multiplies, 60) == [multiplies(0)] * 2


def one_raises(rank: int) -> None:
    if rank == 1:
        raise ValueError("the pack is bad")
    dist.all_reduce(torch.zeros(1))


def test_one_that_raises_takes_its_waiting_peers_along() -> None:
    start = time.monotonic()
    with pytest.raises(RankFailed, match=r"rank 1 of 2(.|\n)*the pack is bad") as failure:
        run_ranks(2, one_raises, 60)
    assert last_line(failure.value) == "ValueError: the pack is bad"
    assert time.monotonic() - start < GRACE_S + 15


def one_dies(rank: int) -> None:
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def test_one_that_dies_takes_its_sleeping_peers_along() -> None:
    with pytest.raises(RankFailed, match="rank 0 of 2 died with status -9"):
        run_ranks(2, one_dies, 60)


def sleeps(_: int) -> None:
    time.sleep(600)


def test_a_time_limit_ends_all_and_leaves_no_child() -> None:
    with pytest.raises(RankFailed, match="2 ranks took longer than 1 s"):
        run_ranks(2, sleeps, 1)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def exits(_: int) -> None:
    raise SystemExit(0)


def test_leaving_early_is_a_failure_too() -> None:
    with pytest.raises(RankFailed, match="SystemExit"):
        run_ranks(1, exits, 60)


def misses(folder: Path, times: int, rank: int) -> int:
    """Fails on rank 1 as gloo does, the first `times` times."""
    if rank == 1:
        before = len(list(folder.iterdir()))
        (folder / str(before)).touch()
        if before < times:
            raise RuntimeError("Gloo connectFullMesh failed with Connection closed by peer")
    return rank


def test_ranks_that_could_not_connect_are_run_anew(tmp_path: Path) -> None:
    assert run_ranks(2, partial(misses, tmp_path, 2), 60) == [0, 1]
    assert len(list(tmp_path.iterdir())) == 3


def test_ranks_that_never_connect_fail(tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match="connectFullMesh"):
        run_ranks(2, partial(misses, tmp_path, 9), 60)
    assert len(list(tmp_path.iterdir())) == 3


def test_ranks_that_fail_otherwise_are_not_run_again(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        (tmp_path / f"{rank}-{os.getpid()}").touch()
        raise ValueError("the pack is bad")

    with pytest.raises(RankFailed, match="the pack is bad"):
        run_ranks(2, work, 60)
    assert len(list(tmp_path.iterdir())) == 2

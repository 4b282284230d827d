"""New processes as ranks: they find what this one finds, and end together, whatever one of them does."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from migrator.verify.fresh import run_fresh
from migrator.verify.ranks import GRACE_S, RankFailed, join, last_line

pytestmark = pytest.mark.torch


def total(store: Path, world: int, rank: int) -> tuple[int, float]:
    join("gloo", store, rank, world, 60)
    value = torch.tensor(float(rank))
    dist.all_reduce(value)
    return rank, float(value)


def test_results_come_by_rank_and_ranks_talk(tmp_path: Path) -> None:
    assert run_fresh(2, partial(total, tmp_path / "store", 2), 120) == [(0, 1.0), (1, 1.0)]


def surroundings(name: str, _: int) -> tuple[str, str, int, int]:
    module = import_module(name)
    registered = "ModuleType" if not hasattr(sys.modules["migrator"], "__version__") else "package"
    return str(module.__file__), registered, os.getppid(), os.getpgid(0)


def test_a_rank_is_a_new_process_that_searches_the_same_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_on_this_path.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    ((file, registered, parent, group),) = run_fresh(1, partial(surroundings, "only_on_this_path"), 120)
    assert Path(file) == tmp_path / "only_on_this_path.py"
    assert registered == "ModuleType"  # the interpreter need not have cpfix
    assert (parent, group) == (os.getpid(), os.getpgid(0))  # whoever ends this group ends the rank


def one_raises(rank: int) -> None:
    if rank == 1:
        raise ValueError("the pack is bad")
    time.sleep(600)


def test_one_that_raises_takes_its_sleeping_peers_along() -> None:
    start = time.monotonic()
    with pytest.raises(RankFailed, match=r"rank 1 of 2(.|\n)*the pack is bad") as failure:
        run_fresh(2, one_raises, 300)
    assert last_line(failure.value) == "ValueError: the pack is bad"
    assert time.monotonic() - start < GRACE_S + 120


def one_dies(rank: int) -> None:
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def test_one_that_dies_takes_its_sleeping_peers_along() -> None:
    with pytest.raises(RankFailed, match="rank 0 of 2 died with status -9"):
        run_fresh(2, one_dies, 300)


def sleeps(_: int) -> None:
    time.sleep(600)


def test_a_time_limit_ends_all_and_leaves_no_child() -> None:
    with pytest.raises(RankFailed, match="2 ranks took longer than 1 s"):
        run_fresh(2, sleeps, 1)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_rank_that_cannot_import_its_task_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "passing_task.py").write_text("def work(rank):\n    return rank\n")
    monkeypatch.syspath_prepend(tmp_path)
    work = import_module("passing_task").work
    assert run_fresh(1, work, 120) == [0]
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    with pytest.raises(RankFailed, match="No module named 'passing_task'"):
        run_fresh(1, work, 120)

"""Break the k-th effect that the ledger has on the disk, in this process or by killing another one.

Run as a program it serves `Killer`: it forks a child for each line of its input, so that a killed process
costs no new interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from migrator.ledger import disk
from tests.ledger import world

KILLED = 77
Blow = Callable[[str, tuple[Any, ...]], None]  # the effect's name and arguments


@contextmanager
def broken(blow: Blow, at: int, forever: bool = False) -> Iterator[list[str]]:
    """Call `blow` before the effect with index `at` (and the later ones); gives the names of all effects."""
    names: list[str] = []
    whole = {name: getattr(disk, name) for name in disk.EFFECTS}

    def wrapped(name: str) -> Callable[..., None]:
        def effect(*args: Any) -> None:
            names.append(name)
            if len(names) == at + 1 or (forever and len(names) > at):
                blow(name, args)
            whole[name](*args)

        return effect

    for name in disk.EFFECTS:
        setattr(disk, name, wrapped(name))
    try:
        yield names
    finally:
        for name, function in whole.items():
            setattr(disk, name, function)


class Killed(BaseException):
    """Stands for the end of the process."""


def wreck(base: Path, goal: str, when: Callable[[str, tuple[Any, ...]], bool]) -> None:
    """Leave the disk as a process leaves it that is killed before the first effect that `when` chooses."""
    killed = False

    def blow(name: str, args: tuple[Any, ...]) -> None:
        nonlocal killed
        killed = killed or when(name, args)
        if killed:
            raise Killed

    with suppress(Killed), broken(blow, 0, forever=True):
        world.move(base, goal)
    assert killed
    for lock in base.rglob("lock"):
        lock.unlink()  # the process is not really dead, so its handle may still hold it


def before_replacing(name: str) -> Callable[[str, tuple[Any, ...]], bool]:
    """For `wreck`: when a file of this name is about to be replaced."""
    return lambda effect, args: effect == "replace" and args[1].name == name


def die(name: str, args: tuple[Any, ...]) -> None:
    """Kill this process, without a word; a file that was to be written is torn."""
    if name == "create":
        path, data = args[0], args[1]
        path.write_bytes(data[: len(data) // 2])
    os._exit(KILLED)


class Killer:
    """A server that runs `world.move` or `world.repair` in processes that are killed at a given effect."""

    def __enter__(self) -> Killer:
        command = [sys.executable, "-m", "tests.ledger.faults"]
        place = Path(__file__).parents[2]
        self._server = subprocess.Popen(
            command, cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.communicate()

    def __call__(self, base: Path, goal: str, at: int) -> bool:
        """True where the process was killed, False where it came to its end first. Goal "" repairs."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps([str(base), goal, at]), file=self._server.stdin, flush=True)
        status = int(self._server.stdout.readline())
        assert status in (0, KILLED)
        return status == KILLED


def _serve() -> None:
    os.fsync = lambda fd: None  # a killed process loses nothing that is on its way
    for line in sys.stdin:
        base, goal, at = json.loads(line)
        child = os.fork()
        if not child:
            status = 1
            try:
                with broken(die, at):
                    if goal:
                        world.move(Path(base), goal)
                    else:
                        world.repair(Path(base))
                status = 0
            finally:
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()

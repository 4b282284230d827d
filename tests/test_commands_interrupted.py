"""Verifications that fail, commands that are killed, and others at work at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from migrator import commands, ledger, plan, proof
from migrator.commands import Failure, apply, rehearse, revert
from migrator.model import CannotApply, EnvironmentRefuses, State
from migrator.scene import look
from tests.commanding import CORE, STACK, at, code, edit, states
from tests.ledger.faults import Killed, broken
from tests.sandbox import hashes

Sandbox = Callable[..., Path]


@pytest.fixture
def root(sandbox: Sandbox) -> Path:
    """site-packages of nemo:25.09."""
    return sandbox(STACK)


# --- the verification


@pytest.fixture
def distrust(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No verification passes."""
    monkeypatch.setattr(commands, "_read_back", lambda *_: iter([Failure("nemo", "x", "1", root, "bad")]))


def test_what_is_spoiled_while_it_is_verified_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pristine, commit = hashes(root), ledger.commit

    def spoiled(changes: Any, command: str, version: str) -> list[str]:
        done = commit(changes, command, version)
        if command == "apply":
            edit(root, CORE, "_is_cp_metadata(key, val)", "_is_cp_metadata(val, key)")
        return done

    monkeypatch.setattr(ledger, "commit", spoiled)
    outcome = apply(at(root))
    monkeypatch.undo()
    assert outcome.exit_code == 1
    assert [f.id for f in outcome.failed] == ["skip-packed"]
    assert "it reads back as partial" in outcome.failed[0].reason
    assert "It could not be taken back." in outcome.messages[-1]
    edit(root, CORE, "_is_cp_metadata(val, key)", "_is_cp_metadata(key, val)")
    assert revert(at(root)).exit_code == 0
    assert hashes(root) == pristine


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.usefixtures("distrust")
def test_a_failed_verification(root: Path, monkeypatch: pytest.MonkeyPatch, keep: bool) -> None:
    before = hashes(root)
    outcome = apply(at(root), keep=keep)
    assert outcome.exit_code == 1
    assert [f.reason for f in outcome.failed] == ["bad"]
    assert bool(outcome.changes) is keep
    assert ("Everything was taken back." in outcome.messages) is not keep
    assert (hashes(root) == before) is not keep
    monkeypatch.undo()
    assert set(states(apply(at(root))).values()) == {State.APPLIED}


@pytest.mark.parametrize("keep", [False, True])
def test_a_verification_that_is_interrupted(root: Path, monkeypatch: pytest.MonkeyPatch, keep: bool) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = hashes(root)
    monkeypatch.setattr(proof, "prove", interrupt)
    with pytest.raises(KeyboardInterrupt):
        apply(at(root), verify="cpu", keep=keep)
    assert (hashes(root) == before) is not keep


def test_a_failed_verification_of_an_upgrade_brings_the_older_patches_back(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(at(root, only=("nemo/prepad",)))
    before = code(root)
    monkeypatch.setattr(commands, "_read_back", lambda *_: iter([Failure("nemo", "x", "1", root, "bad")]))
    assert apply(at(root)).exit_code == 1
    monkeypatch.undo()
    assert code(root) == before
    assert {n for n, s in states(rehearse(at(root))).items() if s is State.APPLIED} == {"nemo/prepad"}
    assert revert(at(root)).exit_code == 0


# --- killed, and at the same time


@pytest.mark.parametrize("effects", [1, 6, 25, 40, 60, 70])
def test_after_a_kill_the_next_apply_or_revert_puts_things_right(root: Path, effects: int) -> None:
    pristine = hashes(root)

    def blow(name: str, args: tuple[Any, ...]) -> None:
        raise Killed

    with suppress(Killed), broken(blow, effects, forever=True):
        apply(at(root))
    for lock in root.rglob("lock"):
        lock.unlink()
    if look(at(root)).pending:
        with pytest.raises(CannotApply, match="puts the old state back first"):
            rehearse(at(root))
        with pytest.raises(CannotApply, match="puts the old state back first"):
            revert(at(root), dry_run=True)
    outcome = apply(at(root))
    assert outcome.exit_code == 0, outcome.failed
    assert set(states(outcome).values()) == {State.APPLIED}
    assert revert(at(root)).exit_code == 0
    assert hashes(root) == pristine


@contextmanager
def somebody_at_work(root: Path, work: Callable[[], object]) -> Iterator[None]:
    """Another process that holds the lock and does `work` after a while."""
    started = threading.Event()

    def hold() -> None:
        with ledger.locked([root], 10):
            started.set()
            time.sleep(0.6)
            work()

    thread = threading.Thread(target=hold)
    thread.start()
    started.wait(10)
    yield
    thread.join()


def test_half_of_another_process_work_is_waited_for(root: Path) -> None:
    changes = rehearse(at(root)).changes
    done = changes[::2]
    for change in done:
        change.target.write_bytes(change.new)

    def finish() -> None:
        for change in done:
            change.target.write_bytes(change.old)
        ledger.commit(changes, "apply", "0.1.0")

    with somebody_at_work(root, finish):
        assert any(s.state.is_error for s in look(at(root)).states)
        outcome = apply(at(root))
    assert (outcome.exit_code, outcome.changes) == (0, ())
    assert set(states(outcome).values()) == {State.APPLIED}


def test_a_rehearsal_waits_as_well(root: Path) -> None:
    changes = rehearse(at(root)).changes
    with somebody_at_work(root, lambda: ledger.commit(changes, "apply", "0.1.0")):
        assert rehearse(at(root)).changes == ()


def test_who_waits_too_long_is_told_who_is_at_work(root: Path) -> None:
    with (
        somebody_at_work(root, lambda: None),
        pytest.raises(EnvironmentRefuses, match="Another cpfix is at work"),
    ):
        apply(at(root), timeout=0.1)


def test_a_transaction_in_between_is_seen(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process begins and ends while the files are read: old ones first, new ones then."""
    changes = rehearse(at(root)).changes
    real, calls = plan.inspect, list[int]()

    def slow(*args: Any) -> Any:
        found = real(*args)
        if not calls:
            calls.append(1)
            with ledger.locked([root], 10):
                ledger.commit(changes, "apply", "0.1.0")
        return found

    monkeypatch.setattr(plan, "inspect", slow)
    assert {s.state for s in look(at(root)).states} == {State.APPLIED, State.NOT_APPLICABLE}


def test_a_transaction_that_ends_while_it_is_looked_at_is_not_pending(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = iter([["a transaction is clearing up"]])
    monkeypatch.setattr(ledger, "pending", lambda _: next(told, []))
    assert look(at(root)).pending == ()


def test_an_original_that_goes_while_it_is_looked_at(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process takes patches back."""
    assert apply(at(root)).exit_code == 0
    real, calls = plan.inspect, list[int]()

    def lost(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise CannotApply("an original is lost")
        return real(*args)

    monkeypatch.setattr(plan, "inspect", lost)
    assert State.APPLIED in {s.state for s in look(at(root)).states}
    monkeypatch.setattr(plan, "inspect", broken_original)
    with pytest.raises(CannotApply, match="an original is lost for good"):
        look(at(root))


def broken_original(*_: Any) -> Any:
    """No patch's state can be told."""
    raise CannotApply("an original is lost for good")


@pytest.mark.parametrize("command", [apply, revert, rehearse, lambda o: revert(o, dry_run=True)])
def test_an_original_that_goes_while_a_command_plans(
    root: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., Any]
) -> None:
    """Another process takes patches back and applies them again, between the look and the plan."""
    assert apply(at(root)).exit_code == 0
    lost = ["once"]

    def losing(real: Callable[..., Any]) -> Callable[..., Any]:
        def planned(*args: Any) -> Any:
            if lost:
                raise CannotApply(f"an original is lost {lost.pop()}")
            return real(*args)

        return planned

    monkeypatch.setattr(plan, "changes", losing(plan.changes))
    monkeypatch.setattr(plan, "without", losing(plan.without))
    assert command(at(root)).exit_code == 0
    assert lost == []

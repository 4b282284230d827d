"""What is said, and what is left unsaid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from migrator import report, series
from migrator.commands import Failure, Outcome
from migrator.files import Journal
from migrator.ledger import Entry
from migrator.model import CannotApply, FileChange, Git, Install, PatchState, State
from migrator.report import Style
from migrator.scene import Scene
from migrator.verify.check import Check, Report
from tests.edits import patch

ROOT = Path("/opt/site-packages")
INSTALL = Install("nemo", "nemo_toolkit", "2.5.0", ROOT, "wheel", True, True)
LOUD, QUIET, VERBOSE, JSON = Style(), Style(verbosity=-1), Style(verbosity=1), Style(json=True)


def state(value: State, reason: str = "because", *, id: str = "p", in_doubt: bool = False) -> PatchState:
    """A patch in a state."""
    return PatchState(patch(id), INSTALL, value, reason, ("nemo/a.py",), in_doubt)


def scene(*states: PatchState, installs: tuple[Install, ...] = (INSTALL,), **more: tuple[str, ...]) -> Scene:
    """A scene with these states."""
    return Scene(
        series=series.load(),
        installs=installs,
        targets=tuple(i for i in installs if i.imports),
        states=states,
        beside=(),
        journal=Journal({}, lambda _: b""),
        files={},
        pending=more.get("pending", ()),
        busy=more.get("busy", ()),
        outdated=tuple(map(Path, more.get("outdated", ()))),
    )


Capture = pytest.CaptureFixture[str]


# --- status


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (state(State.NEEDED), "`cpfix diff` shows what would be written, `cpfix apply` writes it."),
        (state(State.DRIFTED), "`cpfix diff` shows"),
        (state(State.CONFLICT), "Some patches cannot be applied"),
        (state(State.PARTIAL), "Some patches cannot be applied"),
        (state(State.NOT_APPLICABLE, in_doubt=True), "Some versions are not known to this cpfix"),
        (state(State.APPLIED), "Nothing to do."),
        (state(State.FIXED_UPSTREAM), "Nothing to do."),
        (state(State.NOT_APPLICABLE), "Nothing to do."),
    ],
)
def test_what_to_do_next(capsys: Capture, found: PatchState, said: str) -> None:
    report.status(scene(found), [found], LOUD, "")
    out = capsys.readouterr().out
    assert said in out
    assert f"nemo/p  {found.state.value}" in out
    report.status(scene(found), [found], QUIET, "")
    quiet = capsys.readouterr().out
    fine = found.state in (State.APPLIED, State.FIXED_UPSTREAM) or said == "Nothing to do."
    assert (quiet == "") is fine


def test_no_patch_was_looked_at(capsys: Capture) -> None:
    report.status(scene(), [], LOUD, "")
    assert "No patch was looked at." in capsys.readouterr().out


def test_what_else_status_has_to_say(capsys: Capture) -> None:
    noted = replace(INSTALL, notes=("reached through a symlink: /opt/x",), git=Git("0123456789abcdef", True))
    other = replace(INSTALL, imports=False, root=Path("/elsewhere"), version="")
    found = scene(
        installs=(noted, other),
        pending=("`apply` has not ended.",),
        busy=("/lock is held by process 1.",),
        outdated=("/opt/a.py",),
    )
    report.status(found, [], LOUD, "These versions fit.")
    out, err = capsys.readouterr()
    assert err == "interrupted: `apply` has not ended.\nat work: /lock is held by process 1.\n"
    assert (
        "nemo     2.5.0    wheel  yes       yes       /opt/site-packages (git 0123456789ab, changed)" in out
    )
    assert "nemo     ?        wheel  no        yes       /elsewhere" in out
    assert "  nemo 2.5.0: reached through a symlink: /opt/x" in out
    assert "These versions fit." in out
    assert "/opt/a.py was patched by another cpfix: apply brings it up to date." in out
    assert "Copies that are not imported are left alone; name one with --root to patch it." in out


def test_a_patch_on_two_copies_says_which(capsys: Capture) -> None:
    other = replace(INSTALL, root=Path("/elsewhere"))
    both = [state(State.NEEDED), replace(state(State.APPLIED), install=other)]
    report.status(scene(*both, installs=(INSTALL, other)), both, VERBOSE, "")
    out = capsys.readouterr().out
    assert "nemo/p in /opt/site-packages  needed" in out
    assert "nemo/p in /elsewhere          applied" in out
    assert "  p: nemo/a.py" in out


# --- apply, revert, diff


def change(old: bytes, new: bytes, path: str = "nemo/a.py") -> FileChange:
    """A change of a file."""
    return FileChange(ROOT, path, old, new, old)


def test_an_outcome_that_failed(capsys: Capture) -> None:
    failures = (Failure("nemo", "p", "2.5.0", ROOT, "one; two"), Failure("nemo", "p", "2.5.0", ROOT, "three"))
    result = Outcome((), (state(State.CONFLICT), state(State.NEEDED, id="q")), failures, ("a message",), 3)
    report.outcome(result, QUIET, "patched")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "a message\n"
        "nemo/p on 2.5.0 in /opt/site-packages:\n  one\n  two\n"
        "nemo/p on 2.5.0 in /opt/site-packages:\n  three\n"
        "1 of 2 patches failed. Nothing was written.\n"
    )


def test_an_outcome_that_was_kept_all_the_same(capsys: Capture) -> None:
    failed = (Failure("nemo", "p", "2.5.0", ROOT, "bad"),)
    report.outcome(Outcome((change(b"a", b"b"),), (state(State.NEEDED),), failed, (), 1), LOUD, "patched")
    assert capsys.readouterr().err.endswith("1 of 1 patches failed.\n")


@pytest.mark.parametrize(
    ("name", "less"),
    [
        ("parity: loss", "--verify static"),
        ("nemo 2.5.0, gpu: parity", "--verify cpu"),
        ("gpu", "--verify cpu"),
    ],
)
def test_what_did_not_train_right(capsys: Capture, name: str, less: str) -> None:
    found = Report((Check("a", None, "passed"), Check(name, 2, "failed", None, 1.0, "far; off")))
    report.outcome(Outcome((), (), (), ("Everything was taken back.",), 1, found), LOUD, "patched")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"Everything was taken back.\n{name} at CP=2: failed\n  far\n  off\n")
    assert less in err


def test_an_outcome_that_wrote(capsys: Capture) -> None:
    changes = (change(b"a", b"b"), change(b"a", b"a", "nemo/journal_only.py"))
    report.outcome(Outcome(changes, (state(State.APPLIED),)), LOUD, "patched")
    out = capsys.readouterr().out
    assert out.startswith("patched  /opt/site-packages/nemo/a.py\n\npatch ")
    assert "journal_only" not in out
    report.outcome(Outcome(changes, (state(State.NEEDED),)), LOUD, "patched", dry_run=True)
    assert capsys.readouterr().out == "would write  /opt/site-packages/nemo/a.py\n"
    report.outcome(Outcome(changes, ()), QUIET, "patched")
    assert capsys.readouterr() == ("", "")
    report.outcome(Outcome(changes[1:], ()), LOUD, "patched")
    assert capsys.readouterr().out == "Nothing to do.\n"


def test_diff_of_nothing_is_nothing(capsys: Capture) -> None:
    report.diff([], LOUD)
    assert capsys.readouterr() == ("", "")


# --- the rest


def test_log(capsys: Capture) -> None:
    entry = Entry("2025-10-01T12:00:00Z", "apply", "1.0", ("nemo/a.py",), ("nemo/p",), ())
    report.log([(ROOT, entry)], LOUD)
    assert capsys.readouterr().out == (
        "2025-10-01T12:00:00Z  apply  (cpfix 1.0)  /opt/site-packages\n  applied nemo/p\n  wrote nemo/a.py\n"
    )


def test_errors_go_where_they_are_looked_for(capsys: Capture) -> None:
    report.error(CannotApply("not this way"), LOUD)
    assert capsys.readouterr() == ("", "cpfix: not this way\n")
    report.error(CannotApply("not this way"), JSON)
    assert capsys.readouterr() == ('{\n  "error": "not this way",\n  "exit_code": 3\n}\n', "")

"""apply and revert on a real 25.09 stack: all or nothing, whatever somebody has done before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from migrator import series
from migrator.commands import apply, rehearse, revert
from migrator.model import State, UsageError
from migrator.scene import Options, look
from tests.commanding import CORE, STACK, STEP, at, code, edit, states
from tests.sandbox import hashes, make_sandbox

Sandbox = Callable[..., Path]


@pytest.fixture
def root(sandbox: Sandbox) -> Path:
    """site-packages of nemo:25.09."""
    return sandbox(STACK)


# --- all at once, one by one, and back


def test_apply_and_revert(root: Path) -> None:
    pristine = hashes(root)
    outcome = apply(at(root))
    assert (outcome.exit_code, outcome.failed, outcome.messages) == (0, (), ())
    assert set(states(outcome).values()) == {State.APPLIED}
    assert len(outcome.written) > 8
    again = apply(at(root))
    assert (again.exit_code, again.changes) == (0, ())
    back = revert(at(root))
    assert (back.exit_code, set(states(back).values())) == (0, {State.NEEDED})
    assert hashes(root) == pristine


def test_one_by_one_in_any_order_gives_the_same_bytes(root: Path, rng: Random) -> None:
    pristine = hashes(root)
    at_once = {c.path: c.new for c in rehearse(at(root)).changes}
    names = list(states(rehearse(at(root))))
    rng.shuffle(names)
    while names:  # what requires another one has to wait for it
        name = names.pop(0)
        outcome = apply(at(root, only=(name,)))
        if outcome.exit_code == 3:
            names.append(name)
        else:
            assert states(outcome)[name] is State.APPLIED
    assert {path: (root / path).read_bytes() for path in at_once} == at_once
    names = list(states(rehearse(at(root))))
    rng.shuffle(names)
    while names:
        name = names.pop(0)
        if revert(at(root, only=(name,))).exit_code == 3:
            names.append(name)
    assert hashes(root) == pristine


def test_only_and_skip(root: Path) -> None:
    outcome = apply(at(root, skip=("thd-split", "nemo/prepad")))
    found = states(outcome)
    assert outcome.exit_code == 0
    left = {name for name, state in found.items() if state is State.NEEDED}
    assert left == {"nemo/prepad", "nemo/thd-split", "megatron-bridge/thd-split"}
    outcome = revert(at(root, skip=("skip-packed", "padded-params")))
    kept = {name for name, state in states(outcome).items() if state is State.APPLIED}
    assert kept == {"megatron-core/skip-packed", "nemo/padded-params", "megatron-bridge/padded-params"}


# --- what a patch requires


def test_a_patch_is_not_applied_without_what_it_requires(root: Path) -> None:
    before = hashes(root)
    outcome = apply(at(root, only=("nemo/thd-split",)))
    assert outcome.exit_code == 3
    assert {f.reason for f in outcome.failed} == {
        "it is wrong without nemo/prepad: apply that too",
        "it is wrong without nemo/padded-params: apply that too",
    }
    assert hashes(root) == before


def test_requirements_hold_across_projects_whether_looked_at_or_not(root: Path) -> None:
    outcome = apply(at(root, projects=("megatron-bridge",)))
    assert outcome.exit_code == 3
    assert [(f.project, f.id, f.reason) for f in outcome.failed] == [
        ("megatron-bridge", "thd-split", "it is wrong without megatron-core/skip-packed: apply that too")
    ]
    assert apply(at(root, projects=("megatron-core",))).exit_code == 0
    assert apply(at(root, projects=("megatron-bridge",))).exit_code == 0
    outcome = revert(at(root, projects=("megatron-core",)))
    assert outcome.exit_code == 3
    assert [f.reason for f in outcome.failed] == [
        "it is wrong without megatron-core/skip-packed: take that back too"
    ]


def test_a_required_project_that_is_not_there_is_said_aloud(sandbox: Sandbox) -> None:
    outcome = apply(at(sandbox({"megatron-bridge": "0.1.0rc4"})))
    assert outcome.exit_code == 0
    (message,) = outcome.messages
    assert "megatron-bridge/thd-split requires megatron-core/skip-packed" in message


def test_a_required_patch_that_cannot_be_applied(root: Path) -> None:
    edit(root, CORE, "if val is not None:", "if val is not None and True:")
    outcome = apply(at(root, projects=("megatron-bridge",)))
    assert outcome.exit_code == 3
    assert (
        "which is in conflict: megatron/core/utils.py, get_batch_on_this_cp_rank" in outcome.failed[0].reason
    )


def test_what_others_require_is_not_taken_back(root: Path) -> None:
    apply(at(root))
    before = hashes(root)
    outcome = revert(at(root, only=("nemo/prepad",)))
    assert outcome.exit_code == 3
    assert [(f.id, f.reason) for f in outcome.failed] == [
        ("thd-split", "it is wrong without nemo/prepad: take that back too")
    ]
    assert hashes(root) == before
    assert revert(at(root, only=("nemo/prepad", "nemo/thd-split"))).exit_code == 0


# --- all or nothing


def test_every_patch_that_fails_is_reported_and_nothing_is_written(root: Path) -> None:
    edit(root, STEP, "output = get_batch_on_this_cp_rank(_batch_required_keys)", "output = split(_batch)")
    edit(root, CORE, "if val is not None:", "if val is None:")
    (root / "megatron/bridge/training/gpt_step.py").unlink()
    before = hashes(root)
    outcome = apply(at(root))
    assert outcome.exit_code == 3
    assert outcome.changes == ()
    failed = {f"{f.project}/{f.id}": f.reason for f in outcome.failed}
    assert set(failed) == {
        "nemo/thd-split",
        "megatron-core/skip-packed",
        "megatron-bridge/pipeline-metadata",
        "megatron-bridge/padded-params",
        "megatron-bridge/thd-split",
    }
    assert (
        f"{STEP}, gpt_data_step: `output = get_batch_on_this_cp_rank(_batch_required_keys)` was not found"
        in (failed["nemo/thd-split"])
    )
    assert "the nearest candidate is line" in failed["nemo/thd-split"]
    assert "there is no megatron/bridge/training/gpt_step.py" in failed["megatron-bridge/thd-split"]
    assert hashes(root) == before


def test_other_patches_can_still_be_chosen(root: Path) -> None:
    edit(root, CORE, "if val is not None:", "if val is None:")
    outcome = apply(at(root, projects=("nemo",)))
    assert outcome.exit_code == 0
    assert states(outcome)["nemo/thd-split"] is State.APPLIED


def test_a_patch_made_by_hand_in_part(root: Path) -> None:
    edit(root, CORE, "if val is not None:", "if val is not None and not _is_cp_metadata(key, val):")
    before = hashes(root)
    outcome = apply(at(root))
    assert outcome.exit_code == 3
    assert [s for s in states(outcome).values() if s is State.PARTIAL] == [State.PARTIAL]
    assert "already there" in outcome.failed[0].reason
    assert hashes(root) == before


def test_an_unknown_version_is_refused(root: Path) -> None:
    (root / "nemo/package_info.py").write_text("__version__ = '9.1.0'\n")
    before = hashes(root)
    outcome = apply(at(root))
    assert outcome.exit_code == 3
    assert {f.project for f in outcome.failed} == {"nemo"}
    assert all("9.1.0 is not known to this cpfix" in f.reason for f in outcome.failed)
    assert hashes(root) == before
    assert apply(at(root, projects=("megatron-core", "megatron-bridge"))).exit_code == 0


def test_a_version_that_cannot_be_read_is_refused(root: Path) -> None:
    (root / "nemo/package_info.py").write_text("__version__ = compute()\n")
    outcome = apply(at(root))
    assert outcome.exit_code == 3
    assert "cannot be read from nemo/package_info.py" in outcome.failed[0].reason


# --- edited and reinstalled


def test_a_file_that_was_edited_after_apply_is_kept(root: Path) -> None:
    apply(at(root))
    (root / STEP).write_text((root / STEP).read_text() + "# mine\n")
    before = hashes(root)
    assert apply(at(root)).exit_code == 0
    outcome = revert(at(root))
    assert outcome.exit_code == 3
    assert {f.id for f in outcome.failed} == {"thd-split", "padded-params"}
    assert "has changed since cpfix wrote it" in outcome.failed[0].reason
    assert hashes(root) == before


def test_a_reinstalled_project_drifts_and_is_patched_again(root: Path, upstream: Callable[..., Path]) -> None:
    pristine = hashes(root)
    apply(at(root))
    patched = code(root)
    for path in [p for p in pristine if p.startswith("nemo/")]:
        (root / path).write_bytes((upstream("nemo", "2.5.3") / path).read_bytes())
    found = {s.patch.name: s.state for s in look(at(root)).states}
    assert found["nemo/thd-split"] is State.DRIFTED
    assert found["megatron-core/skip-packed"] is State.APPLIED
    outcome = apply(at(root))
    assert {c.path.split("/")[0] for c in outcome.written} == {"nemo"}
    assert code(root) == patched
    revert(at(root))
    assert hashes(root) == pristine


def test_an_upgrade_to_another_release_leaves_nothing_behind(
    sandbox: Sandbox, upstream: Callable[..., Path]
) -> None:
    root = sandbox({"megatron-core": "0.14.0"})
    apply(at(root))
    for path in ("megatron/core/utils.py", "megatron/core/package_info.py"):
        (root / path).write_bytes((upstream("megatron-core", "0.18.0") / path).read_bytes())
    after = code(root)
    outcome = apply(at(root))
    assert (outcome.exit_code, outcome.written) == (0, ())
    assert states(outcome)["megatron-core/skip-packed"] is State.FIXED_UPSTREAM
    outcome = revert(at(root))
    assert (outcome.exit_code, outcome.written) == (0, ())
    assert hashes(root) == after


# --- the journal


def test_what_the_journal_does_not_know_cannot_be_taken_back(root: Path, tmp_path: Path) -> None:
    apply(at(root))
    (root / ".cpfix").rename(tmp_path / "lost")
    found = look(at(root))
    assert {s.state for s in found.states} == {State.APPLIED, State.NOT_APPLICABLE}
    assert apply(at(root)).exit_code == 0
    for options in (at(root), at(root, only=("nemo/thd-split",))):
        outcome = revert(options)
        assert outcome.exit_code == 3
        assert all("not by this journal" in f.reason for f in outcome.failed)
    outcome = revert(at(root, only=("nemo/skip-packed",)))
    assert (outcome.exit_code, outcome.changes) == (0, ())


def test_an_older_cpfix_is_replaced_in_one_transaction(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pristine = hashes(root)
    new = series.shipped()
    old = replace(
        new,
        patches=tuple(
            replace(p, fingerprint="old", edits=p.edits[:1]) if p.id == "padded-params" else p
            for p in new.patches
        ),
    )
    monkeypatch.setattr(series, "shipped", lambda: old)
    assert apply(at(root)).exit_code == 0
    monkeypatch.undo()
    found = look(at(root))
    states_now = {s.patch.name: s.state for s in found.states}
    assert states_now["nemo/padded-params"] is State.NEEDED
    assert states_now["nemo/thd-split"] is State.APPLIED
    assert root / STEP in found.outdated
    at_once = {c.path: c.new for c in rehearse(at(root)).changes}
    assert apply(at(root)).exit_code == 0
    assert {path: (root / path).read_bytes() for path in at_once} == at_once
    assert look(at(root)).outdated == ()
    assert revert(at(root)).exit_code == 0
    assert hashes(root) == pristine


# --- what is asked for


def test_unknown_names_are_refused_with_the_nearest(root: Path) -> None:
    with pytest.raises(UsageError, match="no patch is called 'thdsplit'; did you mean thd-split"):
        apply(at(root, only=("thdsplit",)))
    with pytest.raises(UsageError, match="no patch is called 'nemo/skip'"):
        apply(at(root, skip=("nemo/skip",)))
    with pytest.raises(UsageError, match="no patch is called"):
        apply(at(root, optional=("zzz",)))
    with pytest.raises(UsageError, match="no project is called 'megatron'"):
        look(at(root, projects=("megatron",)))


def test_an_optional_patch_is_applied_on_request_only(sandbox: Sandbox) -> None:
    root = sandbox({"megatron-core": "0.16.0", "megatron-bridge": "0.3.0"})
    name = "megatron-bridge/keep-eos-targets"
    assert apply(at(root)).exit_code == 0
    assert {s.patch.name: s.state for s in look(at(root)).states}[name] is State.NOT_APPLICABLE
    assert apply(at(root, optional=(name,))).exit_code == 0
    assert {s.patch.name: s.state for s in look(at(root)).states}[name] is State.APPLIED
    assert apply(at(root)).changes == ()
    assert revert(at(root, only=(name,))).exit_code == 0


def test_two_copies(sandbox: Sandbox, tmp_path: Path) -> None:
    second, third = sandbox({"nemo": "2.5.3"}), make_sandbox(tmp_path / "other", {"nemo": "2.4.0"})
    options = Options(roots=(second, third))
    found = look(options)
    assert [(i.version, i.imports) for i in found.installs] == [("2.5.3", True), ("2.4.0", False)]
    outcome = apply(options)
    assert outcome.exit_code == 0
    assert {c.root for c in outcome.written} == {second, third}
    edit(third, STEP, "_partition_packed_batch_for_cp(_batch_required_keys, _batch)", "0")
    before = hashes(tmp_path)
    outcome = revert(options)
    assert outcome.exit_code == 3
    assert {f.root for f in outcome.failed} == {third}
    assert hashes(tmp_path) == before
    assert revert(at(second)).exit_code == 0

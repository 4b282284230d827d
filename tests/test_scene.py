"""What is looked at: roots, projects, copies, and the names of patches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from migrator import ledger, series
from migrator.commands import apply
from migrator.model import EnvironmentRefuses, State, UsageError
from migrator.scene import Options, check_known, look, look_when_settled, named, require_targets, selected
from tests.commanding import STACK, at
from tests.sandbox import make_sandbox
from tests.trees import NEMO, make_venv, put, put_wheel

Sandbox = Callable[..., Path]


def test_every_patch_of_every_project_that_is_found(sandbox: Sandbox) -> None:
    root = sandbox(STACK)
    scene = look(at(root))
    assert [i.project for i in scene.targets] == [p.name for p in series.load().projects]
    assert [s.patch.name for s in scene.states] == [p.name for p in series.load().patches]
    assert scene.roots == (root,)
    assert (scene.beside, scene.pending, scene.busy, scene.outdated) == ((), (), (), ())


def test_projects_that_are_left_out_stand_beside(sandbox: Sandbox) -> None:
    scene = look(at(sandbox(STACK), projects=("nemo",)))
    assert {s.patch.project for s in scene.states} == {i.project for i in scene.installs} == {"nemo"}
    assert {s.patch.project for s in scene.beside} == {"megatron-core", "megatron-bridge"}


def test_only_and_skip_choose_among_states(sandbox: Sandbox) -> None:
    def chosen(**options: tuple[str, ...]) -> list[str]:
        return [s.patch.name for s in selected(scene, at(root, **options))]

    root = sandbox(STACK)
    scene = look(at(root))
    assert chosen(only=("thd-split",)) == ["megatron-bridge/thd-split", "nemo/thd-split"]
    assert chosen(only=("nemo/thd-split",)) == ["nemo/thd-split"]
    assert chosen(only=("thd-split",), skip=("nemo/thd-split",)) == ["megatron-bridge/thd-split"]
    assert len(chosen(skip=("skip-packed",))) == len(scene.states) - 2
    assert len(chosen()) == len(scene.states)


def test_what_the_interpreter_imports_is_the_target(tmp_path: Path) -> None:
    python, site = make_venv(tmp_path / "venv")
    put_wheel(site, NEMO, "2.5.0")
    scene = look(Options(python=str(python)))
    assert [(i.version, i.imports) for i in scene.targets] == [("2.5.0", True)]


def test_a_copy_that_is_not_imported_is_seen_and_left_alone(tmp_path: Path) -> None:
    python, site = make_venv(tmp_path / "venv")
    put_wheel(site, NEMO, "2.5.0")
    put(tmp_path / "clone", NEMO, "2.4.0")
    (site / "clone.pth").write_text(f"{tmp_path / 'clone'}\n")
    scene = look(Options(python=str(python)))
    assert [(i.version, i.imports) for i in scene.installs] == [("2.5.0", True), ("2.4.0", False)]
    assert [i.version for i in scene.targets] == ["2.5.0"]
    scene = look(Options(roots=(site, tmp_path / "clone")))  # roots that are named are all meant
    assert [i.version for i in scene.targets] == ["2.5.0", "2.4.0"]


def test_nothing_found_says_where_and_what_to_do(tmp_path: Path) -> None:
    options = Options(roots=(tmp_path,), projects=("nemo",))
    with pytest.raises(
        EnvironmentRefuses, match=f"no nemo found .* from {tmp_path}\nName the folder with --root"
    ):
        require_targets(look(options), options)
    python, _ = make_venv(tmp_path / "venv")
    options = Options(python=str(python))
    with pytest.raises(EnvironmentRefuses, match=f"from {python}"):
        require_targets(look(options), options)


def test_a_copy_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    python, site = make_venv(tmp_path / "venv")
    make_sandbox(tmp_path, {"megatron-core": "0.14.0"}).joinpath("megatron").rename(site / "megatron")
    (tmp_path / "front/megatron").mkdir(parents=True)
    (tmp_path / "front/megatron/__init__.py").touch()
    (site / "a.pth").write_text(f"import sys; sys.path.insert(0, {str(tmp_path / 'front')!r})\n")
    options = Options(python=str(python))
    with pytest.raises(EnvironmentRefuses, match=r"megatron-core in .*front/megatron/__init__\.py"):
        require_targets(look(options), options)


def test_an_optional_patch_that_is_asked_for_is_needed(sandbox: Sandbox) -> None:
    root = sandbox({"megatron-bridge": "0.3.0"})
    for optional, state in (((), State.NOT_APPLICABLE), (("keep-eos-targets",), State.NEEDED)):
        states = {s.patch.id: s.state for s in look(at(root, optional=optional)).states}
        assert states["keep-eos-targets"] is state


def test_two_roots_have_two_journals(sandbox: Sandbox, tmp_path: Path) -> None:
    first = sandbox({"megatron-core": "0.14.0"})
    second = make_sandbox(tmp_path / "other", {"megatron-core": "0.15.0"})
    apply(at(first))
    scene = look(Options(roots=(first, second)))
    assert [s.state for s in scene.states] == [State.APPLIED, State.NEEDED]
    assert {root for root, _ in scene.journal.records} == {first}


def test_who_is_at_work_is_seen_and_waited_for(sandbox: Sandbox) -> None:
    root = sandbox({"megatron-core": "0.14.0"})
    with ledger.locked([root]):
        assert "is held by process" in look(at(root)).busy[0]
        with pytest.raises(EnvironmentRefuses, match="is held by process"):
            look_when_settled(at(root), timeout=0.2)
    assert look_when_settled(at(root)).busy == ()


def test_names() -> None:
    patches = series.load().patches
    assert named(["skip-packed"], patches) == {"nemo/skip-packed", "megatron-core/skip-packed"}
    assert named(["nemo/skip-packed", "keep-eos-targets"], patches) == {
        "nemo/skip-packed",
        "megatron-bridge/keep-eos-targets",
    }
    assert named([], patches) == set()
    with pytest.raises(UsageError, match="there are: a, b"):
        check_known("zzz", ["a", "b", "a"], "project")
    with pytest.raises(UsageError, match="no project is called 'neno'; did you mean nemo"):
        check_known("neno", ["nemo"], "project")

"""`cpfix verify` and `apply --verify`: what is asked for, what follows from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from migrator import commands, proof
from migrator.cli import main
from migrator.proof import PATCHES, Request
from migrator.scene import Options, look
from migrator.verify.check import Check, Report
from tests.sandbox import hashes, make_sandbox

CORE = {"megatron-core": "0.14.0"}
STATIC = Request("static")


def prove(root: Path) -> Report:
    options = Options(roots=(root,))
    return proof.prove(look(options), options, STATIC)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_sandbox(tmp_path, CORE)


@pytest.mark.upstream
def test_an_unpatched_stack_fails_by_the_name_of_the_patch(root: Path) -> None:
    found = prove(root)
    assert [c.name for c in found.failed] == [PATCHES]
    assert "megatron-core/skip-packed on 0.14.0 is needed" in found.failed[0].detail
    assert found.exit_code == 1


@pytest.mark.upstream
def test_a_patched_stack_passes(root: Path) -> None:
    commands.apply(Options(roots=(root,)))
    found = prove(root)
    assert found.failed == ()
    assert found.exit_code == 0
    assert len(found.checks) > 1


@pytest.mark.upstream
def test_what_was_broken_since_is_found(root: Path) -> None:
    commands.apply(Options(roots=(root,)))
    file = root / "megatron/core/utils.py"
    file.write_text(file.read_text() + "\nnot_defined_anywhere\n")
    assert prove(root).exit_code == 1


FAILED = Report((Check("parity: gradients", 2, "failed", 1.0, 1e-5, "far off"),), (), ("static", "cpu"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The levels that are asked for; none of them is run."""
    levels: list[str] = []

    def verify(_: object, level: str, *__: object, **___: object) -> Report:
        levels.append(level)
        return Report((Check("a", None, "passed"),), (), (level,))

    monkeypatch.setattr(proof, "verify", verify)
    return levels


def finds(monkeypatch: pytest.MonkeyPatch, found: Report) -> None:
    monkeypatch.setattr(proof, "verify", lambda *_, **__: found)


@pytest.mark.upstream
def test_a_failed_verification_takes_everything_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = hashes(root)
    finds(monkeypatch, FAILED)
    result = CliRunner().invoke(main, ["apply", "--root", str(root), "--verify", "cpu", "--json"])
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    (check,) = (c for c in document["verification"]["checks"] if c["status"] == "failed")
    assert (check["name"], check["detail"]) == ("parity: gradients", "far off")
    assert (document["written"], document["changed"], document["failed"]) == (False, [], [])
    assert "Everything was taken back." in document["messages"]
    assert hashes(root) == before
    result = CliRunner().invoke(main, ["apply", "--root", str(root), "--verify", "cpu"])
    assert result.stdout == ""
    assert result.stderr.startswith(
        "Everything was taken back.\nparity: gradients at CP=2: failed (1, at most 1e-05)\n  far off\n"
    )


@pytest.mark.upstream
def test_keep_keeps_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finds(monkeypatch, FAILED)
    result = CliRunner().invoke(main, ["apply", "--root", str(root), "--verify", "cpu", "--keep"])
    assert result.exit_code == 1
    assert "taken back" not in result.output
    assert CliRunner().invoke(main, ["status", "--check", "--root", str(root)]).exit_code == 0


@pytest.mark.upstream
def test_a_check_that_could_not_run_fails_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = (Check("a", None, "passed"), Check("gpu: parity", None, "not run", detail="0 GPUs found"))
    finds(monkeypatch, Report(checks, (), ("static", "gpu")))
    result = CliRunner().invoke(main, ["apply", "--root", str(root), "--verify", "auto"])
    assert result.exit_code == 0
    assert result.stdout.endswith(
        "verified (static, gpu): 2 passed, 0 failed, 1 not run.\n  not run: gpu: parity: 0 GPUs found\n"
    )


@pytest.mark.upstream
def test_a_level_asked_for_that_cannot_run_is_no_success(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = hashes(root)
    missing = Check("cpu level", None, "not run", detail="torch is not installed there")
    finds(monkeypatch, Report((missing,), by_name=True))
    for command in ("verify", "apply"):
        option = {"verify": "--level", "apply": "--verify"}[command]
        result = CliRunner().invoke(main, [command, "--root", str(root), option, "cpu"])
        assert result.exit_code == 1
        assert "torch is not installed there" in result.output
    assert hashes(root) == before


@pytest.mark.upstream
def test_apply_verifies_as_far_as_it_can(
    root: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CPFIX_VERIFY")
    arguments = ["apply", "--root", str(root)]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert asked == ["auto"]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert asked == ["auto"]  # nothing was written
    commands.revert(Options(roots=(root,)))
    monkeypatch.setenv("CPFIX_VERIFY", "static")
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert asked == ["auto", "static"]


@pytest.mark.upstream
def test_half_a_series_is_not_run_unless_it_is_asked_for(tmp_path: Path, asked: list[str]) -> None:
    root = make_sandbox(tmp_path, {"nemo": "2.5.3", **CORE})
    arguments = ["apply", "--root", str(root), "--verify"]
    for scope in (["--only", "megatron-core/skip-packed"], ["--project", "megatron-core"]):
        result = CliRunner().invoke(main, [*arguments, "auto", *scope])
        assert result.exit_code == 0
        assert "cannot train right without nemo/prepad, nemo/thd-split" in result.stderr
        assert asked.pop() == "static"
        commands.revert(Options(roots=(root,)))
    result = CliRunner().invoke(main, [*arguments, "cpu", "--only", "megatron-core/skip-packed"])
    assert asked.pop() == "cpu"
    assert CliRunner().invoke(main, [*arguments, "auto"]).exit_code == 0
    assert asked == ["auto"]


@pytest.mark.upstream
def test_a_level_asked_for_by_name_where_nothing_is_written(root: Path, asked: list[str]) -> None:
    commands.apply(Options(roots=(root,)))
    result = CliRunner().invoke(main, ["apply", "--root", str(root), "--verify", "cpu"])
    assert result.exit_code == 0
    assert "nothing was verified: `cpfix verify --level cpu` does that" in result.stderr
    assert asked == []


@pytest.mark.upstream
def test_the_page_and_the_table(root: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    arguments = ["verify", "--level", "static", "--root", str(root), "--report", str(page)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "megatron-core 0.14.0" in page.read_text()
    assert "1 failed, 0 not run" in result.stdout


@pytest.mark.upstream
def test_a_page_that_cannot_be_written(root: Path, tmp_path: Path) -> None:
    arguments = [
        "verify",
        "--level",
        "static",
        "--root",
        str(root),
        "--report",
        str(tmp_path / "none" / "x.html"),
    ]
    assert CliRunner().invoke(main, arguments).exit_code == 4


def test_sizes_that_are_no_numbers(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["verify", "--root", str(tmp_path), "--cp", "2,x"])
    assert result.exit_code == 2

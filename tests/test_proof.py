"""`cpfix verify` and `apply --verify`, at the level that needs no torch."""

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


@pytest.mark.upstream
def test_a_failed_verification_takes_everything_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = hashes(root)
    failed = Report((Check("parity: gradients", 2, "failed", 1.0, 1e-5, "far off"),))
    monkeypatch.setattr(proof, "verify", lambda *_, **__: failed)
    result = CliRunner().invoke(main, ["apply", "--root", str(root), "--verify", "cpu", "--json"])
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert [f["id"] for f in document["failed"]] == ["parity: gradients"]
    assert "far off" in document["failed"][0]["reason"]
    assert hashes(root) == before


@pytest.mark.upstream
def test_keep_keeps_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Report((Check("parity: gradients", 2, "failed", 1.0, 1e-5, "far off"),))
    monkeypatch.setattr(proof, "verify", lambda *_, **__: failed)
    result = CliRunner().invoke(main, ["apply", "--root", str(root), "--verify", "cpu", "--keep"])
    assert result.exit_code == 1
    assert CliRunner().invoke(main, ["status", "--check", "--root", str(root)]).exit_code == 0


@pytest.mark.upstream
def test_a_check_that_could_not_run_fails_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Report((Check("gpu: parity", None, "not run", detail="0 GPUs found"),))
    monkeypatch.setattr(proof, "verify", lambda *_, **__: missing)
    result = CliRunner().invoke(main, ["apply", "--root", str(root), "--verify", "auto"])
    assert result.exit_code == 0


@pytest.mark.upstream
def test_a_level_asked_for_that_cannot_run_is_no_success(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = hashes(root)
    missing = Report((Check("cpu level", None, "not run", detail="torch is not installed there"),))
    monkeypatch.setattr(proof, "verify", lambda *_, **__: missing)
    for command in ("verify", "apply"):
        asked = {"verify": "--level", "apply": "--verify"}[command]
        result = CliRunner().invoke(main, [command, "--root", str(root), asked, "cpu"])
        assert result.exit_code == 1
        assert "torch is not installed there" in result.output
    assert hashes(root) == before


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

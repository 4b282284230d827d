"""The command line in this process: exit codes, words, and what `--json` prints."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from migrator import __version__, cli
from migrator.ledger import disk
from migrator.model import State
from tests.commanding import CORE, STEP, edit
from tests.sandbox import hashes

Sandbox = Callable[..., Path]
SLICER = "megatron-core/skip-packed"


def run(*arguments: str | Path) -> Result:
    """Run a command; what it raises is the test's failure."""
    return CliRunner().invoke(cli.main, [*map(str, arguments)], catch_exceptions=False)


def printed(*arguments: str | Path, code: int = 0) -> Any:
    """The one JSON document on standard output."""
    result = run(*arguments, "--json")
    assert result.exit_code == code, result.output
    assert result.stderr == ""
    return json.loads(result.stdout)


@pytest.fixture
def root(sandbox: Sandbox) -> Path:
    """Megatron-Core 0.14.0."""
    return sandbox({"megatron-core": "0.14.0"})


# --- exit codes


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["status"], 0),
        (["status", "--check"], 1),
        (["diff"], 0),
        (["apply", "--dry-run"], 0),
        (["apply", "--check"], 1),
        (["apply", "--check", "--skip", "skip-packed"], 0),
        (["revert"], 0),
        (["revert", "--dry-run"], 0),
        (["log"], 0),
        (["status", "--project", "megatron"], 2),
        (["status", "--only", "skip"], 2),
        (["apply", "--with", "nothing"], 2),
        (["apply", "--verify", "most"], 2),
        (["apply", "--nope"], 2),
        (["status", "--project", "nemo"], 4),
        (["apply", "--project", "nemo"], 4),
        (["diff", "--project", "nemo"], 4),
        (["revert", "--project", "nemo"], 4),
    ],
)
def test_exit_codes_where_work_is_to_be_done(root: Path, arguments: list[str], code: int) -> None:
    before = hashes(root)
    result = run(*arguments, "--root", root)
    assert result.exit_code == code, result.output
    assert hashes(root) == before
    document = printed(*arguments, "--root", root, code=code)
    if code in (2, 4):
        assert document["exit_code"] == code
        assert document["error"]
        assert result.stdout == ""
    assert hashes(root) == before


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["status", "--check"], 0), (["apply"], 0), (["apply", "--check"], 0), (["diff"], 0), (["revert"], 0)],
)
def test_exit_codes_where_all_is_done(root: Path, arguments: list[str], code: int) -> None:
    assert run("apply", "--root", root).exit_code == 0
    assert run(*arguments, "--root", root).exit_code == code


@pytest.mark.parametrize("command", ["apply", "apply --dry-run", "apply --check", "diff"])
def test_exit_code_of_a_patch_that_cannot_be_applied(root: Path, command: str) -> None:
    edit(root, CORE, "if val is not None:", "if val is not None and ready:")
    before = hashes(root)
    result = run(*command.split(), "--root", root)
    assert result.exit_code == 3
    assert result.stdout == ""
    assert f"{SLICER} on 0.14.0 in {root}:" in result.stderr
    assert f"{CORE}, get_batch_on_this_cp_rank: `if val is not None:` was not found" in result.stderr
    assert "the nearest candidate is line" in result.stderr
    assert "`if val is not None and ready:`" in result.stderr
    assert result.stderr.endswith("1 of 1 patches failed. Nothing was written.\n")
    document = printed(*command.split(), "--root", root, code=3)
    assert document["changed"] == []
    assert document["written"] is False
    (failed,) = document["failed"]
    assert (failed["project"], failed["id"], failed["root"]) == ("megatron-core", "skip-packed", str(root))
    assert hashes(root) == before
    assert run("status", "--root", root).exit_code == 0
    assert run("status", "--check", "--root", root).exit_code == 1


def test_a_folder_that_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = run("apply", "--root", tmp_path / "empty")
    assert result.exit_code == 4
    assert "no nemo or megatron-core or megatron-bridge found" in result.stderr.replace(
        "megatron-bridge or megatron-core or nemo", "nemo or megatron-core or megatron-bridge"
    )
    assert "--root DIR" in result.stderr
    assert run("status", "--root", tmp_path / "gone").exit_code == 2


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_tree_that_cannot_be_written(root: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(path: Path, *_: Any) -> None:
        raise OSError(code, "no", str(path))

    before = hashes(root)
    monkeypatch.setattr(disk, "make_dir", refuse)
    result = run("apply", "--root", root)
    assert result.exit_code == 4
    assert str(root) in result.stderr
    assert "CPFIX_STATE_DIR" in result.stderr
    assert printed("apply", "--root", root, code=4)["exit_code"] == 4
    assert hashes(root) == before


def test_a_tree_that_is_patched_already_needs_no_lock(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("apply", "--root", root)

    def refuse(*_: Any) -> None:
        raise AssertionError("a lock was asked for")

    monkeypatch.setattr("migrator.ledger.locked", refuse)
    assert run("apply", "--root", root).exit_code == 0
    assert run("status", "--check", "--root", root).exit_code == 0


# --- JSON, as issue and docs describe it

PATCH = {"project", "id", "title", "root", "version", "state", "reason", "files"}


def test_json_of_status(root: Path) -> None:
    document = printed("status", "--root", root)
    assert document["cpfix"] == __version__
    (install,) = document["installs"]
    assert {k: install[k] for k in ("project", "distribution", "version", "root", "kind", "imports")} == {
        "project": "megatron-core",
        "distribution": "megatron-core",
        "version": "0.14.0",
        "root": str(root),
        "kind": "wheel",
        "imports": True,
    }
    assert install["writable"] is True
    assert install["git"] is None
    (patch,) = document["patches"]
    assert set(patch) == PATCH
    assert (patch["state"], patch["files"], patch["version"]) == ("needed", [CORE], "0.14.0")
    assert document["pending"] == document["outdated"] == []


def test_json_of_apply_and_revert(root: Path) -> None:
    before = hashes(root)[CORE]
    rehearsed = printed("apply", "--dry-run", "--root", root)
    applied = printed("apply", "--root", root)
    after = hashes(root)[CORE]
    change = {"path": str(root / CORE), "before": before, "after": after}
    assert applied["changed"] == rehearsed["changed"] == [change]
    assert (rehearsed["written"], applied["written"]) == (False, True)
    assert [set(p) for p in applied["patches"]] == [PATCH]
    assert applied["patches"][0]["state"] == "applied"
    assert (applied["failed"], applied["messages"]) == ([], [])
    (entry,) = printed("log", "--root", root)["entries"]
    assert (entry["command"], entry["files"], entry["applied"]) == ("apply", [CORE], [SLICER])
    reverted = printed("revert", "--root", root)
    assert reverted["changed"] == [{"path": str(root / CORE), "before": after, "after": before}]
    assert reverted["patches"][0]["state"] == "needed"


def test_json_of_diff_and_explain(root: Path) -> None:
    (tree,) = printed("diff", "--root", root)["trees"]
    assert tree["top"] == str(root)
    assert tree["diff"].startswith(f"--- a/{CORE}\n+++ b/{CORE}\n")
    assert tree["diff"] == run("diff", "--root", root).stdout
    (patch,) = printed("explain", SLICER)["patches"]
    assert patch["id"] == "skip-packed"
    assert "IndexError" in patch["symptom"]
    assert len(printed("explain")["patches"]) > 15


# --- words


def test_status(root: Path) -> None:
    rows = run("status", "--root", root).stdout.split("\n")
    assert rows[0].split() == ["project", "version", "kind", "imported", "writable", "root"]
    assert rows[1].split() == ["megatron-core", "0.14.0", "wheel", "yes", "yes", str(root)]
    assert "These versions fit the container nemo:25.09." in rows
    assert [SLICER, "needed", "the", "defect", "is", "there"] in [row.split() for row in rows]
    assert "`cpfix diff` shows what would be written, `cpfix apply` writes it." in rows
    assert f"  skip-packed: {CORE}" in run("status", "-v", "--root", root).stdout.split("\n")


def test_apply_says_what_it_wrote(root: Path) -> None:
    assert run("apply", "--dry-run", "--root", root).stdout == f"would write  {root / CORE}\n"
    assert run("apply", "--root", root).stdout.startswith(f"patched  {root / CORE}\n")
    assert run("apply", "--root", root).stdout.endswith("Nothing to do.\n")
    assert "applied megatron-core/skip-packed" in run("log", "--root", root).stdout
    assert run("revert", "--root", root).stdout.startswith(f"restored  {root / CORE}\n")
    assert run("log", "--root", root).stdout == "The journal is empty.\n"


def test_quiet(root: Path) -> None:
    assert run("status", "-q", "--root", root).stdout.split("\n")[1].split()[:2] == [SLICER, "needed"]
    for command in ("apply", "apply", "status", "revert", "revert"):
        result = run(command, "-q", "--root", root)
        assert (result.exit_code, result.output) == (0, ""), command


def test_no_escape_codes_where_it_is_piped(root: Path) -> None:
    edit(root, CORE, "if val is not None:", "if val is None:")
    for command in ("status", "apply", "diff", "explain skip-packed", "status --project nemo"):
        where: list[str | Path] = [] if command.startswith("explain") else ["--root", root]
        assert "\x1b" not in run(*command.split(), *where).output


def test_explain(root: Path) -> None:
    text = run("explain", "thd-split").stdout
    assert text.count("thd-split: ") == 2  # one in each project that has it
    assert "Why\n" in text
    assert "Retire when\n" in text
    assert "Requires\n  prepad\n" in text
    assert "IndexError: tuple index out of range" in run("explain", SLICER).stdout
    assert "megatron-bridge/keep-eos-targets (optional)" in run("explain").stdout
    assert "applied by `cpfix apply --with" in run("explain", "keep-eos-targets").stdout
    assert run("explain", "thd-splits").exit_code == 2
    assert "did you mean thd-split?" in run("explain", "thd-splits").stderr


def test_help_and_version() -> None:
    assert run("--version").stdout.strip() == f"cpfix, version {__version__}"
    text = run("--help").stdout
    for command in ("status", "diff", "apply", "revert", "log", "explain"):
        assert command in text
        assert run(command, "--help").exit_code == 0
    assert run("nonsense").exit_code == 2


# --- versions


@pytest.mark.parametrize(
    ("version", "state", "said"),
    [
        ("0.18.0", State.NOT_APPLICABLE, "upstream's fix was expected in 0.18.0"),
        ("0.99.0", State.NOT_APPLICABLE, "0.99.0 is not known to this cpfix"),
        ("0.11.0", State.NOT_APPLICABLE, "0.11.0 is not known to this cpfix"),
        ("not-a-version", State.CONFLICT, "cannot be read from megatron/core/package_info.py"),
    ],
)
def test_a_version_is_never_a_silent_ok(root: Path, version: str, state: State, said: str) -> None:
    (root / "megatron/core/package_info.py").write_text(f"__version__ = {version!r}\n")
    before = hashes(root)
    (patch,) = printed("status", "--root", root)["patches"]
    assert patch["state"] == state.value
    assert said in patch["reason"]
    assert run("status", "--check", "--root", root).exit_code == 1
    assert run("apply", "--check", "--root", root).exit_code == 3
    assert run("apply", "--root", root).exit_code == 3
    assert hashes(root) == before


def test_a_known_version_outside_the_range_is_fine_and_said(sandbox: Sandbox) -> None:
    root = sandbox({"nemo": "2.5.3"})
    found = {p["id"]: p for p in printed("status", "--root", root)["patches"]}
    assert found["skip-packed"]["state"] == "not-applicable"
    assert found["skip-packed"]["reason"] == "2.5.3 is outside its range (>=2.3,<2.4)"
    done = printed("apply", "--only", "skip-packed", "--root", root)
    assert (done["changed"], done["failed"]) == ([], [])


def test_nothing_of_the_target_is_imported(root: Path, tmp_path: Path) -> None:
    marker = tmp_path / "imported"
    for name in ("megatron/core/__init__.py", CORE):
        (root / name).write_text(f"open({str(marker)!r}, 'w')\n" + (root / name).read_text())
    assert run("apply", "--root", root).exit_code == 0
    assert not marker.exists()


def test_a_stack_with_the_defect_fixed_in_the_code(sandbox: Sandbox) -> None:
    root = sandbox({"nemo": "2.5.3"})
    edit(
        root,
        STEP,
        "output = get_batch_on_this_cp_rank(_batch_required_keys)",
        "output = tex.thd_get_partitioned_indices(_batch_required_keys)",
    )
    found = {p["id"]: p for p in printed("apply", "--root", root)["patches"]}
    assert found["thd-split"]["state"] == "fixed-upstream"
    assert found["padded-params"]["state"] == "applied"

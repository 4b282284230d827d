"""What `cpfix export` refuses: with which exit code, what it says to do, and that nothing is left behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from migrator.cli import main
from tests.clones import branches, environment, files, git, make_clone

pytestmark = pytest.mark.upstream


@pytest.fixture(autouse=True)
def no_settings_of_mine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, environment()[name])


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return make_clone(tmp_path / "clone", "megatron-core", "0.14.0")


@pytest.fixture
def refused(repo: Path) -> Callable[..., str]:
    """`refused(code, *arguments)`: run, check the exit code and that nothing is new, return what is said."""

    def run(code: int, *arguments: str | Path, where: Path = repo) -> str:
        before = files(repo, skip=())
        result: Result = CliRunner().invoke(main, ["export", "--repo", str(where), *map(str, arguments)])
        assert result.exit_code == code, result.output
        assert files(repo, skip=()) == before
        return " ".join(result.output.split())

    return run


Refused = Callable[..., str]


class TestBase:
    def test_a_dirty_one(self, repo: Path, refused: Refused) -> None:
        utils = repo / "megatron/core/utils.py"
        utils.write_text(utils.read_text() + "# mine\n")
        said = refused(2)
        assert "megatron/core/utils.py" in said
        assert "--base HEAD" in said

    def test_a_dirty_index(self, repo: Path, refused: Refused) -> None:
        git(repo, "rm", "--quiet", "--cached", "megatron/core/utils.py")
        assert "differs from HEAD" in refused(2)

    def test_changes_elsewhere_do_not_matter(self, repo: Path) -> None:
        (repo / "README.md").write_text("mine\n")
        assert CliRunner().invoke(main, ["export", "--repo", str(repo)]).exit_code == 0

    def test_one_that_is_not_there(self, repo: Path, refused: Refused) -> None:
        said = refused(2, "--base", "v0.15.0")
        assert "no tag, branch or commit 'v0.15.0'" in said
        assert "there is v0.14.0" in said
        assert "fetch origin tag v0.15.0" in said

    @pytest.mark.parametrize("ref", ["--all", "-q", "HEAD^{tree}", "v0.14.0:README.md"])
    def test_one_that_is_no_commit(self, refused: Refused, ref: str) -> None:
        assert "has no tag, branch or commit" in refused(2, f"--base={ref}")

    def test_a_repository_without_a_commit(self, tmp_path: Path, refused: Refused) -> None:
        git(tmp_path, "init", "--quiet", "empty")
        assert "has no commit yet" in refused(2, where=tmp_path / "empty")


class TestLayout:
    def test_another_project(self, refused: Refused) -> None:
        said = refused(4, "--project", "nemo")
        assert "no nemo/package_info.py" in said
        assert "it is megatron-core's" in said

    def test_none_that_is_known(self, repo: Path, refused: Refused) -> None:
        git(repo, "rm", "--quiet", "-r", "megatron")
        git(repo, "commit", "--quiet", "--message", "gone")
        assert "holds none of the projects" in refused(4)
        assert "is it a clone of https://" in refused(4, "--project", "megatron-core")

    def test_two_at_once(self, repo: Path, refused: Refused) -> None:
        (repo / "src/megatron/bridge").mkdir(parents=True)
        (repo / "src/megatron/bridge/package_info.py").write_text("MAJOR, MINOR = 0, 3\n")
        git(repo, "add", "--all")
        git(repo, "commit", "--quiet", "--message", "two")
        assert "holds several projects" in refused(4)
        assert "states no version" in refused(4, "--project", "megatron-bridge")

    def test_a_project_that_does_not_exist(self, refused: Refused) -> None:
        assert "there are: megatron-bridge, megatron-core, nemo" in refused(2, "--project", "megatron")

    def test_no_repository(self, tmp_path: Path, refused: Refused) -> None:
        (tmp_path / "plain").mkdir()
        for where in (tmp_path / "plain", tmp_path / "absent"):
            assert "is no git repository" in refused(2, where=where)


class TestPatches:
    def test_code_that_does_not_match_names_every_patch(self, repo: Path, refused: Refused) -> None:
        utils = repo / "megatron/core/utils.py"
        utils.write_text(utils.read_text().replace("if val is not None:", "if val is not None and True:"))
        git(repo, "commit", "--quiet", "--all", "--message", "changed")
        said = refused(3)
        assert "megatron-core/skip-packed:" in said
        assert "megatron/core/utils.py, get_batch_on_this_cp_rank" in said

    def test_a_version_that_is_not_known(self, repo: Path, refused: Refused) -> None:
        info = repo / "megatron/core/package_info.py"
        info.write_text(info.read_text().replace("MINOR = 14", "MINOR = 99"))
        git(repo, "commit", "--quiet", "--all", "--message", "future")
        assert "is not known to this cpfix" in refused(3)

    def test_a_file_where_its_test_would_go(self, repo: Path, refused: Refused) -> None:
        test = repo / "tests/unit_tests/test_packed_cp_batch.py"
        test.parent.mkdir(parents=True)
        test.write_text("mine = 1\n")
        git(repo, "add", "--all")
        git(repo, "commit", "--quiet", "--message", "a test")
        assert "tests/unit_tests/test_packed_cp_batch.py of its own" in refused(3)

    def test_a_patch_that_does_not_exist(self, refused: Refused) -> None:
        assert "did you mean skip-packed?" in refused(2, "--only", "skip-paked")


class TestNames:
    def test_a_branch_that_exists(self, repo: Path, refused: Refused) -> None:
        git(repo, "branch", "cpfix/skip-packed")
        said = refused(2)
        assert "there is a branch cpfix/skip-packed" in said
        assert "branch -D cpfix/skip-packed" in said
        assert "there is a branch main" in refused(2, "--branch", "main")

    def test_a_branch_in_the_way_of_a_folder(self, repo: Path, refused: Refused) -> None:
        git(repo, "branch", "cpfix")
        result = CliRunner().invoke(main, ["export", "--repo", str(repo)])
        assert result.exit_code == 4
        assert "refs/heads/cpfix" in result.output
        assert branches(repo) == ["cpfix", "main"]

    @pytest.mark.parametrize("name", ["two words", "a..b", "-x", "x.lock", "@{-1}"])
    def test_a_branch_that_cannot_be(self, refused: Refused, name: str) -> None:
        assert "is no name for a branch" in refused(2, f"--branch={name}")

    @pytest.mark.parametrize("setting", ["user.name", "user.email"])
    def test_nobody_to_sign(
        self, repo: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, setting: str
    ) -> None:
        git(repo, "config", "--unset", setting)
        for name in [n for n in os.environ if n == "EMAIL" or n.startswith("GIT_")]:
            if name not in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
                monkeypatch.delenv(name)
        assert "git config --global user.email" in refused(4)

    def test_evidence_that_is_none(self, refused: Refused, tmp_path: Path) -> None:
        file = tmp_path / "report.json"
        assert "is no report" in refused(2, "--evidence", file)
        for text in ("not json", "[]", "{}", '{"checks": [{"name": "x"}]}'):
            file.write_text(text)
            assert "is no report of `cpfix verify --json`" in refused(2, "--evidence", file)

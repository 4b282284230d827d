"""`cpfix export`: what it makes, what it leaves alone, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from migrator import commands, series
from migrator.cli import main
from migrator.ranges import release
from migrator.scene import Options
from tests.clones import FOLDERS, blob, branches, environment, files, git, make_clone, tree

pytestmark = pytest.mark.upstream

VERSIONS = [
    ("nemo", "2.3.3"),
    ("nemo", "2.5.3"),
    ("megatron-core", "0.12.3"),
    ("megatron-core", "0.15.3"),
    ("megatron-bridge", "0.2.0rc6"),
    ("megatron-bridge", "0.3.1"),
]
Clone = Callable[[str, str], Path]


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """One repository a version, to be copied."""
    made: dict[tuple[str, str], Path] = {}

    def original(project: str, version: str) -> Path:
        if (project, version) not in made:
            folder = tmp_path_factory.mktemp("upstream") / project
            made[project, version] = make_clone(folder, project, version)
        return made[project, version]

    return original


@pytest.fixture
def clone(originals: Clone, tmp_path: Path) -> Clone:
    """`clone(project, version)`: a repository of this test's own."""

    def copy(project: str, version: str) -> Path:
        return Path(shutil.copytree(originals(project, version), tmp_path / "clone", symlinks=True))

    return copy


@pytest.fixture(autouse=True)
def no_settings_of_mine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, environment()[name])


def export(repo: Path, *arguments: str | Path) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["export", "--repo", str(repo), *map(str, arguments)])


def exported(repo: Path, *arguments: str | Path) -> dict[str, object]:
    """Run the command with success and return its JSON."""
    result = export(repo, "--json", *arguments)
    assert result.exit_code == 0, result.output
    data: dict[str, object] = json.loads(result.stdout)
    return data


def new_tests(project: str, version: str) -> dict[str, bytes]:
    """Upstream's new tests for a version, by path."""
    tests = [test for patch in series.load().of(project) for test in patch.tests]
    number = release(version)
    assert number is not None
    return {test.path: test.text.encode() for test in tests if test.versions.contains(number)}


class TestTree:
    @pytest.mark.parametrize(("project", "version"), VERSIONS)
    def test_is_what_apply_writes_byte_for_byte(self, clone: Clone, project: str, version: str) -> None:
        repo = clone(project, version)
        exported(repo, "--base", f"v{version}", "--branch", "packed")
        result = commands.apply(Options(roots=(repo / FOLDERS[project],)))
        assert result.exit_code == 0
        assert result.changes
        made = tree(repo, "packed")
        tests = {path: content for path, content in new_tests(project, version).items() if path in made}
        assert made == files(repo) | tests
        assert set(made) - set(tree(repo, "main")) == set(tests)

    def test_keeps_line_ends_and_modes_whatever_the_settings(self, clone: Clone) -> None:
        repo = clone("megatron-core", "0.14.0")
        file = repo / "megatron/core/utils.py"
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
        file.chmod(0o755)
        git(repo, "commit", "--quiet", "--all", "--message", "carriage returns")
        (repo / ".gitattributes").write_text("*.py text eol=lf\n")
        git(repo, "config", "core.autocrlf", "true")
        exported(repo, "--base", "HEAD", "--branch", "packed")
        made = blob(repo, "packed", "megatron/core/utils.py")
        assert made.count(b"\r\n") == made.count(b"\n")
        assert git(repo, "ls-tree", "packed", "megatron/core/utils.py").startswith("100755")
        commands.apply(Options(roots=(repo,)))
        assert made == file.read_bytes()


class TestPatchFiles:
    @pytest.mark.parametrize(("project", "version"), VERSIONS)
    def test_git_am_takes_them_on_a_fresh_checkout(
        self, clone: Clone, tmp_path: Path, project: str, version: str
    ) -> None:
        repo, out = clone(project, version), tmp_path / "out"
        exported(repo, "--branch", "packed", "--format-patch", out)
        fresh = tmp_path / "fresh"
        git(repo, "clone", "--quiet", "--branch", f"v{version}", ".", str(fresh))
        patches = sorted(map(str, (out / "packed").glob("*.patch")))
        git(fresh, "am", "--quiet", "--keep-non-patch", *patches)
        assert git(fresh, "rev-parse", "HEAD^{tree}") == git(repo, "rev-parse", "packed^{tree}")
        log = ("log", "--format=%B", f"v{version}..")
        assert git(fresh, *log, "HEAD") == git(repo, *log[:2], f"v{version}..packed")

    def test_are_the_same_under_settings_that_change_diffs(self, clone: Clone, tmp_path: Path) -> None:
        repo = clone("megatron-core", "0.14.0")
        exported(repo, "--branch", "plain", "--format-patch", tmp_path / "out")
        for setting in (
            "diff.noprefix true",
            "diff.mnemonicPrefix true",
            "format.attach x",
            "format.coverLetter true",
            "format.signOff true",
            "format.subjectPrefix RFC",
            "commit.gpgSign true",
            "color.ui always",
            "core.pager false",
        ):
            git(repo, "config", *setting.split())
        exported(repo, "--branch", "odd", "--format-patch", tmp_path / "out")
        plain, odd = (sorted((tmp_path / "out" / n).glob("*")) for n in ("plain", "odd"))
        assert [p.name for p in plain] == [p.name for p in odd]

        def body(path: Path) -> str:
            return path.read_text().partition("Subject:")[2]

        assert [body(p) for p in plain if p.suffix == ".patch"] == [
            body(p) for p in odd if p.suffix == ".patch"
        ]

    def test_come_in_one_folder_a_branch_that_must_be_empty(self, clone: Clone, tmp_path: Path) -> None:
        repo, out = clone("nemo", "2.5.3"), tmp_path / "out"
        exported(repo, "--format-patch", out)
        assert {path.name for path in out.iterdir()} == {
            "cpfix-prepad",
            "cpfix-thd-split",
            "cpfix-padded-params",
        }
        for folder in out.iterdir():
            assert (folder / "PULL_REQUEST.md").is_file()
            assert list(folder.glob("*.patch"))
        git(repo, "branch", "--delete", "--force", *[b for b in branches(repo) if b != "main"])
        again = export(repo, "--format-patch", out)
        assert again.exit_code == 2
        assert "is not empty" in again.output
        assert branches(repo) == ["main"]


class TestBranches:
    def test_of_a_patch_stand_on_what_it_requires(self, clone: Clone) -> None:
        repo = clone("nemo", "2.5.3")
        exported(repo)
        titles = {p.id: p.title for p in series.load().of("nemo")}

        def log(branch: str) -> list[str]:
            return git(repo, "log", "--reverse", "--format=%s", f"main..{branch}").splitlines()

        assert log("cpfix/prepad") == [titles["prepad"]]
        assert log("cpfix/padded-params") == [titles["padded-params"]]
        assert log("cpfix/thd-split") == [titles[i] for i in ("prepad", "padded-params", "thd-split")]
        assert git(repo, "merge-base", "cpfix/prepad", "cpfix/thd-split") == git(
            repo, "rev-parse", "cpfix/prepad"
        )

    def test_a_series_has_each_patch_behind_what_it_requires(self, clone: Clone) -> None:
        repo = clone("nemo", "2.5.3")
        exported(repo, "--branch", "packed")
        subjects = git(repo, "log", "--reverse", "--format=%s", "main..packed").splitlines()
        ids = {p.title: p.id for p in series.load().of("nemo")}
        assert [ids[s] for s in subjects] == ["prepad", "padded-params", "thd-split"]

    def test_each_commit_brings_its_own_test_and_nothing_else_is_new(self, clone: Clone) -> None:
        repo = clone("nemo", "2.5.3")
        exported(repo, "--branch", "packed")
        new = git(repo, "log", "--reverse", "--diff-filter=A", "--name-only", "--format=", "main..packed")
        assert new.split() == [
            "tests/collections/llm/gpt/data/test_packed_sequence_prepad.py",
            "tests/collections/llm/gpt/model/test_packed_seq_params.py",
            "tests/collections/llm/gpt/model/test_thd_split.py",
        ]

    @pytest.mark.parametrize(
        ("version", "tests"),
        [
            ("0.2.0rc0", ["stages"]),
            ("0.2.0rc6", ["stages", "stages_plan"]),
            ("0.2.2", ["stages", "stages_plan", "stages_vision"]),
        ],
    )
    def test_tests_of_a_variant_come_with_its_edits(
        self, clone: Clone, version: str, tests: list[str]
    ) -> None:
        repo = clone("megatron-bridge", version)
        exported(repo, "--only", "pipeline-metadata")
        new = git(repo, "diff", "--diff-filter=A", "--name-only", "main", "cpfix/pipeline-metadata").split()
        assert new == [f"tests/unit_tests/training/test_packed_{name}.py" for name in tests]

    def test_only_takes_a_patch_and_its_requirements(self, clone: Clone) -> None:
        repo = clone("nemo", "2.5.3")
        data = exported(repo, "--only", "padded-params")
        assert branches(repo) == ["cpfix/padded-params", "main"]
        assert data["written"] is True
        exported(repo, "--only", "thd-split")
        assert branches(repo) == ["cpfix/padded-params", "cpfix/thd-split", "main"]

    def test_messages_say_what_why_and_who(self, clone: Clone) -> None:
        repo = clone("megatron-core", "0.14.0")
        exported(repo, "--signoff", "--branch", "signed")
        exported(repo, "--branch", "plain")
        patch = series.load().of("megatron-core")[0]
        signed, plain = (git(repo, "log", "-1", "--format=%B", b) for b in ("signed", "plain"))
        assert signed.startswith(f"{patch.title}\n\n")
        assert " ".join(patch.why.split()) in " ".join(signed.split())
        assert all(url in signed for url in patch.references)
        assert signed.rstrip().endswith("\n\nSigned-off-by: Ada Tester <ada@example.org>")
        assert signed.replace("\n\nSigned-off-by: Ada Tester <ada@example.org>", "") == plain
        assert (
            git(repo, "log", "-1", "--format=%an <%ae> %cn", "plain")
            == "Ada Tester <ada@example.org> Ada Tester\n"
        )

    def test_nothing_to_do_is_said_and_makes_none(self, clone: Clone) -> None:
        repo = clone("megatron-core", "0.14.0")
        commands.apply(Options(roots=(repo,)))
        shutil.rmtree(repo / ".cpfix")
        git(repo, "commit", "--quiet", "--all", "--message", "patched")
        result = export(repo)
        assert result.exit_code == 0
        assert "Nothing to export" in result.output
        assert branches(repo) == ["main"]


class TestPullRequest:
    def test_names_the_tests_at_the_base_that_state_what_it_changes(
        self, clone: Clone, tmp_path: Path
    ) -> None:
        repo = clone("megatron-bridge", "0.3.1")
        path = "tests/unit_tests/training/test_vlm_step.py"
        (repo / path).parent.mkdir(parents=True)
        (repo / path).write_text("def test_forward_step(): ...\ndef test_forward_step_schedule_plan(): ...\n")
        git(repo, "add", path)
        git(repo, "commit", "--quiet", "--message", "tests")
        exported(repo, "--format-patch", tmp_path)
        text = (tmp_path / "cpfix-plan-params/PULL_REQUEST.md").read_text()
        assert f"- `{path}::test_forward_step_schedule_plan`\n" in text
        assert f"{path}::test_forward_step`" not in text
        others = [file for file in tmp_path.glob("*/PULL_REQUEST.md") if "plan-params" not in str(file)]
        assert len(others) > 5
        assert not [file for file in others if "## Existing tests" in file.read_text()]

    def test_has_paths_as_the_repository_has_them_and_names_other_projects(
        self, clone: Clone, tmp_path: Path
    ) -> None:
        repo = clone("megatron-bridge", "0.2.0rc6")
        exported(repo, "--only", "thd-split", "--format-patch", tmp_path)
        text = (tmp_path / "cpfix-thd-split/PULL_REQUEST.md").read_text()
        assert "- `src/megatron/bridge/training/gpt_step.py`: changes" in text
        (core,) = series.load().of("megatron-core")
        assert f"- megatron-core: {core.title}\n" in text
        paths = re.findall(r"cpfix/thd-split~1 -- (.*)", text)[0].split()
        assert all((repo / path).is_file() for path in paths)


class TestLeavesAlone:
    def test_the_work_tree_the_index_and_hooks(self, clone: Clone, tmp_path: Path) -> None:
        repo = clone("megatron-core", "0.14.0")
        utils = repo / "megatron/core/utils.py"
        utils.write_text(utils.read_text() + "# unstaged\n")
        (repo / "README.md").write_text("staged\n")
        git(repo, "add", "README.md")
        (repo / "untracked.txt").write_text("mine\n")
        for hook in ("pre-commit", "commit-msg", "post-checkout", "post-commit", "reference-transaction"):
            path = repo / ".git/hooks" / hook
            path.write_text(f"#!/bin/sh\ntouch {tmp_path}/{hook}-ran\n")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        index, before = (repo / ".git/index").read_bytes(), files(repo)
        head = git(repo, "rev-parse", "--symbolic-full-name", "HEAD")
        exported(repo, "--base", "v0.14.0", "--branch", "packed", "--format-patch", tmp_path / "out")
        assert (repo / ".git/index").read_bytes() == index
        assert files(repo) == before
        assert git(repo, "rev-parse", "--symbolic-full-name", "HEAD") == head
        assert git(repo, "worktree", "list").count("\n") == 1
        assert not (repo / ".git/worktrees").exists()
        assert not list(tmp_path.glob("*-ran"))

    def test_everything_on_a_dry_run(self, clone: Clone, tmp_path: Path) -> None:
        repo = clone("megatron-core", "0.14.0")
        before = files(repo, skip=())
        result = export(repo, "--dry-run", "--format-patch", tmp_path / "out", "-v")
        assert result.exit_code == 0
        assert "would make branch cpfix/skip-packed" in result.output
        assert "tests/unit_tests/test_packed_cp_batch.py" in result.output
        assert files(repo, skip=()) == before
        assert not (tmp_path / "out").exists()


class TestClones:
    def test_shallow(self, clone: Clone, tmp_path: Path) -> None:
        repo = clone("megatron-core", "0.14.0")
        git(repo, "commit", "--quiet", "--allow-empty", "--message", "later")
        shallow = tmp_path / "shallow"
        git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{repo}", str(shallow))
        git(shallow, "config", "user.name", "Ada Tester")
        git(shallow, "config", "user.email", "ada@example.org")
        exported(shallow, "--format-patch", tmp_path / "out")
        assert branches(shallow) == ["cpfix/skip-packed", "main"]
        missing = export(shallow, "--base", "v9.9")
        assert missing.exit_code == 2
        assert "fetch --depth 1 origin tag v9.9" in missing.output

    def test_linked_work_tree(self, clone: Clone, tmp_path: Path) -> None:
        repo = clone("megatron-core", "0.14.0")
        linked = tmp_path / "linked"
        git(repo, "worktree", "add", "--quiet", "-b", "work", str(linked))
        exported(linked / "megatron")
        assert "cpfix/skip-packed" in branches(repo)
        assert git(linked, "status", "--porcelain") == ""

    def test_bare(self, clone: Clone, tmp_path: Path) -> None:
        repo = clone("megatron-core", "0.14.0")
        bare = tmp_path / "bare.git"
        git(repo, "clone", "--quiet", "--bare", ".", str(bare))
        git(bare, "config", "user.name", "Ada Tester")
        git(bare, "config", "user.email", "ada@example.org")
        exported(bare)
        assert branches(bare) == ["cpfix/skip-packed", "main"]

    def test_another_repository_in_the_environment(
        self, clone: Clone, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        repo = clone("megatron-core", "0.14.0")
        git(tmp_path, "init", "--quiet", "other")
        monkeypatch.setenv("GIT_DIR", str(tmp_path / "other/.git"))
        monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other/.git/index"))
        assert export(repo).exit_code == 0
        monkeypatch.undo()
        assert branches(repo) == ["cpfix/skip-packed", "main"]

"""The command line as its own process: pipes, terminals, git, and many at once."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.commanding import CORE, STACK, code, edit
from tests.sandbox import hashes

Sandbox = Callable[..., Path]
REPOSITORY = Path(__file__).parents[1]


def command(*arguments: str | Path) -> list[str]:
    """cpfix by this interpreter."""
    return [sys.executable, "-m", "migrator", *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    """This process's, without what changes colours, and with cpfix on the path."""
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE")}
    return kept | {"PYTHONPATH": str(REPOSITORY), "TERM": "xterm-256color", "COLUMNS": "200"} | more


def run(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    """Run cpfix, its output piped."""
    return subprocess.run(command(*arguments), capture_output=True, env=environment(), timeout=120)


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> None:
    """Run git without anybody's settings."""
    identity = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(
        ["git", "-c", "core.autocrlf=false", *arguments],
        cwd=folder,
        input=stdin,
        check=True,
        capture_output=True,
        env=environment(GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_NOSYSTEM="1", **identity),
    )


# --- git apply


@pytest.mark.parametrize("layout", ["plain tree", "repository", "src below a repository's top", "CRLF"])
def test_diff_applies_with_git_and_gives_the_bytes_of_apply(sandbox: Sandbox, layout: str) -> None:
    root = sandbox(STACK)
    top = root
    if layout == "CRLF":
        for file in root.rglob("*.py"):
            file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    if layout.startswith("src"):
        top = root.parent / "checkout"
        top.mkdir()
        root = root.rename(top / "src")
    if layout.startswith(("repository", "src")):
        git(top, "init", "--quiet")
        git(top, "add", "--all")
        git(top, "commit", "--quiet", "-m", "upstream")
    before = code(root)
    diff = run("diff", "--root", root)
    assert (diff.returncode, diff.stderr) == (0, b"")
    git(top, "apply", "--check", stdin=diff.stdout)
    git(top, "apply", "--whitespace=nowarn", stdin=diff.stdout)
    by_git = code(root)
    assert by_git != before
    git(top, "apply", "-R", "--whitespace=nowarn", stdin=diff.stdout)
    assert code(root) == before
    assert run("apply", "-q", "--root", root).returncode == 0
    assert code(root) == by_git
    assert run("diff", "--root", root).stdout == b""
    if layout.startswith(("repository", "src")):
        status = subprocess.run(["git", "status", "--porcelain"], cwd=top, capture_output=True, check=True)
        assert all(row.startswith(b" M ") for row in status.stdout.splitlines())  # the ledger is not seen


def test_diffs_of_two_trees_say_where_each_applies(sandbox: Sandbox, tmp_path: Path) -> None:
    first = sandbox({"megatron-core": "0.14.0"}).rename(tmp_path / "first")
    second = sandbox({"nemo": "2.5.3"}).rename(tmp_path / "second")
    text = run("diff", "--root", first, "--root", second).stdout.decode()
    assert text.count("# git -C ") == 2
    for part in text.split("# git -C ")[1:]:
        where, _, diff = part.partition(" apply\n")
        git(Path(where), "apply", stdin=diff.encode())
    assert run("status", "--check", "--root", first, "--root", second).returncode == 0


# --- many at once


def test_eight_at_once(sandbox: Sandbox) -> None:
    root = sandbox(STACK)
    pristine = hashes(root)
    ranks = [
        subprocess.Popen(
            command("apply", "--json", "--root", root),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(8)
    ]
    ended = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 8, ended
    documents = [json.loads(out) for out, _ in ended]
    assert sorted(document["written"] for document in documents) == [False] * 7 + [True]
    assert all(p["state"] in ("applied", "not-applicable") for d in documents for p in d["patches"])
    (entry,) = json.loads(run("log", "--json", "--root", root).stdout)["entries"]
    assert entry["command"] == "apply"
    assert not list(root.rglob("lock"))
    assert run("revert", "-q", "--root", root).returncode == 0
    assert hashes(root) == pristine


def test_apply_and_revert_at_once_end_in_one_of_both_states(sandbox: Sandbox) -> None:
    root = sandbox({"megatron-core": "0.14.0"})
    pristine = code(root)
    both = [
        subprocess.Popen(
            command(name, "-q", "--root", root),
            env=environment(),
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for name in ("apply", "revert", "apply", "revert")
    ]
    assert [(p.communicate(timeout=120), p.returncode)[1] for p in both] == [0] * 4
    check = run("status", "--check", "--root", root).returncode
    assert (check == 0) == (code(root) != pristine)


def test_a_patched_tree_is_not_touched_again(sandbox: Sandbox) -> None:
    """As it has to be on a read-only file system: not even a folder's time changes."""
    root = sandbox(STACK)
    run("apply", "-q", "--root", root)
    os.utime(root / ".cpfix", (1, 1))

    def touched() -> list[tuple[str, int, int]]:
        found = [root, *root.rglob("*")]
        return sorted((str(p), p.stat().st_mtime_ns, p.stat().st_ctime_ns) for p in found)

    before = touched()
    for arguments in (["apply", "-q"], ["status", "--check"], ["diff"], ["log"], ["apply", "--check"]):
        assert run(*arguments, "--root", root).returncode == 0
    assert touched() == before


# --- what is printed where


def on_a_terminal(arguments: Sequence[str], **more: str) -> str:
    """What cpfix prints on a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command(*arguments), stdout=theirs, stderr=theirs, env=environment(**more))
    os.close(theirs)
    chunks = []
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:
            break
        if not chunk:
            break
        chunks.append(chunk)
    process.wait(60)
    os.close(ours)
    return b"".join(chunks).decode()


@pytest.mark.parametrize("name", ["status", "diff", "apply --dry-run"])
def test_colours_are_for_terminals(sandbox: Sandbox, name: str) -> None:
    root = sandbox({"megatron-core": "0.14.0"})
    arguments = [*name.split(), "--root", str(root)]
    coloured = on_a_terminal(arguments)
    if not name.startswith("apply"):
        assert "\x1b[3" in coloured
    assert "\x1b" not in on_a_terminal([*arguments, "--no-color"])
    assert "\x1b[3" not in on_a_terminal(arguments, NO_COLOR="1")
    piped = run(*arguments)
    assert b"\x1b" not in piped.stdout + piped.stderr


def test_an_error_is_coloured_on_a_terminal_only(sandbox: Sandbox) -> None:
    root = sandbox({"megatron-core": "0.14.0"})
    edit(root, CORE, "if val is not None:", "if val is None:")
    arguments = ["apply", "--root", str(root)]
    assert "\x1b[31m" in on_a_terminal(arguments)
    assert "\x1b" not in on_a_terminal([*arguments, "--no-color"])
    assert b"\x1b" not in run(*arguments).stderr


def test_a_reader_that_has_seen_enough(sandbox: Sandbox) -> None:
    root = sandbox(STACK)
    line = " ".join(command("diff", "--root", root)) + " | head -n 1"
    done = subprocess.run(["sh", "-c", line], env=environment(), capture_output=True, timeout=120)
    assert done.stdout.startswith(b"--- a/")
    assert b"Traceback" not in done.stderr


# --- quick, and nothing of the target


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["status"], {"libcst", "git", "rich", "torch", "numpy", "asyncio"}),
        (["explain"], {"libcst", "git", "rich", "torch", "numpy"}),
        (["diff"], {"git", "rich", "torch", "numpy"}),
        (["apply"], {"git", "rich", "torch", "numpy"}),
    ],
)
def test_only_what_a_command_uses_is_imported(
    sandbox: Sandbox, arguments: list[str], absent: set[str]
) -> None:
    root = sandbox({"megatron-core": "0.14.0"})
    where = [] if arguments == ["explain"] else ["--root", str(root)]
    program = (
        "import sys; from migrator.cli import main\n"
        f"main({[*arguments, *where]!r}, standalone_mode=False)\n"
        f"print(sorted(({absent!r} | {{'nemo', 'megatron'}}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines()[-1] == "[]"


def test_it_runs_as_a_module_with_warnings_as_errors(sandbox: Sandbox) -> None:
    root = sandbox(STACK)
    for arguments in (["status"], ["apply"], ["revert"]):
        line = [sys.executable, "-W", "error::SyntaxWarning", "-W", "error::DeprecationWarning:migrator"]
        done = subprocess.run(
            [*line, "-m", "migrator", *arguments, "--root", str(root)], env=environment(), capture_output=True
        )
        assert (done.returncode, done.stderr) == (0, b"")

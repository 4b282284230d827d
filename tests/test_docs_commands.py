"""What docs/ shows is what happens: commands that parse, examples with exactly the output that is printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

import migrator
from docs.generate import DOCS
from migrator.cli import main
from tests.clones import environment, git, make_clone
from tests.sandbox import make_sandbox

SHOWN_AS = "/srv"  # the folder in which the examples run
STACKS = {
    "nemo:25.07": {"nemo": "2.4.0", "megatron-core": "0.13.1"},
    "nemo:25.09": {"nemo": "2.5.0", "megatron-core": "0.14.0", "megatron-bridge": "0.1.0rc3"},
}
CLONES = {"Megatron-LM": ("megatron-core", "0.14.0", "core_v0.14.0")}
FENCE = re.compile(r'^```(\w+)(?: title="([^"]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(cpfix [a-z][^`]*)`")
END = "--end of command--"
PAGES = sorted(p.name for p in DOCS.glob("*.md"))


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str
    text: str


def blocks(page: str) -> list[Block]:
    return [Block(*found) for found in FENCE.findall((DOCS / page).read_text(encoding="utf-8"))]


def steps(block: Block) -> list[tuple[str, list[str]]]:
    """Each command of a console block, and the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    for row in block.text.splitlines():
        if row.startswith("$ "):
            found.append((row[2:], []))
        else:
            found[-1][1].append(row)
    return found


def cpfix_calls(page: str) -> list[list[str]]:
    """The arguments of every call of cpfix that a page shows."""
    text = (DOCS / page).read_text(encoding="utf-8")
    shown = [c for b in blocks(page) if b.language == "console" for c, _ in steps(b)]
    shown += [m for m in INLINE.findall(FENCE.sub("", text)) if "COMMAND" not in m]
    parts = [part for line in shown for part in re.split(r"&&|[;|>]", line.partition("  #")[0])]
    return [shlex.split(part)[1:] for part in parts if part.split()[:1] == ["cpfix"]]


@pytest.mark.parametrize("page", PAGES)
def test_every_call_has_options_that_exist(page: str) -> None:
    for arguments in cpfix_calls(page):
        name, *rest = arguments
        assert name in main.commands, arguments
        if rest:  # else it is a name in a sentence
            with click.Context(main) as parent:
                main.commands[name].make_context(name, rest, parent=parent)


# --- examples


def run(block: Block, folder: Path) -> str:
    """What the commands print, each output behind its command, with paths as the pages have them."""
    script = "".join(f"( exit ${{code:-0}} )\n{c}\ncode=$?\necho '{END}'\n" for c, _ in steps(block))
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={
            **environment(),
            "PATH": path,
            "CPFIX_VERIFY": "static",  # the trees hold too little to be run
            "GIT_COMMITTER_NAME": "Ada",
            "GIT_COMMITTER_EMAIL": "ada@example.org",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    outputs = ran.stdout.split(f"{END}\n")
    shown = "".join(f"$ {c}\n{out}" for (c, _), out in zip(steps(block), outputs, strict=False))
    return shown.replace(str(folder), SHOWN_AS)


def as_pattern(text: str) -> re.Pattern[str]:
    """A line that is `...` stands for any lines."""
    rows = [r"(?:.*\n)*?" if row == "..." else re.escape(row) + r"\n" for row in text.splitlines()]
    return re.compile("".join(rows))


def place(folder: Path, stack: str) -> None:
    """The software of a container or a clone of upstream's, and a `cpfix` on the path."""
    if stack in STACKS:
        make_sandbox(folder, STACKS[stack])
    else:
        project, version, tag = CLONES[stack]
        git(make_clone(folder / stack, project, version), "tag", tag)
    command = folder / "bin/cpfix"
    command.parent.mkdir()
    top = Path(migrator.__file__).parents[1]
    command.write_text(f'#!/bin/sh\nPYTHONPATH={top} exec {sys.executable} -m migrator "$@"\n')
    command.chmod(0o755)


@pytest.mark.upstream
@pytest.mark.parametrize("page", [p for p in PAGES if any(b.title in {*STACKS, *CLONES} for b in blocks(p))])
def test_examples_print_what_the_page_shows(page: str, tmp_path: Path) -> None:
    titles = dict.fromkeys(b.title for b in blocks(page) if b.title in {*STACKS, *CLONES})
    for number, title in enumerate(titles):
        folder = tmp_path / str(number)
        place(folder, title)
        for block in blocks(page):
            if block.title == title:
                printed = run(block, folder)
                assert as_pattern(block.text).fullmatch(printed), (
                    f"{block.text}\n--- but it prints\n{printed}"
                )


def test_an_example_that_prints_something_else_is_found(tmp_path: Path) -> None:
    block = Block("console", "", "$ echo a; false\na\n$ echo $?\n1\n$ printf 'b\\nc\\nd\\n'\nb\n...\n")
    assert as_pattern(block.text).fullmatch(run(block, tmp_path))
    assert not as_pattern(block.text.replace("1", "0")).fullmatch(run(block, tmp_path))


# --- the data guide's script


def write_pack(path: Path, lengths: list[int], *, mask: int = 0) -> None:
    """A pack of sequences of these run-time lengths; its loss mask is longer by `mask`."""
    import numpy as np

    starts = [sum(lengths[:i]) + i for i in range(len(lengths))]
    stored = sum(lengths) + len(lengths)
    pack = {"input_ids": [1] * stored, "loss_mask": [1] * (stored + mask), "seq_start_id": starts}
    np.save(path, np.array([pack], dtype=object), allow_pickle=True)


@pytest.mark.parametrize(
    ("lengths", "cp", "mask", "code", "said"),
    [
        ([4, 8, 12], 2, 0, 0, "1 packs, 0 sequences"),
        ([4, 8, 12], 4, 0, 1, "pack 0: 2 of 3 sequences, the first ones [4, 12]"),
        ([4, 9], 2, 0, 1, "1 packs, 1 sequences that are no multiples of 4"),
        ([4, 8], 2, 1, 1, "the loss mask has another length"),
    ],
)
def test_script_that_checks_packs(
    tmp_path: Path, lengths: list[int], cp: int, mask: int, code: int, said: str
) -> None:
    (script,) = (b.text for b in blocks("data.md") if b.title == "check_pack.py")
    (tmp_path / "check_pack.py").write_text(script)
    write_pack(tmp_path / "pack.npy", lengths, mask=mask)
    ran = subprocess.run(
        [sys.executable, "check_pack.py", "pack.npy", str(cp)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, said in ran.stdout + ran.stderr) == (code, True), ran.stdout + ran.stderr

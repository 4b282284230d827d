"""A real 25.09 stack in a sandbox, for tests of the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from migrator.commands import Outcome
from migrator.model import State
from migrator.scene import Options
from tests.sandbox import hashes

STACK = {"nemo": "2.5.3", "megatron-core": "0.14.0", "megatron-bridge": "0.1.0rc4"}
STEP = "nemo/collections/llm/gpt/model/base.py"
CORE = "megatron/core/utils.py"


def at(root: Path, **options: Any) -> Options:
    """Options for this root."""
    return Options(roots=(root,), **options)


def states(outcome: Outcome) -> dict[str, State]:
    """The states of the patches that matter in this stack."""
    return {s.patch.name: s.state for s in outcome.states if s.state is not State.NOT_APPLICABLE}


def edit(root: Path, path: str, old: str, new: str) -> None:
    """Change a file once, as somebody else."""
    text = (root / path).read_text()
    assert old in text
    (root / path).write_text(text.replace(old, new, 1))


def code(root: Path) -> dict[str, str]:
    """The hashes of all files but the ledger's."""
    return {path: digest for path, digest in hashes(root).items() if not path.startswith(".cpfix")}

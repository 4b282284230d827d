"""`cpfix apply` as users call it: what it has written is run, and stays only if it trains right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox import hashes
from tests.stack.stacks import NEMO_25, REPOSITORY, interpreter, tree

pytestmark = [pytest.mark.torch, pytest.mark.upstream]
LOSS = "nemo/nemo/lightning/megatron_parallel.py"  # no patch touches it


def apply(roots: list[Path]) -> subprocess.CompletedProcess[str]:
    """`cpfix apply` with its defaults, for the stack's own interpreter."""
    command = [sys.executable, "-m", "migrator", "apply", "--python", interpreter(NEMO_25)]
    env = {name: value for name, value in os.environ.items() if name != "CPFIX_VERIFY"}
    return subprocess.run(
        [*command, *(argument for root in roots for argument in ("--root", str(root)))],
        env=env | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_stack_that_trains_wrong_all_the_same_is_as_before(tmp_path: Path) -> None:
    """Somebody has edited the loss, so that it counts each token of this rank twice at CP > 1."""
    roots = tree(NEMO_25, tmp_path)
    file = tmp_path / LOSS
    right = file.read_text()
    old = "        return loss_sum, num_valid_tokens, {"
    assert right.count(old) == 1
    wrong = f"        loss_sum = loss_sum * parallel_state.get_context_parallel_world_size()\n{old}"
    needed = "        num_valid_tokens = num_valid_tokens.clone().detach().to(torch.int)\n"
    assert right.count(needed) == 1
    imports = f"        from megatron.core import parallel_state\n{needed}"
    file.write_text(right.replace(old, wrong).replace(needed, imports))
    before = hashes(tmp_path)
    done = apply(roots)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "parity: gradients at CP=2: failed" in done.stderr
    assert "Everything was taken back." in done.stderr
    assert hashes(tmp_path) == before

    file.write_text(right)
    done = apply(roots)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verified (static, cpu" in done.stdout
    assert " 0 failed" in done.stdout

"""Real code at the gpu level, on a CPU: a patched stack passes, an unpatched one fails by name."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from migrator.verify.check import Check, Report, from_json
from tests.stack.stacks import NEMO_25, REPOSITORY, apply, failures, interpreter, tree

pytestmark = [pytest.mark.torch, pytest.mark.upstream]
SPLIT = "gpu: the step's split, every token exactly once at CP=2"


def emulated(roots: list[Path], count: int, seed: int, out: Path) -> tuple[list[Check], list[str]]:
    """The checks on `count` devices at CP=2, and the stubs that were used."""
    script = Path(__file__).with_name("emulated_gpu.py")
    command = [interpreter(NEMO_25), "-B", str(script), str(REPOSITORY), str(count), "2", str(seed), str(out)]
    env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [*command, *map(str, roots)], env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(out.read_text())
    return [from_json(check) for check in found["checks"]], found["stubs"]


def test_a_patched_stack_passes(tmp_path: Path, seed: int) -> None:
    roots = tree(NEMO_25, tmp_path)
    apply(roots)
    checks, stubs = emulated(roots, 2, seed, tmp_path / "found.json")
    assert failures(Report(tuple(checks))) == {}
    assert {check.status for check in checks} == {"passed"}
    assert len(checks) == 7
    assert any("one_logger_callback" in stub for stub in stubs)
    assert not any("transformer_engine" in stub for stub in stubs)


def test_an_unpatched_stack_fails_even_with_one_device(tmp_path: Path, seed: int) -> None:
    checks, _ = emulated(tree(NEMO_25, tmp_path), 1, seed, tmp_path / "found.json")
    said = failures(Report(tuple(checks)))
    assert "is invalid for input of size" in said[SPLIT]
    assert {check.detail for check in checks if check.name.startswith("gpu: parity")} == {
        "1 GPUs found, 2 are needed"
    }

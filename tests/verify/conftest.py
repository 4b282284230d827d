"""What the checks of the gpu level say of wrong kernels and stacks: one child process for all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from migrator.verify.check import Check, from_json

REPOSITORY = Path(__file__).parents[2]
GpuFound = Mapping[str, Mapping[str, list[Check]]]  # by group and mutant


@pytest.fixture(scope="session")
def gpu_found(upstream: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory) -> GpuFound:
    """Run gpu_mutants.py."""
    out = tmp_path_factory.mktemp("gpu-mutants") / "found.json"
    command = [sys.executable, str(Path(__file__).with_name("gpu_mutants.py"))]
    command += [str(upstream("megatron-core", "0.14.0")), os.environ["CPFIX_TEST_SEED"], str(out)]
    env = os.environ | {
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
    }
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    loaded = json.loads(out.read_text())
    return {
        group: {mutant: [from_json(check) for check in checks] for mutant, checks in mutants.items()}
        for group, mutants in loaded.items()
    }

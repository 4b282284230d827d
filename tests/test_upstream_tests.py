"""The unit tests that `export` brings along: they fail on the release and pass on the branch, on a CPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from migrator import series
from migrator.cli import main
from tests.clones import FOLDERS, environment, git, make_clone, wheel

pytestmark = [pytest.mark.upstream, pytest.mark.torch]

PLUGIN = Path(__file__).with_name("upstream_stubs.py")
# what the tests import of upstream besides the patched files, and can't do without
EXTRA = {
    "nemo": ["nemo/utils/import_utils.py"],
    "megatron-core": ["megatron/core"],
    "megatron-bridge": [
        *("megatron/bridge/data/datasets/gpt_sft.py", "megatron/bridge/data/datasets/utils.py"),
        *("megatron/bridge/training/utils/flop_utils.py", "megatron/bridge/training/utils/padding_utils.py"),
        "megatron/bridge/utils/safe_pickle.py",
    ],
}
# a version of each shape, and the Megatron-Core that it runs on
SHAPES = {
    "nemo": {
        "2.3.3": "0.12.3",
        "2.4.1": "0.13.1",
        "2.5.0rc0": "0.14.0",
        "2.5.3": "0.14.0",
        "2.7.3": "0.16.1",
    },
    "megatron-core": dict.fromkeys(("0.12.3", "0.14.0", "0.16.1", "0.17.1"), ""),
    "megatron-bridge": {
        **dict.fromkeys(("0.1.0rc1", "0.1.0rc4", "0.2.0rc0", "0.2.0rc6", "0.2.2"), "0.14.0"),
        **dict.fromkeys(("0.3.1", "0.4.2"), "0.16.1"),
        **dict.fromkeys(("0.5.0", "0.5.1"), "0.18.2"),
        "0.6.2": "0.19.2",
    },
}


def clone(folder: Path, project: str, version: str) -> Path:
    """A repository with the branch `packed`, checked out."""
    repo = make_clone(folder, project, version, extra=EXTRA[project])
    everything = [part for patch in series.load().of(project) for part in ("--only", patch.name)]
    made = CliRunner().invoke(main, ["export", "--repo", str(repo), "--branch", "packed", *everything])
    assert made.exit_code == 0, made.output
    git(repo, "checkout", "--quiet", "packed")
    return repo


def megatron_core(folder: Path, version: str) -> Path:
    """The real `megatron.core` by itself; what else newer wheels have needs Python 3.12."""
    core = folder / "core" / "megatron" / "core"
    core.parent.mkdir(parents=True)
    core.symlink_to(wheel("megatron-core", version) / "megatron" / "core")
    return core.parents[1]


def outcomes(repo: Path, tests: list[str], *besides: Path) -> dict[str, str]:
    """Run upstream's tests as upstream would, in a process of their own: `passed` or `failed` by test."""
    plugin = Path(shutil.copy(PLUGIN, repo.parent))
    path = os.pathsep.join(map(str, (repo, plugin.parent, *besides)))
    command = [sys.executable, "-m", "pytest", "-p", "upstream_stubs", "-p", "no:cacheprovider", "-rA", "-q"]
    done = subprocess.run(
        [*command, "-c", os.devnull, "--rootdir", repo, "--import-mode", "importlib", *tests],
        cwd=repo,
        env=environment() | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "TORCHDYNAMO_DISABLE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    rows = re.findall(r"^(PASSED|FAILED|ERROR) \S*?(test_\w+\.py::\S+)", done.stdout, re.MULTILINE)
    assert rows, done.stdout + done.stderr
    return {name: word.lower() for word, name in rows}


@pytest.mark.parametrize(
    ("project", "version", "core"),
    [(project, *shape) for project, shapes in SHAPES.items() for shape in shapes.items()],
)
def test_fail_without_the_patch_and_pass_with_it(
    tmp_path: Path, project: str, version: str, core: str
) -> None:
    repo = clone(tmp_path / "clone", project, version)
    tests = [test.path for patch in series.load().of(project) for test in patch.tests]
    tests = [test for test in tests if (repo / test).exists()]
    assert len(tests) >= 1
    besides = [repo / FOLDERS[project], *([megatron_core(tmp_path, core)] if core else [])]
    with_it = outcomes(repo, tests, *besides)
    assert set(with_it.values()) == {"passed"}, with_it
    git(repo, "checkout", "--quiet", "main", "--", ".")
    without = outcomes(repo, tests, *besides)
    assert set(without) == set(with_it)
    for test in tests:
        mine = {name: word for name, word in without.items() if name.startswith(Path(test).name)}
        assert "failed" in mine.values(), mine

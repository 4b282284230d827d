"""The sandboxes that other tests patch: real code, never the shared cache itself."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from fixtures import fetch
from tests import sandbox as module
from tests.sandbox import hashes, make_sandbox

STACK = {"nemo": "2.5.3", "megatron-core": "0.14.0", "megatron-bridge": "0.1.0rc4"}
Sandbox = Callable[..., Path]


def test_slim_is_what_pip_would_see(sandbox: Sandbox) -> None:
    root = sandbox(STACK)
    found = {canonicalize_name(d.name): d.version for d in importlib.metadata.distributions(path=[str(root)])}
    assert found == {"nemo-toolkit": "2.5.3", "megatron-core": "0.14.0", "megatron-bridge": "0.1.0rc4"}
    for package in ("nemo", "megatron/core", "megatron/bridge"):
        assert (root / package / "__init__.py").is_file()
        assert (root / package / "package_info.py").is_file()
    assert not (root / "megatron/__init__.py").exists()


def test_slim_has_the_files_that_patches_name(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "patches/nemo"
    folder.mkdir(parents=True)
    (folder / "project.toml").write_text('name = "nemo"\nseries = ["one"]\n')
    (folder / "one.toml").write_text(
        'title = "x"\nrequires = []\n[[hunk]]\nfile = "nemo/utils/sequence_packing_utils.py"\n'
        '[[probe]]\nfile = "nemo/collections/llm/gpt/model/base.py"\n'
        '[[insert]]\nfile = "nemo/not_in_this_release.py"\n'
    )
    monkeypatch.setattr(module, "PATCHES", tmp_path / "patches")
    root = sandbox({"nemo": "2.5.3"}, extra=["nemo/collections/llm/gpt/data/core.py", "nemo/lightning/io"])
    python = {name for name in hashes(root) if name.endswith(".py")}
    assert python > {
        "nemo/utils/sequence_packing_utils.py",
        "nemo/utils/__init__.py",
        "nemo/collections/llm/gpt/model/base.py",
        "nemo/collections/llm/gpt/model/__init__.py",
        "nemo/collections/llm/gpt/data/core.py",
        "nemo/lightning/io/mixin.py",
    }
    assert len(python) < 40


def test_full_is_the_whole_wheel(sandbox: Sandbox, upstream: Callable[[str, str], Path]) -> None:
    root = sandbox({"megatron-core": "0.14.0", "megatron-bridge": "0.1.0rc4"}, full=True)
    expected = hashes(upstream("megatron-core", "0.14.0")) | hashes(upstream("megatron-bridge", "0.1.0rc4"))
    assert hashes(root) == expected


@pytest.mark.parametrize("full", [False, True])
def test_writing_into_it_leaves_the_cache_alone(sandbox: Sandbox, full: bool) -> None:
    root = sandbox({"megatron-core": "0.14.0"}, full=full)
    for path in root.rglob("*.py"):
        assert os.access(path, os.W_OK)
        path.write_text("changed")
    tree = fetch.path("megatron-core", "0.14.0")
    assert (tree / "megatron/core/package_info.py").read_text() != "changed"
    assert path.stat().st_nlink == 1


def test_an_unlocked_version_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(fetch.FetchError, match=r"nemo==2\.5\.99 is not in upstream\.lock"):
        make_sandbox(tmp_path, {"nemo": "2.5.99"})

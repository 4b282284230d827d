"""Stacks that aren't there, or can't be imported, are told from those that are."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from migrator.verify import cpu
from migrator.verify.gpu_stacks import CORE, installed, load

pytestmark = pytest.mark.torch


def test_nothing_is_installed_here() -> None:
    assert installed() == []


def test_what_is_installed_is_found_without_importing_it_and_can_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "nemo/collections/llm/gpt/model/base.py"
    file.parent.mkdir(parents=True)
    file.write_text("raise RuntimeError\n")
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = installed()
    assert found.name == "nemo"
    assert pickle.loads(pickle.dumps(found)).name == "nemo"
    assert pickle.loads(pickle.dumps(CORE)).load.args == ("",)


def test_without_megatron_core_there_is_no_stack() -> None:
    stack, loaded = load("nemo.collections.llm.gpt.model.base")
    assert stack is None
    assert loaded.broken is not None
    assert (loaded.broken.name, loaded.broken.status) == ("megatron-core: import", "not run")
    assert "No module named 'megatron'" in loaded.broken.detail


def test_a_stack_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "CORE_FIRST", ())
    stack, loaded = load("nemo.collections.llm.gpt.model.base")
    assert (stack, loaded.name) == (None, "nemo: import")
    assert loaded.broken is not None
    assert loaded.broken.status != "passed"

"""Stand-ins: they serve what is asked for, nothing else, and say so."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from migrator.verify import stubs

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Imports of a test end with it."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_stub_has_everything_and_does_nothing() -> None:
    finder = stubs.install_stubs(["absent_package"])
    deep = importlib.import_module("absent_package.sub.module")
    assert deep.Thing(1, key=2) is not None
    assert deep.Thing[int] is deep.Thing
    assert isinstance(deep.ops.Sequential, type)

    class Mine(deep.Base):  # type: ignore[misc,name-defined]  # any name is there
        pass

    assert Mine() is not None
    assert not hasattr(deep, "__wrapped__")
    assert finder.used == ["absent_package"]


def test_only_the_named_are_stubbed_and_only_used_ones_are_said() -> None:
    finder = stubs.install_stubs(["absent_package", "never_asked_for"])
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("absent_package_two")
    assert finder.used == []


def test_missing_are_those_that_python_cannot_find() -> None:
    assert stubs.missing(["json", "absent_package"]) == ("absent_package",)


def test_a_bare_package_skips_init_and_finds_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "heavy_package" / "inner"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("raise RuntimeError('heavy')\n")
    (package / "leaf.py").write_text("value = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    stubs.bare_package("heavy_package")
    stubs.bare_package("heavy_package.inner")
    assert importlib.import_module("heavy_package.inner.leaf").value == 7
    with pytest.raises(ModuleNotFoundError, match="absent"):
        stubs.bare_package("heavy_package.absent")


def test_code_that_names_cuda_runs_on_cpu_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in (
        (torch.cuda, "current_device"),
        (torch.cuda, "synchronize"),
        (torch, "tensor"),
        (torch.Tensor, "cuda"),
        (torch.Tensor, "pin_memory"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back afterwards
    said = stubs.cpu_torch()
    value = torch.tensor([1, 2], device="cpu", pin_memory=True).cuda(non_blocking=True)
    assert value.to(torch.cuda.current_device()).device.type == "cpu"
    assert "Tensor.cuda" in said


def test_the_kernel_is_named_and_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, stubs.KERNEL, raising=False)
    assert stubs.KERNEL in stubs.cpu_kernel()
    kernel = importlib.import_module(stubs.KERNEL).thd_get_partitioned_indices
    assert kernel(torch.tensor([0, 4], dtype=torch.int32), 4, 2, 1).tolist() == [1, 2]


def test_replaced_attributes_come_back_even_after_an_error() -> None:
    owner = importlib.import_module("types").SimpleNamespace(a=1)
    with pytest.raises(ZeroDivisionError), stubs.replaced(owner, a=0):
        print(1 / owner.a)
    assert owner.a == 1


def test_the_kernel_is_lent_where_none_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("took_none", None), ("took_its_own", "its own")):
        module = types.ModuleType(name)
        module.tex = value  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "never_asks", types.ModuleType("never_asks"))
    kernel = types.ModuleType(stubs.KERNEL)
    monkeypatch.setitem(sys.modules, stubs.KERNEL, kernel)
    for name in ("took_none", "took_its_own", "never_asks"):
        stubs.lend_kernel(name)
    assert sys.modules["took_none"].tex is kernel
    assert sys.modules["took_its_own"].tex == "its own"
    assert not hasattr(sys.modules["never_asks"], "tex")

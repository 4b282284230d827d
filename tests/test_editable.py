"""Editable installs as setuptools really makes them, and what a real Python makes of those."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from migrator.editable import read_finder
from migrator.installs import find_installs
from tests.trees import (
    BRIDGE,
    CORE,
    NEMO,
    PROJECTS,
    agreed,
    install_editable,
    make_venv,
    put,
    put_project,
    put_wheel,
)


@dataclass(frozen=True)
class Stack:
    """The three projects installed as containers have them."""

    python: Path
    site: Path
    opt: Path


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    folder = tmp_path_factory.mktemp("stack")
    put_project(folder / "opt/NeMo", NEMO, "2.5.3")  # a finder with a mapping
    put_project(folder / "opt/megatron-lm", CORE, "0.14.0")  # a mapping and a namespace hook
    put_project(folder / "opt/Megatron-Bridge", BRIDGE, "0.1.0rc3", src=True)  # a plain .pth
    python, site = make_venv(folder / "venv")
    install_editable(python, *(folder / "opt" / name for name in ("NeMo", "megatron-lm", "Megatron-Bridge")))
    return Stack(python, site, folder / "opt")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_three_ways_in_which_setuptools_installs(stack: Stack, here: Path) -> None:
    assert sorted(file.name for file in stack.site.glob("__editable__*_finder.py")) == [
        "__editable___megatron_core_0_14_0_finder.py",
        "__editable___nemo_toolkit_2_5_3_finder.py",
    ]
    found = agreed(stack.python, here)
    assert {
        name: [(i.root, i.version, i.kind, i.imports, i.notes) for i in of_one]
        for name, of_one in found.items()
    } == {
        "nemo": [(stack.opt / "NeMo", "2.5.3", "editable", True, ())],
        "megatron-core": [(stack.opt / "megatron-lm", "0.14.0", "editable", True, ())],
        "megatron-bridge": [(stack.opt / "Megatron-Bridge/src", "0.1.0rc3", "editable", True, ())],
    }


def test_a_site_packages_root_follows_them(stack: Stack, here: Path) -> None:
    by_root = find_installs(PROJECTS, [stack.site])
    assert by_root == [install for of_one in agreed(stack.python, here).values() for install in of_one]
    assert by_root == find_installs(PROJECTS, [stack.site.parents[2]])


def test_metadata_is_older_than_the_code(stack: Stack, here: Path) -> None:
    version_file = stack.opt / "NeMo" / NEMO.version_file
    before = version_file.read_text()
    version_file.write_text(before.replace("PATCH = 3", "PATCH = 4"))
    (found,) = agreed(stack.python, here)["nemo"]
    version_file.write_text(before)
    info = stack.site / "nemo_toolkit-2.5.3.dist-info"
    assert (found.version, found.notes) == (
        "2.5.4",
        (f"{info} says version 2.5.3, the code says 2.5.4: the code counts",),
    )


def test_a_clone_on_pythonpath_comes_first(stack: Stack, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for project in PROJECTS:
        put(here / "clone", project)
    monkeypatch.setenv("PYTHONPATH", str(here / "clone"))
    for of_one in agreed(stack.python, here).values():
        assert [(i.kind, i.imports) for i in of_one] == [("copy", True), ("editable", False)]


def test_a_wheel_that_was_left_behind_comes_first(stack: Stack, here: Path) -> None:
    """What a path entry has is asked before the finders, and site-packages before its `.pth` entries."""
    python, site = make_venv(here / "venv")
    shutil.copytree(stack.site, site, dirs_exist_ok=True)
    for project in PROJECTS:
        put_wheel(site, project, "9.9.9")
    for of_one in agreed(python, here).values():
        assert [(i.kind, i.imports) for i in of_one] == [("wheel", True), ("editable", False)]


def test_a_stray_init_does_not_hide_what_a_finder_maps(
    stack: Stack, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "stray/megatron").mkdir(parents=True)
    (here / "stray/megatron/__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(here / "stray"))
    found = agreed(stack.python, here)
    assert [i.imports for i in found["megatron-core"]] == [True]  # mapped by its full name
    assert [i.imports for i in found["megatron-bridge"]] == [False]  # on a path that is no longer looked at
    assert f"{here / 'stray/megatron/__init__.py'} hides it" in found["megatron-bridge"][0].notes[0]


def test_finders_on_pythonpath_are_not_started(
    stack: Stack, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, _ = make_venv(here / "venv")
    monkeypatch.setenv("PYTHONPATH", str(stack.site))
    assert agreed(python, here) == {"nemo": [], "megatron-core": [], "megatron-bridge": []}


def test_two_editable_installs_of_one_project(stack: Stack, here: Path) -> None:
    """The finder whose .pth file comes first answers first; its name decides."""
    python, site = make_venv(here / "venv")
    shutil.copytree(stack.site, site, dirs_exist_ok=True)
    put(here / "other", NEMO)
    original = site / "__editable___nemo_toolkit_2_5_3_finder.py"
    text = original.read_text().replace(str(stack.opt / "NeMo/nemo"), str(here / "other/nemo"))
    original.with_name("__editable___aaa_finder.py").write_text(text)
    (site / "__aaa.pth").write_text("import __editable___aaa_finder; __editable___aaa_finder.install()")
    (site / "zzz.pth").write_text("import __editable___aaa_finder; __editable___aaa_finder.install()")
    assert sum(i.imports for i in agreed(python, here)["nemo"]) == 1
    (site / "__aaa.pth").unlink()
    assert [(i.root, i.imports) for i in agreed(python, here)["nemo"]] == [
        (stack.opt / "NeMo", True),
        (here / "other", False),
    ]


def test_a_namespace_hook_with_folders_of_its_own(stack: Stack, here: Path) -> None:
    """setuptools lists a namespace's folders where the project's layout lets it."""
    python, site = make_venv(here / "venv")
    shutil.copytree(stack.site, site, dirs_exist_ok=True)
    put(here / "third", BRIDGE)
    (site / "__editable__.megatron_bridge-0.1.0rc3.pth").unlink()
    finder = site / "__editable___megatron_core_0_14_0_finder.py"
    text = finder.read_text()
    assert text.count("{'megatron': []}") == 1
    finder.write_text(text.replace("{'megatron': []}", repr({"megatron": [str(here / "third/megatron")]})))
    found = agreed(python, here)
    assert [(i.root, i.kind, i.imports) for i in found["megatron-bridge"]] == [
        (here / "third", "editable", True)
    ]
    assert [i.imports for i in found["megatron-core"]] == [True]


def test_a_mapping_of_the_namespace_folder(stack: Stack, here: Path) -> None:
    python, site = make_venv(here / "venv")
    shutil.copytree(stack.site, site, dirs_exist_ok=True)
    finder = site / "__editable___megatron_core_0_14_0_finder.py"
    text = finder.read_text()
    folder = stack.opt / "megatron-lm/megatron"
    finder.write_text(
        text.replace(f"{{'megatron.core': {str(folder / 'core')!r}}}", f"{{'megatron': {str(folder)!r}}}")
    )
    assert [(i.root, i.imports) for i in agreed(python, here)["megatron-core"]] == [(folder.parent, True)]


def test_strict_mode_links_every_file(here: Path) -> None:
    put_project(here / "LM", CORE, "0.14.0")
    python, _ = make_venv(here / "venv")
    install_editable(python, here / "LM", mode="strict")
    (found,) = agreed(python, here)["megatron-core"]
    assert (found.version, found.kind, found.imports) == ("0.14.0", "editable", True)
    assert found.root.is_relative_to(here / "LM/build")
    assert any(note.startswith(("files are symlinks", "files are hard-linked")) for note in found.notes)


def test_a_finder_as_the_first_setuptools_wrote_it(tmp_path: Path) -> None:
    file = tmp_path / "f.py"
    file.write_text(
        "import sys\nMAPPING = {'nemo': '/a/nemo'}\nNAMESPACES = {'n': ['/a/n']}\n"
        "PATH_PLACEHOLDER = 'x' + '.__path_hook__'\n"
    )
    finder = read_finder(file)
    assert finder is not None
    assert (finder.mapping, finder.namespaces) == ({"nemo": Path("/a/nemo")}, {"n": (Path("/a/n"),)})
    assert finder.placeholder == "x.__path_hook__"


@pytest.mark.parametrize(
    "text", ["", "MAPPING = compute()", "MAPPING = ['nemo']", "MAPPING = {", "NAMESPACES = {}"]
)
def test_what_is_no_finder(text: str, tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text(text)
    assert read_finder(tmp_path / "f.py") is None
    assert read_finder(tmp_path / "missing.py") is None

"""What a --root may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrator.installs import find_installs
from migrator.model import Install, UsageError
from tests.trees import BRIDGE, CORE, NEMO, PROJECTS, put, put_wheel


def found(*roots: Path) -> list[tuple[str, Path, bool]]:
    return [(i.project, i.root, i.imports) for i in find_installs(PROJECTS, roots)]


@pytest.fixture
def opt(tmp_path: Path) -> Path:
    """A folder of checkouts, as containers have it."""
    put(tmp_path / "opt/NeMo", NEMO)
    put(tmp_path / "opt/megatron-lm", CORE)
    put(tmp_path / "opt/Megatron-Bridge/src", BRIDGE)
    put(tmp_path / "opt/Megatron-Bridge/3rdparty/Megatron-LM", CORE)
    (tmp_path / "opt/data.bin").touch()
    return tmp_path / "opt"


def test_a_site_packages_folder(tmp_path: Path) -> None:
    for project in PROJECTS:
        put_wheel(tmp_path, project)
    assert found(tmp_path) == [(project.name, tmp_path, True) for project in PROJECTS]


def test_checkouts_with_and_without_src(opt: Path) -> None:
    assert found(opt / "NeMo") == [("nemo", opt / "NeMo", True)]
    assert found(opt / "megatron-lm") == [("megatron-core", opt / "megatron-lm", True)]
    assert found(opt / "Megatron-Bridge") == [("megatron-bridge", opt / "Megatron-Bridge/src", True)]
    assert found(opt / "Megatron-Bridge/src") == [("megatron-bridge", opt / "Megatron-Bridge/src", True)]


def test_a_folder_of_checkouts(opt: Path) -> None:
    everything = [
        ("nemo", opt / "NeMo", True),
        ("megatron-core", opt / "megatron-lm", True),
        ("megatron-bridge", opt / "Megatron-Bridge/src", True),
    ]
    assert found(opt) == everything
    assert found(opt / "megatron-lm", opt, opt / "NeMo") == everything


def test_the_first_of_two_roots_imports(tmp_path: Path) -> None:
    put(tmp_path / "b", NEMO)
    put(tmp_path / "a", NEMO)
    assert found(tmp_path / "b", tmp_path / "a") == [
        ("nemo", tmp_path / "b", True),
        ("nemo", tmp_path / "a", False),
    ]


@pytest.mark.parametrize("site", ["lib/python3.12/site-packages", "lib/python3/dist-packages"])
def test_an_environment_prefix(site: str, tmp_path: Path) -> None:
    put_wheel(tmp_path / site, NEMO)
    (tmp_path / "lib64").symlink_to("lib")
    put(tmp_path / "elsewhere", CORE)
    (tmp_path / site / "core.pth").write_text("../../../elsewhere\n")
    assert found(tmp_path) == [
        ("nemo", tmp_path / site, True),
        ("megatron-core", tmp_path / "elsewhere", True),
    ]
    (install,) = find_installs([NEMO], [tmp_path])
    assert install.notes == ()  # `lib` was taken, and not the link to it


def test_editable_installs_in_a_site_packages_folder_without_packages(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    put(tmp_path / "LM", CORE)
    (site / "__editable__.core.pth").write_text(
        "import __editable___core_finder; __editable___core_finder.install()"
    )
    (site / "__editable___core_finder.py").write_text(
        f"MAPPING = {{'megatron.core': {str(tmp_path / 'LM/megatron/core')!r}}}\n"
        "NAMESPACES = {'megatron': []}\nPATH_PLACEHOLDER = 'core' + '.__path_hook__'\n"
    )
    assert found(site) == [("megatron-core", tmp_path / "LM", True)]
    (install,) = find_installs([CORE], [site])
    assert install.kind == "editable"


def test_a_checkpoint_in_a_checkout_is_no_path_file(opt: Path) -> None:
    put(opt / "other", CORE)
    (opt / "NeMo" / "model.pth").write_text(str(opt / "other"))
    assert found(opt / "NeMo") == [("nemo", opt / "NeMo", True)]


def test_a_root_with_nothing_in_it_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    assert found(tmp_path) == []
    assert found(tmp_path / "site-packages") == []


def test_only_the_projects_asked_for_are_looked_for(opt: Path) -> None:
    installs: list[Install] = find_installs([CORE], [opt])
    assert [i.project for i in installs] == ["megatron-core"]


def test_a_missing_root_is_named(tmp_path: Path) -> None:
    put(tmp_path, NEMO)
    with pytest.raises(UsageError, match=f"--root {tmp_path / 'gone'} does not exist"):
        found(tmp_path, tmp_path / "gone")
    with pytest.raises(UsageError, match="is not a folder"):
        found(tmp_path / NEMO.version_file)


@pytest.mark.parametrize("inside", ["nemo", "nemo/collections/llm", "megatron", "megatron/core"])
def test_a_root_inside_a_package_is_told_the_right_one(inside: str, tmp_path: Path) -> None:
    put(tmp_path, NEMO)
    put(tmp_path, CORE)
    (tmp_path / inside).mkdir(parents=True, exist_ok=True)
    with pytest.raises(UsageError, match=f"give the folder above it: --root {tmp_path}$"):
        found(tmp_path / inside)


def test_a_relative_root(opt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(opt / "NeMo")
    assert found(Path()) == [("nemo", opt / "NeMo", True)]
    assert found(Path("../megatron-lm")) == [("megatron-core", opt / "megatron-lm", True)]

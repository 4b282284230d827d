"""What is read from metadata folders, and what is left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from migrator.dist_info import Dist, canonical, distributions


def info(folder: Path, name: str, **files: str) -> Path:
    path = folder / name
    path.mkdir()
    for file, text in files.items():
        (path / file.replace("__", ".")).write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("nemo_toolkit-2.5.3.dist-info", "2.5.3"),
        ("nemo-toolkit-2.5.3.dist-info", "2.5.3"),
        ("Nemo.Toolkit-2.5.0rc0+local.1.dist-info", "2.5.0rc0+local.1"),
        ("nemo_toolkit-2.5.3-py3.12.egg-info", "2.5.3"),
        ("nemo_toolkit.egg-info", "1.0"),
        ("nemo_toolkit.dist-info", "1.0"),
    ],
)
def test_names_and_versions(name: str, version: str, tmp_path: Path) -> None:
    path = info(tmp_path, name)
    (path / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: x\nVersion: 1.0\n")
    assert distributions(tmp_path, ["nemo-toolkit"]) == (Dist(path, "nemo-toolkit", version),)


def test_an_egg_info_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "megatron_core.egg-info"
    path.write_text("Name: megatron-core\nVersion: 0.14.0\n")
    assert distributions(tmp_path, ["megatron-core"]) == (Dist(path, "megatron-core", "0.14.0"),)


def test_others_are_left_alone(tmp_path: Path) -> None:
    for name in (
        "nemo_toolkit_extra-1.0.dist-info",
        "nemo-1.0.dist-info",
        "nemo_toolkit-2.5.3",
        "megatron_core.py",
    ):
        info(tmp_path, name)
    assert distributions(tmp_path, ["nemo-toolkit", "megatron-core"]) == ()
    assert distributions(tmp_path / "missing", ["nemo-toolkit"]) == ()


def test_a_record_lists_the_package_or_not(tmp_path: Path) -> None:
    dist = Dist(info(tmp_path, "a.dist-info", RECORD="megatron/core/utils.py,sha256=x,1\n"), "a", "")
    assert dist.lists("megatron/core")
    assert not dist.lists("megatron/bridge")
    assert not dist.lists("core")
    assert not Dist(info(tmp_path, "b.dist-info"), "b", "").lists("megatron/core")


def test_where_an_editable_install_points(tmp_path: Path) -> None:
    folder = tmp_path / "with blank"
    folder.mkdir()
    origin = {"url": folder.as_uri(), "dir_info": {"editable": True}}
    dist = Dist(info(tmp_path, "a.dist-info", direct_url__json=json.dumps(origin)), "a", "")
    assert dist.project_folder() == folder
    (tmp_path / "a.egg-link").write_text(f"{folder}\n../\n")
    assert Dist(tmp_path / "a.egg-link", "a", "").project_folder() == folder


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "not json",
        '{"url": "file:///x", "dir_info": {}}',
        '{"url": "https://example.org/x", "dir_info": {"editable": true}}',
        '{"url": "https://example.org/x.git", "vcs_info": {"vcs": "git"}}',
        '{"dir_info": {"editable": true}}',
    ],
)
def test_what_points_nowhere(text: str, tmp_path: Path) -> None:
    assert Dist(info(tmp_path, "a.dist-info", direct_url__json=text), "a", "").project_folder() is None
    (tmp_path / "a.egg-link").write_text("")
    assert Dist(tmp_path / "a.egg-link", "a", "").project_folder() is None


def test_canonical_names() -> None:
    assert {canonical(name) for name in ("NeMo_Toolkit", "nemo-toolkit", "nemo._-toolkit")} == {
        "nemo-toolkit"
    }

"""find_installs against small trees and what a real Python makes of them."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from migrator.installs import find_installs, search_path_of
from migrator.model import EnvironmentRefuses, Install
from tests.trees import BRIDGE, CORE, NEMO, PROJECTS, agreed, make_venv, put, put_wheel


@dataclasses.dataclass(frozen=True)
class Env:
    """A virtual environment in an empty folder."""

    python: Path
    site: Path
    cwd: Path

    def installs(self) -> dict[str, list[Install]]:
        return agreed(self.python, self.cwd)


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Env:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    python, site = make_venv(tmp_path / "venv")
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    monkeypatch.chdir(cwd)
    return Env(python, site, cwd)


def flat(installs: dict[str, list[Install]]) -> list[Install]:
    return [install for of_one in installs.values() for install in of_one]


def test_nothing_is_installed(env: Env) -> None:
    assert env.installs() == {"nemo": [], "megatron-core": [], "megatron-bridge": []}


def test_wheels_in_site_packages(env: Env) -> None:
    for project, version in ((NEMO, "2.5.0rc0"), (CORE, "0.16.0rc0.dev102440"), (BRIDGE, "0.3.1")):
        put_wheel(env.site, project, version)
    found = env.installs()
    assert [(i.version, i.kind, i.imports, i.writable, i.git, i.notes, i.root) for i in flat(found)] == [
        (version, "wheel", True, True, None, (), env.site)
        for version in ("2.5.0rc0", "0.16.0rc0.dev102440", "0.3.1")
    ]
    assert found["megatron-core"][0].distribution == "megatron-core"


def test_a_clone_on_pythonpath_comes_before_the_wheel(
    env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_wheel(env.site, NEMO, "2.5.0")
    put(tmp_path / "clone", NEMO, "2.5.3")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "clone"))
    clone, wheel = env.installs()["nemo"]
    assert (clone.version, clone.kind, clone.imports, clone.notes) == ("2.5.3", "copy", True, ())
    assert (wheel.version, wheel.kind, wheel.imports) == ("2.5.0", "wheel", False)
    assert wheel.notes == (f"not imported: {clone.root / 'nemo'} comes first on the path",)


def test_two_copies_on_the_path(env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        put(tmp_path / name, CORE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "two"), str(tmp_path / "one")]))
    assert [(i.root.name, i.imports) for i in env.installs()["megatron-core"]] == [
        ("two", True),
        ("one", False),
    ]


def test_the_namespace_is_spread_over_two_folders(
    env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_wheel(env.site, CORE, "0.14.0")
    put(tmp_path / "Megatron-Bridge/src", BRIDGE, "0.1.0rc3")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "Megatron-Bridge/src"))
    found = env.installs()
    assert [(i.root, i.imports) for i in found["megatron-core"]] == [(env.site, True)]
    assert [(i.root, i.imports) for i in found["megatron-bridge"]] == [
        (tmp_path / "Megatron-Bridge/src", True)
    ]


@pytest.mark.parametrize("where", ["in front", "behind"])
def test_a_stray_init_hides_the_other_half_of_the_namespace(
    where: str, env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stray = tmp_path / "old" / "megatron" / "__init__.py"
    put(tmp_path / "old", CORE)
    stray.touch()
    put_wheel(env.site, BRIDGE)
    if where == "in front":
        monkeypatch.setenv("PYTHONPATH", str(stray.parents[1]))
    else:  # a regular package anywhere on the path wins over namespace folders in front of it
        (env.site / "old.pth").write_text(f"{stray.parents[1]}\n")
    found = env.installs()
    assert [i.imports for i in found["megatron-core"]] == [True]
    (bridge,) = found["megatron-bridge"]
    assert not bridge.imports
    assert any(note.startswith(f"cannot be imported: {stray} hides it") for note in bridge.notes)


def test_a_stray_init_in_its_own_folder_hides_everything(env: Env, tmp_path: Path) -> None:
    put_wheel(env.site, CORE)
    stray = env.site / "megatron" / "__init__.py"
    put_wheel(env.site, BRIDGE)
    stray.touch()
    assert all(i.imports for i in flat(env.installs()))  # both are in that one package
    other = tmp_path / "other" / "megatron" / "__init__.py"
    other.parent.mkdir(parents=True)
    other.touch()
    (env.site / "_first.pth").write_text(f"import sys; sys.path.insert(0, {str(tmp_path / 'other')!r})\n")
    hidden = flat(env.installs())
    assert [i.imports for i in hidden] == [False, False]
    assert all(f"{other} hides it" in i.notes[0] for i in hidden)


@pytest.mark.parametrize("name", ["nemo.py", "megatron.py"])
def test_a_script_of_the_same_name_hides_the_package(
    name: str, env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for project in PROJECTS:
        put_wheel(env.site, project)
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / name
    script.touch()
    monkeypatch.setenv("PYTHONPATH", str(script.parent))
    hidden = [i for i in flat(env.installs()) if not i.imports]
    assert [i.project for i in hidden] == (
        ["nemo"] if name == "nemo.py" else ["megatron-core", "megatron-bridge"]
    )
    assert all(f"{script} hides it" in i.notes[0] for i in hidden)


def test_a_folder_of_the_name_without_code_is_no_install(
    env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_wheel(env.site, NEMO)
    (tmp_path / "work" / "nemo" / "checkpoints").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "work"))
    assert [(i.root, i.imports) for i in env.installs()["nemo"]] == [(env.site, True)]


def test_a_package_that_lost_its_init_is_told_by_its_version_file(tmp_path: Path) -> None:
    (tmp_path / "empty" / "nemo").mkdir(parents=True)
    (put(tmp_path / "NeMo", NEMO, "2.3.3") / "__init__.py").unlink()
    path = [str(tmp_path / "empty"), str(tmp_path / "NeMo")]
    found = [(i.root, i.version, i.imports) for i in find_installs([NEMO], search_path=path)]
    assert found == [(tmp_path / "NeMo", "2.3.3", True)]


def test_pth_files_count_in_site_packages_and_not_on_pythonpath(
    env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "clone", NEMO)
    (env.site / "nemo.pth").write_text(f"# a comment\n\n{tmp_path / 'clone'}\n{tmp_path / 'missing'}\n")
    assert [(i.kind, i.imports) for i in env.installs()["nemo"]] == [("editable", True)]
    other = tmp_path / "other" / "site-packages"
    other.mkdir(parents=True)
    (other / "core.pth").write_text(str(put(tmp_path / "core", CORE).parents[1]))
    monkeypatch.setenv("PYTHONPATH", str(other))
    assert env.installs()["megatron-core"] == []


def test_site_packages_that_pythonpath_names_too_keep_their_pth_files(
    env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "clone", NEMO)
    (env.site / "nemo.pth").write_text(str(tmp_path / "clone"))
    monkeypatch.setenv("PYTHONPATH", str(env.site))
    assert [(i.kind, i.imports) for i in env.installs()["nemo"]] == [("editable", True)]


def test_an_empty_entry_is_the_current_folder(env: Env) -> None:
    put(env.cwd, NEMO, "2.4.1")
    assert find_installs(PROJECTS, search_path=search_path_of(str(env.python))) == []
    (found,) = find_installs(PROJECTS, search_path=["", *search_path_of(str(env.python))])
    assert (found.root, found.version, found.imports) == (env.cwd, "2.4.1", True)


def test_the_running_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(put(tmp_path, NEMO, "2.6.1").parent), *sys.path])
    assert next((i.root, i.version, i.imports) for i in find_installs([NEMO])) == (tmp_path, "2.6.1", True)


def test_nothing_of_the_target_runs(env: Env, tmp_path: Path) -> None:
    for project in PROJECTS:
        folder = put_wheel(env.site, project)
        for file in (folder / "__init__.py", folder / "package_info.py"):
            file.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n" + file.read_text())
    (env.site / "__editable___x_finder.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nMAPPING = {{}}\n"
    )
    (env.site / "x.pth").write_text("import __editable___x_finder\n")
    assert len(find_installs(PROJECTS, search_path=[str(env.site)])) == 3
    assert not (tmp_path / "ran").exists()


# One copy, several names


def test_one_copy_reached_twice_is_one_install(
    env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "NeMo", NEMO)
    (tmp_path / "link").symlink_to("NeMo")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "link"), str(tmp_path / "NeMo")]))
    (found,) = env.installs()["nemo"]
    assert (found.root, found.imports) == (tmp_path / "NeMo", True)
    assert found.notes == (
        f"reached through a symlink: {tmp_path / 'link/nemo'} -> {tmp_path / 'NeMo/nemo'}",
    )


def test_a_linked_package_folder_leads_to_the_real_root(env: Env, tmp_path: Path) -> None:
    put(tmp_path / "Megatron-LM", CORE)
    (env.site / "megatron").mkdir()
    (env.site / "megatron" / "core").symlink_to(tmp_path / "Megatron-LM/megatron/core")
    (found,) = env.installs()["megatron-core"]
    assert (found.root, found.imports) == (tmp_path / "Megatron-LM", True)
    assert "reached through a symlink" in found.notes[0]


def test_a_link_of_another_name_keeps_the_root_that_has_the_name(env: Env, tmp_path: Path) -> None:
    put(tmp_path, NEMO)
    (tmp_path / "nemo").rename(tmp_path / "nemo-src")
    (env.site / "nemo").symlink_to(tmp_path / "nemo-src")
    (found,) = env.installs()["nemo"]
    assert (found.root, found.version, found.imports) == (env.site, "1.2.3", True)
    assert found.notes == (f"reached through a symlink: {env.site / 'nemo'} -> {tmp_path / 'nemo-src'}",)


def test_links_to_files_are_said(tmp_path: Path) -> None:
    cached = put(tmp_path / "cache", NEMO) / "package_info.py"
    hard, soft = put(tmp_path / "hard", NEMO), put(tmp_path / "soft", NEMO)
    for folder in (hard, soft):
        (folder / "package_info.py").unlink()
    (hard / "package_info.py").hardlink_to(cached)
    (soft / "package_info.py").symlink_to(cached)
    one, other = find_installs([NEMO], search_path=[str(hard.parent), str(soft.parent)])
    assert "files are hard-linked (uv cache?): cpfix breaks the link when it writes" in one.notes
    assert f"files are symlinks: {soft / 'package_info.py'} -> {cached}" in other.notes


# What metadata claims


def test_the_version_file_wins_over_metadata(tmp_path: Path) -> None:
    put_wheel(tmp_path, NEMO, "2.5.3", claims="2.5.0")
    put_wheel(tmp_path, CORE, "0.15.0", claims="0.15.0+0d8e071")
    nemo, core = find_installs([NEMO, CORE], search_path=[str(tmp_path)])
    assert (nemo.version, nemo.kind) == ("2.5.3", "wheel")
    info = tmp_path / "nemo_toolkit-2.5.0.dist-info"
    assert nemo.notes == (f"{info} says version 2.5.0, the code says 2.5.3: the code counts",)
    assert (core.version, core.notes) == ("0.15.0", ())


def test_an_egg_info_beside_a_clone_is_compared_and_makes_no_wheel(tmp_path: Path) -> None:
    put(tmp_path, BRIDGE, "0.2.2")
    (tmp_path / "megatron_bridge.egg-info").mkdir()
    (tmp_path / "megatron_bridge.egg-info" / "PKG-INFO").write_text("Metadata-Version: 2.4\nVersion: 0.2.0\n")
    (found,) = find_installs([BRIDGE], search_path=[str(tmp_path)])
    assert found.kind == "copy"
    assert "says version 0.2.0" in found.notes[0]


def test_metadata_of_another_distribution_is_none_of_ours(tmp_path: Path) -> None:
    put(tmp_path, NEMO, "2.5.3")
    info = tmp_path / "nemo_run-0.5.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("nemo/__init__.py,,\n")
    (found,) = find_installs([NEMO], search_path=[str(tmp_path)])
    assert (found.kind, found.notes) == ("copy", ())


def test_a_version_that_cannot_be_read_is_empty_and_said(tmp_path: Path) -> None:
    put(tmp_path, NEMO)
    (tmp_path / NEMO.version_file).write_text("import broken(\n")
    put(tmp_path, CORE)
    (tmp_path / CORE.version_file).unlink()
    nemo, core = find_installs([NEMO, CORE], search_path=[str(tmp_path)])
    assert (nemo.version, nemo.notes) == (
        "",
        (f"version unknown: {tmp_path / NEMO.version_file}: it is not valid Python",),
    )
    assert core.version == ""
    assert "No such file" in core.notes[0]


def test_an_egg_link_makes_an_editable(tmp_path: Path) -> None:
    put(tmp_path / "NeMo", NEMO)
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "nemo-toolkit.egg-link").write_text(f"{tmp_path / 'NeMo'}\n.\n")
    path = [str(tmp_path / "NeMo"), str(tmp_path / "site-packages")]
    assert [i.kind for i in find_installs([NEMO], search_path=path)] == ["editable"]


def test_an_environment_inside_an_editable_checkout_is_not_that_checkout(tmp_path: Path) -> None:
    site = tmp_path / "NeMo/.venv/lib/python3.12/site-packages"
    put(site, NEMO)
    info = site / "nemo_toolkit-1.2.3.dist-info"
    info.mkdir()
    origin = {"url": (tmp_path / "NeMo").as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(origin))
    assert [i.kind for i in find_installs([NEMO], search_path=[str(site)])] == ["copy"]
    put(tmp_path / "NeMo", NEMO)
    path = [str(tmp_path / "NeMo"), str(site)]
    assert [i.kind for i in find_installs([NEMO], search_path=path)] == ["editable", "copy"]


def test_a_mapping_to_a_folder_of_another_name_is_refused_and_not_skipped(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    put(tmp_path, NEMO)
    (tmp_path / "nemo").rename(tmp_path / "lib")
    (site / "__editable___n_finder.py").write_text(f"MAPPING = {{'nemo': {str(tmp_path / 'lib')!r}}}\n")
    (site / "n.pth").write_text("import __editable___n_finder; __editable___n_finder.install()")
    with pytest.raises(EnvironmentRefuses, match=r"nemo is imported from .*/lib, a folder of another name"):
        find_installs([NEMO], search_path=[str(site)])


# Git and the disk


def test_a_checkout_has_its_commit(tmp_path: Path) -> None:
    put(tmp_path / "src", BRIDGE)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    (found,) = find_installs(PROJECTS, [tmp_path])
    assert (found.kind, found.root) == ("checkout", tmp_path / "src")
    assert found.git is not None
    assert (found.git.head, found.git.dirty) == (head, False)


def test_what_os_access_forbids_is_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = put(tmp_path, CORE)
    real = os.access
    for forbidden in (package, tmp_path):
        monkeypatch.setattr(os, "access", lambda path, mode, no=forbidden: path != no and real(path, mode))
        assert [i.writable for i in find_installs([CORE], search_path=[str(tmp_path)])] == [False]


def test_an_unreadable_entry_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "good", NEMO)
    real = Path.stat

    def stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.is_relative_to(tmp_path / "bad"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", stat)
    path = [str(tmp_path / "bad"), str(tmp_path / "file.zip"), str(tmp_path / "good")]
    assert [i.root for i in find_installs([NEMO], search_path=path)] == [tmp_path / "good"]


def test_an_install_can_be_told_as_json(tmp_path: Path) -> None:
    put_wheel(tmp_path, NEMO)
    (found,) = find_installs([NEMO], search_path=[str(tmp_path)])
    told = json.loads(json.dumps(dataclasses.asdict(found), default=str))
    assert told["root"] == str(tmp_path)
    assert told["notes"] == []

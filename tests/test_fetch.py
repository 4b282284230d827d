"""fixtures/fetch.py against wheels made here and a folder as the index: no network."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name, parse_wheel_filename

from fixtures import fetch
from fixtures.fetch import FetchError, Wheel
from tests.sandbox import PACKAGES

MakeWheel = Callable[..., Wheel]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only index, and an empty cache beside it."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("CPFIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def make_wheel(index: Path) -> MakeWheel:
    """`make_wheel(version, tag, text)`: a wheel of `some_thing` on the index, as a lock entry."""

    def make(version: str = "1.0", tag: str = "py3-none-any", text: str = "") -> Wheel:
        info = f"some_thing-{version}.dist-info"
        file = index / f"some_thing-{version}-{tag}.whl"
        python = f">=3.{tag[3:5]}" if tag.startswith("cp") else ">=3.10"
        metadata = f"Metadata-Version: 2.1\nName: some-thing\nVersion: {version}\nRequires-Python: {python}\n"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("some/thing/__init__.py", text)
            archive.writestr(f"{info}/METADATA", metadata + "Requires-Dist: nowhere-to-be-found\n")
            archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
            archive.writestr(f"{info}/RECORD", "")
        return Wheel("some", version, file.name, hashlib.sha256(file.read_bytes()).hexdigest())

    return make


def in_cache() -> set[str]:
    return {path.name for path in fetch.cache_dir().iterdir()}


class TestLockFile:
    def test_every_entry_is_what_its_file_name_says(self) -> None:
        for wheel in fetch.lock():
            name, version, _, _ = parse_wheel_filename(wheel.filename)
            assert str(version) == wheel.version
            assert name == canonicalize_name(wheel.distribution)
            assert re.fullmatch(r"[0-9a-f]{64}", wheel.sha256)
            assert wheel.project in (name, name.removesuffix("-toolkit"))

    def test_nothing_is_there_twice(self) -> None:
        wheels = fetch.lock()
        assert len({w.sha256 for w in wheels}) == len({w.folder for w in wheels}) == len(wheels)

    def test_all_three_projects_are_locked_in_version_order(self) -> None:
        assert {w.project for w in fetch.lock()} == set(PACKAGES)
        for project in PACKAGES:
            versions = [parse_wheel_filename(w.filename)[1] for w in fetch.find(project, fetch.lock())]
            assert versions == sorted(versions)

    @pytest.mark.parametrize(
        "spec",
        [
            "nemo==2.5.0",  # the 25.09 container
            "megatron-core==0.14.0",
            "megatron-bridge==0.1.0rc3",
            "nemo==2.3.3",
            "nemo==2.7.3",
            "megatron-core==0.12.3",
            "megatron-core==0.19.2",
            "megatron-core==0.16.0rc0.dev102440",
            "megatron-bridge==0.6.2",
        ],
    )
    def test_what_the_other_tests_build_on_is_locked(self, spec: str) -> None:
        assert len(fetch.find(spec, fetch.lock())) == 1


class TestFind:
    @pytest.mark.parametrize("name", ["nemo", "nemo_toolkit", "nemo-toolkit", "NeMo_Toolkit"])
    def test_any_spelling_of_a_project(self, name: str) -> None:
        assert [w.folder for w in fetch.find(f"{name}==2.5.3", fetch.lock())] == ["nemo_toolkit-2.5.3"]

    def test_a_name_alone_means_all_versions(self) -> None:
        assert {w.project for w in fetch.find("megatron-bridge", fetch.lock())} == {"megatron-bridge"}

    def test_an_unknown_version_lists_the_known_ones(self) -> None:
        with pytest.raises(FetchError, match=r"nemo==9\.9 is not in upstream\.lock; it has 2\.3\.0, "):
            fetch.find("nemo==9.9", fetch.lock())

    def test_an_unknown_project_lists_the_known_ones(self) -> None:
        with pytest.raises(FetchError, match="it has nemo, megatron-core, megatron-bridge"):
            fetch.find("megatron", fetch.lock())


class TestFetch:
    def test_unpacks_and_leaves_nothing_else(self, make_wheel: MakeWheel) -> None:
        tree = fetch.fetch(make_wheel(text="x = 1\n"))
        assert (tree / "some/thing/__init__.py").read_text() == "x = 1\n"
        assert {path.name for path in tree.iterdir()} == {"some", "some_thing-1.0.dist-info"}
        assert in_cache() == {"some_thing-1.0", "some_thing-1.0.sha256", "some_thing-1.0.lock"}

    @pytest.mark.parametrize(
        "tag",
        [
            "cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64",
            "cp312-cp312-manylinux_2_28_x86_64",
            "cp313-cp313-macosx_11_0_arm64",
        ],
    )
    def test_takes_wheels_of_other_pythons_and_platforms(self, make_wheel: MakeWheel, tag: str) -> None:
        assert (fetch.fetch(make_wheel(tag=tag)) / "some").is_dir()

    def test_takes_pre_releases(self, make_wheel: MakeWheel) -> None:
        assert fetch.fetch(make_wheel("0.16.0rc0.dev102440")).name == "some_thing-0.16.0rc0.dev102440"

    def test_asks_nobody_when_all_is_there(self, make_wheel: MakeWheel, index: Path) -> None:
        wheel = make_wheel()
        tree = fetch.fetch(wheel)
        (index / wheel.filename).unlink()
        assert fetch.fetch(wheel) == tree

    def test_refuses_a_file_with_another_hash(self, make_wheel: MakeWheel) -> None:
        wheel = make_wheel(text="as locked")
        make_wheel(text="something else")
        with pytest.raises(FetchError, match="does not have the locked sha256"):
            fetch.fetch(wheel)
        assert in_cache() == {"some_thing-1.0.lock"}

    def test_does_not_rely_on_pip_to_check(
        self, make_wheel: MakeWheel, index: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wheel = make_wheel(text="as locked")
        make_wheel(text="something else")
        monkeypatch.setattr(fetch, "_download", lambda wheel, into: index / wheel.filename)
        with pytest.raises(FetchError, match=rf"upstream\.lock says {wheel.sha256}"):
            fetch.fetch(wheel)
        assert in_cache() == {"some_thing-1.0.lock"}

    def test_says_what_to_do_offline(self, make_wheel: MakeWheel, index: Path) -> None:
        wheel = make_wheel()
        (index / wheel.filename).unlink()
        with pytest.raises(FetchError) as caught:
            fetch.fetch(wheel)
        message = str(caught.value)
        assert message.startswith(f"cannot get {wheel.filename}: ERROR: No matching distribution")
        assert "fetch.py --only some_thing==1.0" in message
        assert "CPFIX_CACHE" in message
        assert "PIP_FIND_LINKS" in message

    def test_names_every_wheel_that_failed(self, make_wheel: MakeWheel, index: Path) -> None:
        wheels = [make_wheel(version) for version in ("1.0", "2.0", "3.0")]
        for wheel in wheels[::2]:
            (index / wheel.filename).unlink()
        with pytest.raises(FetchError) as caught:
            fetch.fetch_all(wheels)
        assert [w.filename in str(caught.value) for w in wheels] == [True, False, True]
        assert fetch.is_cached(wheels[1])

    def test_clears_away_what_a_killed_run_left(self, make_wheel: MakeWheel) -> None:
        wheel = make_wheel()
        for left_over in ("some_thing-1.0", ".some_thing-1.0-abc", ".some_thing-1.0rc0-abc"):
            (fetch.cache_dir() / left_over / "half").mkdir(parents=True)
        assert not (fetch.fetch(wheel) / "half").exists()
        assert {name for name in in_cache() if name.startswith(".")} == {".some_thing-1.0rc0-abc"}

    def test_replaces_a_tree_of_another_wheel_of_that_version(self, make_wheel: MakeWheel) -> None:
        fetch.fetch(make_wheel(text="old"))
        tree = fetch.fetch(make_wheel(text="new"))
        assert (tree / "some/thing/__init__.py").read_text() == "new"

    def test_many_at_once_do_it_once(self, make_wheel: MakeWheel) -> None:
        wheel = make_wheel(text="x = 1\n")
        code = f"from fixtures import fetch; fetch.fetch_all([fetch.{wheel!r}])"
        command = [sys.executable, "-c", code]
        repository = Path(fetch.__file__).parents[1]
        running = [
            subprocess.Popen(command, cwd=repository, stderr=subprocess.PIPE, text=True) for _ in range(4)
        ]
        said = [process.communicate(timeout=120)[1] for process in running]
        assert [process.returncode for process in running] == [0] * 4, said
        assert in_cache() == {"some_thing-1.0", "some_thing-1.0.sha256", "some_thing-1.0.lock"}


class TestCommandLine:
    @pytest.fixture
    def locked(self, make_wheel: MakeWheel, monkeypatch: pytest.MonkeyPatch) -> list[Wheel]:
        wheels = [make_wheel("1.0"), make_wheel("2.0")]
        monkeypatch.setattr(fetch, "lock", lambda: wheels)
        return wheels

    def test_fetches_all_then_is_quiet(self, locked: list[Wheel], capsys: pytest.CaptureFixture[str]) -> None:
        assert fetch.main([]) == 0
        assert sorted(capsys.readouterr().err.split()[1::2]) == [wheel.filename for wheel in locked]
        assert fetch.main([]) == 0
        assert capsys.readouterr() == ("", "")

    def test_only(self, locked: list[Wheel], capsys: pytest.CaptureFixture[str]) -> None:
        assert fetch.main(["--only", "some==2.0"]) == 0
        assert [fetch.is_cached(wheel) for wheel in locked] == [False, True]
        capsys.readouterr()
        assert fetch.main(["--list"]) == 0
        assert capsys.readouterr().out.split() == ["some_thing==1.0", "-", "some_thing==2.0", "cached"]

    def test_print_path_prints_the_path_alone(
        self, locked: list[Wheel], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert fetch.main(["--print-path", "some-thing==1.0"]) == 0
        assert capsys.readouterr().out == f"{fetch.cache_dir() / 'some_thing-1.0'}\n"

    @pytest.mark.parametrize("arguments", [["--only", "other"], ["--print-path", "some"]])
    def test_usage_errors(
        self, locked: list[Wheel], capsys: pytest.CaptureFixture[str], arguments: list[str]
    ) -> None:
        with pytest.raises(SystemExit) as caught:
            fetch.main(arguments)
        assert caught.value.code == 2
        assert "error: " in capsys.readouterr().err

    def test_a_wheel_that_cannot_be_had_is_exit_1(
        self, locked: list[Wheel], index: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (index / locked[0].filename).unlink()
        assert fetch.main([]) == 1
        assert f"cannot get {locked[0].filename}" in capsys.readouterr().err


def test_the_cache_is_outside_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CPFIX_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert fetch.cache_dir() == Path("/somewhere/cpfix/upstream")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert fetch.cache_dir() == Path.home() / ".cache/cpfix/upstream"

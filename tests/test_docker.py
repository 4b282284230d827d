"""The recipes of docker/, run in a folder in the shape of the image: the very lines that a build runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from migrator import recipes
from tests.clones import files
from tests.image import TORCH, Image, build, build_wheel, instructions, make_image, put_metadata, put_shims

pytestmark = pytest.mark.upstream

yaml: Any = import_module("yaml")  # comes with libcst, without types

DOCKERFILE = (recipes.FOLDER / "Dockerfile").read_text()
RUNS = [rest for keyword, rest in instructions(DOCKERFILE) if keyword == "RUN"]
COMMANDS = re.findall(r"(?:^|&& +)(python|cpfix)\b", " ".join(f"&& {run}" for run in RUNS))


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build context."""
    return build_wheel(tmp_path_factory.mktemp("dist")).parent


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return make_image(tmp_path / "image")


def states(image: Image, *roots: str | Path) -> dict[str, str]:
    """Each patch and its state."""
    done = image.run("cpfix", "status", "--json", *roots)
    assert done.returncode == 0, done.stderr
    return {f"{p['project']}/{p['id']}": p["state"] for p in json.loads(done.stdout)["patches"]}


def settled(found: dict[str, str]) -> bool:
    """Whether every patch of 25.09 that is needed is there."""
    assert len([name for name, state in found.items() if state == "applied"]) >= 8, found
    return set(found.values()) <= {"applied", "fixed-upstream", "not-applicable"}


def without(image: Image, name: str) -> None:
    """Take a package out of the layer."""
    image.layer.chmod(0o755)
    for entry in image.layer.glob(f"{name}*"):
        entry.unlink()


def sources(image: Image) -> dict[str, bytes]:
    """The projects' files, the environment left out."""
    return files(image.opt, skip=("venv",))


def docker(image: Image, wheels: Path, **arguments: str) -> subprocess.CompletedProcess[str]:
    """Build without an index."""
    # the image has no torch but for its metadata, and no more of the projects than is patched
    own = {"WHEELS": str(image.root / "tmp/cpfix"), "PIP_NO_INDEX": "1", "VERIFY": "static"}
    return build(image, DOCKERFILE, wheels, own | arguments)


class TestDockerfile:
    def test_patches_and_leaves_every_package_as_it_is(self, image: Image, wheels: Path) -> None:
        before, layer = image.packages(), sorted(image.layer.iterdir())
        done = docker(image, wheels)
        assert done.returncode == 0, done.stdout + done.stderr
        assert settled(states(image))
        after = image.packages()
        assert set(after) - set(before) == {"cpfix"}
        assert before.items() <= after.items()
        assert after["torch"] == TORCH
        assert sorted(image.layer.iterdir()) == layer

    def test_a_second_build_step_changes_nothing(self, image: Image, wheels: Path) -> None:
        assert docker(image, wheels).returncode == 0
        before, packages = files(image.opt, skip=("venv",)), image.packages()
        done = docker(image, wheels)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Nothing to do." in done.stdout
        assert files(image.opt, skip=("venv",)) == before
        assert image.packages() == packages

    def test_is_read_in_full(self) -> None:
        assert len(RUNS) == 2
        assert COMMANDS == ["python", "python", "cpfix", "cpfix", "cpfix"]
        assert RUNS[1].endswith('&& cpfix verify --level "${VERIFY}" ${CPFIX_ROOTS}')
        assert "\nARG VERIFY=cpu\n" in DOCKERFILE
        assert f"ARG NEMO_TAG={recipes.WRITTEN_FOR}\nFROM nvcr.io/nvidia/nemo:${{NEMO_TAG}}\n" in DOCKERFILE

    @pytest.mark.parametrize("failing", range(1, len(COMMANDS) + 1))
    def test_fails_with_any_of_its_commands(self, image: Image, wheels: Path, failing: int) -> None:
        log, shims = image.root / "log", image.root / "shims"
        put_shims(shims, log, ("python", "cpfix"), failing)
        path = f"{shims}{os.pathsep}{image.environment['PATH']}"
        done = docker(replace(image, environment={**image.environment, "PATH": path}), wheels)
        assert done.returncode == 7
        assert [row.split()[0] for row in log.read_text().splitlines()] == COMMANDS[:failing]

    def test_fails_where_a_package_would_have_to_change(self, image: Image, wheels: Path) -> None:
        without(image, "rich")
        put_metadata(image.layer, "rich", "1.0")
        before = sources(image)
        done = docker(image, wheels)
        assert done.returncode != 0
        assert "rich==1.0" in done.stdout + done.stderr
        assert sources(image) == before
        assert image.packages()["rich"] == "1.0"

    def test_fails_where_the_images_own_constraints_are_in_the_way(self, image: Image, wheels: Path) -> None:
        Path(image.environment["PIP_CONSTRAINT"]).write_text(f"torch=={TORCH}\nlibcst<1\n")
        done = docker(image, wheels)
        assert done.returncode != 0
        assert "libcst<1" in done.stdout + done.stderr
        assert "cpfix" not in image.packages()

    def test_fails_offline_without_a_wheel_that_is_missing(self, image: Image, wheels: Path) -> None:
        without(image, "libcst")
        done = docker(image, wheels)
        assert done.returncode != 0
        assert "libcst" in done.stderr

    def test_fails_where_a_patch_does_not_fit_and_writes_nothing(self, image: Image, wheels: Path) -> None:
        base = image.opt / "NeMo/nemo/collections/llm/gpt/model/base.py"
        base.write_text(base.read_text().replace("get_batch_on_this_cp_rank(", "sliced("))
        before = sources(image)
        done = docker(image, wheels)
        assert done.returncode == 3
        assert "nemo/thd-split" in done.stderr
        assert sources(image) == before

    def test_fails_on_a_release_that_is_not_known(self, image: Image, wheels: Path) -> None:
        info = image.opt / "megatron-lm/megatron/core/package_info.py"
        info.write_text(re.sub(r"MINOR = \d+", "MINOR = 99", info.read_text()))
        assert docker(image, wheels).returncode == 3

    def test_fails_where_there_is_nothing_to_patch(self, image: Image, wheels: Path) -> None:
        for file in image.site.glob("__editable__*"):
            file.unlink()
        assert docker(image, wheels).returncode == 4

    def test_takes_folders_that_python_does_not_import(self, image: Image, wheels: Path) -> None:
        for file in image.site.glob("__editable__*"):
            file.unlink()
        done = docker(image, wheels, CPFIX_ROOTS=f"--root {image.opt}")
        assert done.returncode == 0, done.stderr
        assert settled(states(image, "--root", image.opt))


@pytest.fixture
def installed(image: Image, wheels: Path) -> Image:
    """The image with cpfix in a folder of its own, as `pip install --target` puts it there."""
    (wheel,) = wheels.glob("*.whl")
    home = image.root / "shared/cpfix"
    done = image.run(
        *("python", "-m", "pip", "install", "--quiet", "--no-deps", "--target", home, wheel),
    )
    assert done.returncode == 0, done.stderr
    return replace(image, environment={**image.environment, "CPFIX_HOME": str(home)})


class TestEntryPoint:
    SCRIPT = recipes.FOLDER / "entrypoint.sh"

    def test_any_number_of_ranks_may_start_at_once(self, installed: Image) -> None:
        code = "import sys; print('rank', *sys.argv[1:])"

        def start(number: int) -> subprocess.CompletedProcess[str]:
            return installed.run("sh", self.SCRIPT, "python", "-c", code, f"{number} of 6")

        with ThreadPoolExecutor(6) as pool:
            ranks = list(pool.map(start, range(6)))
        for number, rank in enumerate(ranks):
            assert rank.returncode == 0, rank.stderr
            assert rank.stdout == f"rank {number} of 6\n"
        home = installed.environment["CPFIX_HOME"]
        done = installed.run("python", f"{home}/bin/cpfix", "status", "--check", PYTHONPATH=home)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_the_command_sees_nothing_of_cpfix(self, installed: Image) -> None:
        code = "import importlib.util; print(importlib.util.find_spec('migrator'))"
        done = installed.run("sh", self.SCRIPT, "python", "-c", code)
        assert done.stdout == "None\n"

    def test_the_command_is_not_run_on_half_a_patch(self, installed: Image) -> None:
        base = installed.opt / "NeMo/nemo/collections/llm/gpt/model/base.py"
        base.write_text(base.read_text().replace("get_batch_on_this_cp_rank(", "sliced("))
        done = installed.run("sh", self.SCRIPT, "echo", "trains")
        assert done.returncode == 3
        assert done.stdout == ""

    def test_exit_codes_of_the_command_are_kept(self, image: Image, wheels: Path) -> None:
        assert docker(image, wheels).returncode == 0
        assert image.run("sh", self.SCRIPT, "sh", "-c", "exit 5").returncode == 5

    def test_the_command_takes_its_place_and_so_its_signals(self, image: Image, wheels: Path) -> None:
        assert docker(image, wheels).returncode == 0
        assert image.run("sh", self.SCRIPT, "sh", "-c", "echo $PPID").stdout == f"{os.getpid()}\n"


class TestKubernetes:
    @pytest.fixture
    def pod(self) -> dict[str, Any]:
        spec: dict[str, Any] = yaml.safe_load(recipes.recipe("kubernetes", "25.09"))["spec"]
        return spec

    def start(self, pod: dict[str, Any], image: Image, wheels: Path) -> subprocess.CompletedProcess[str]:
        """Run the init container."""
        (init,) = pod["initContainers"]
        here = {
            "WHEELS": str(wheels),
            "SOURCES": str(image.opt),
            "PATCHED": str(image.root / "patched"),
            "CPFIX_HOME": str(image.root / "tmp/cpfix"),
        }
        assert {entry["name"] for entry in init["env"]} == set(here)
        (image.root / "patched").mkdir()
        # what cpfix runs on comes from the layer, not from wheels
        return image.run(*init["command"], *init["args"], **here, PIP_NO_DEPS="1")

    def test_patches_copies_and_leaves_the_image(
        self, pod: dict[str, Any], image: Image, wheels: Path
    ) -> None:
        before = sources(image)
        done = self.start(pod, image, wheels)
        assert done.returncode == 0, done.stdout + done.stderr
        assert sources(image) == before
        patched = files(image.root / "patched")
        assert set(patched) == set(before)
        assert len([path for path in before if patched[path] != before[path]]) >= 5

    def test_fails_where_a_patch_does_not_fit(self, pod: dict[str, Any], image: Image, wheels: Path) -> None:
        utils = image.opt / "megatron-lm/megatron/core/utils.py"
        utils.write_text(utils.read_text().replace("if val is not None:", "if val is not None and True:"))
        assert self.start(pod, image, wheels).returncode == 3

    def test_fails_where_a_project_is_not_there(
        self, pod: dict[str, Any], image: Image, wheels: Path
    ) -> None:
        shutil.rmtree(image.opt / "NeMo")
        assert self.start(pod, image, wheels).returncode != 0

    def test_the_copies_are_mounted_in_the_places_of_the_originals(self, pod: dict[str, Any]) -> None:
        (init,), (train,) = pod["initContainers"], pod["containers"]
        copied = re.findall(r'cp -a "\$SOURCES/(\S+)" "\$PATCHED"', init["args"][0])
        assert copied == ["NeMo", "megatron-lm", "Megatron-Bridge"]
        mounts = {m["mountPath"]: m["subPath"] for m in train["volumeMounts"] if m["name"] == "patched"}
        assert mounts == {f"/opt/{name}": name for name in copied}
        assert init["image"] == train["image"] == "nvcr.io/nvidia/nemo:25.09"


class TestEnroot:
    SCRIPT = recipes.FOLDER / "enroot.sh"

    @pytest.fixture
    def enroot(self, image: Image) -> Image:
        """The image, with a program in enroot's place that runs what it is given right here."""
        shim = image.opt / "venv/bin/enroot"
        shim.write_text(
            '#!/bin/sh\necho "$1" >> "$LOG"\n[ "$1" != "$FAILING" ] || exit 9\n'
            'case $1 in import) touch "$3" ;; export) touch "$4" ;; start)\n'
            "for part; do case $part in *:/wheels) WHEELS=${part%:/wheels} ;; esac; script=$part; done\n"
            'export WHEELS; exec sh -eu -c "$script" ;; esac\n'
        )
        shim.chmod(0o755)
        log = str(image.root / "log")
        own = {"LOG": log, "FAILING": "", "VERIFY": "static"}
        return replace(image, environment={**image.environment, **own})

    def test_builds_a_patched_image(self, enroot: Image, wheels: Path) -> None:
        done = enroot.run("sh", self.SCRIPT, wheels)
        assert done.returncode == 0, done.stdout + done.stderr
        calls = (enroot.root / "log").read_text().split()
        assert calls == ["import", "create", "start", "export", "remove"]
        assert settled(states(enroot))
        assert (enroot.root / "workspace/nemo-cpfix-25.09.sqsh").is_file()

    @pytest.mark.parametrize("step", ["import", "create", "start", "export"])
    def test_stops_at_a_step_that_fails(self, enroot: Image, wheels: Path, step: str) -> None:
        done = enroot.run("sh", self.SCRIPT, wheels, FAILING=step)
        assert done.returncode == 9
        assert (enroot.root / "log").read_text().split()[-1] == step

    def test_exports_nothing_where_a_patch_does_not_fit(self, enroot: Image, wheels: Path) -> None:
        base = enroot.opt / "NeMo/nemo/collections/llm/gpt/model/base.py"
        base.write_text(base.read_text().replace("get_batch_on_this_cp_rank(", "sliced("))
        assert enroot.run("sh", self.SCRIPT, wheels).returncode == 3
        assert not list((enroot.root / "workspace").glob("nemo-cpfix-*"))

    def test_installs_as_the_dockerfile_does(self) -> None:
        def install(text: str) -> str:
            found = re.search(r"python -m pip install.*?cpfix-\*\.whl", text.replace("\\\n", ""), re.DOTALL)
            assert found
            return re.sub(r"\$\{?(\w+)\}?", r"$\1", " ".join(found[0].split()))

        dockerfile = install(DOCKERFILE).replace('"$WHEELS/pins.txt"', '"$pins"')
        assert install(self.SCRIPT.read_text()) == dockerfile


class TestPyxis:
    SCRIPT = recipes.FOLDER / "pyxis.sbatch"

    def start(self, tmp_path: Path, home: Path, failing: int = 0) -> tuple[int, list[str]]:
        log, shims = tmp_path / "log", tmp_path / "shims"
        shims.mkdir()
        (shims / "srun").write_text(
            f'#!/bin/sh\necho "$*" >> "{log}"\n[ "$(wc -l < "{log}")" -ne {failing} ] || exit 7\n'
        )
        (shims / "srun").chmod(0o755)
        environment = {"PATH": f"{shims}{os.pathsep}{os.environ['PATH']}", "CPFIX_HOME": str(home)}
        done = subprocess.run(
            ["bash", self.SCRIPT, "python", "train.py"], env=environment, cwd=tmp_path, check=False
        )
        return done.returncode, log.read_text().splitlines()

    def test_installs_once_and_starts_every_rank_through_the_entry_point(self, tmp_path: Path) -> None:
        home = tmp_path / "cpfix"
        (home / "bin").mkdir(parents=True)
        code, calls = self.start(tmp_path, home)
        assert code == 0
        assert len(calls) == 2
        assert "--ntasks=1" in calls[0]
        assert "pip install --only-binary :all: --target /cpfix" in calls[0]
        assert calls[1].endswith("sh /cpfix/entrypoint.sh python train.py")
        assert "--container-writable" in calls[1]

    def test_does_not_install_twice(self, tmp_path: Path) -> None:
        home = tmp_path / "cpfix"
        (home / "bin").mkdir(parents=True)
        (home / "bin/cpfix").touch()
        code, calls = self.start(tmp_path, home)
        assert code == 0
        assert len(calls) == 1

    @pytest.mark.parametrize("failing", [1, 2])
    def test_fails_with_either_step(self, tmp_path: Path, failing: int) -> None:
        (tmp_path / "cpfix").mkdir()
        code, calls = self.start(tmp_path, tmp_path / "cpfix", failing)
        assert code == 7
        assert len(calls) == failing


@pytest.mark.parametrize("name", [n for n in recipes.RECIPES.values() if not n.endswith((".yaml", "file"))])
def test_scripts_are_scripts(name: str) -> None:
    path = recipes.FOLDER / name
    shell = path.read_text().splitlines()[0].removeprefix("#!")
    assert subprocess.run([shell, "-n", path], check=False).returncode == 0
    assert name.endswith(".sbatch") or os.access(path, os.X_OK)
    assert re.search(r"^set -eu", path.read_text(), re.MULTILINE)

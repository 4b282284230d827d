"""find and hidden_by against the import system itself, on trees drawn at random and on chosen ones."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from migrator.editable import Finder
from migrator.pythonpath import Found, copies, expand, find, hidden_by

NAMES = ("nemo", "megatron", "megatron.core", "megatron.bridge")

# What a folder of the path may hold, each with the chance that it does.
PARTS = {
    "nemo/__init__.py": 0.2,
    "nemo/checkpoints/": 0.2,
    "nemo.py": 0.1,
    "megatron/__init__.py": 0.12,
    "megatron.py": 0.08,
    "megatron/core/__init__.py": 0.3,
    "megatron/core/__init__" + EXTENSION_SUFFIXES[0]: 0.05,
    "megatron/core.py": 0.08,
    "megatron/bridge/__init__.py": 0.3,
    "megatron/bridge/data/": 0.2,
    "megatron/bridge.py": 0.06,
    "megatron/core/models/": 0.2,
    "megatron/training/": 0.3,
}
# Folders that show each name as a package, a namespace, a module and not at all.
CHOSEN = (
    ("nemo/__init__.py", "megatron/core/__init__.py", "megatron/bridge/__init__.py"),
    ("nemo/checkpoints/", "megatron/core.py", "megatron/bridge.py"),
    ("megatron/__init__.py", "megatron/core/models/", "megatron/bridge/data/"),
    ("nemo.py", "megatron.py"),
)
PKGUTIL = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"

# Answers for one search path after the other; what an answer imported goes before the next one.
ORACLE = """
import importlib, importlib.util, json, sys
library = list(sys.path)
answers = []
for path in json.load(sys.stdin):
    sys.path[:] = [*path, *library]
    importlib.invalidate_caches()
    for name in [name for name in sys.modules if name.split(".")[0] in ("nemo", "megatron")]:
        del sys.modules[name]
    answer = {}
    for name in sys.argv[1:]:
        try:
            if "." in name:
                spec = importlib.util.find_spec(name)
                answer[name] = spec and [list(spec.submodule_search_locations or []), spec.origin]
            else:  # its __init__ may extend its __path__
                module = importlib.import_module(name)
                answer[name] = [list(getattr(module, "__path__", [])), getattr(module, "__file__", None)]
        except ModuleNotFoundError:
            answer[name] = None
    answers.append(answer)
print(json.dumps(answers))
"""


def ask_python(paths: Sequence[Sequence[str]]) -> list[dict[str, list[object] | None]]:
    command = [sys.executable, "-I", "-S", "-c", ORACLE, *NAMES]
    run = subprocess.run(
        command, input=json.dumps(paths), capture_output=True, text=True, check=True, timeout=120
    )
    answers: list[dict[str, list[object] | None]] = json.loads(run.stdout)
    return answers


def told(found: Found | None) -> list[object] | None:
    """A `Found` in the words of a module spec."""
    if found is None:
        return None
    locations = [place.placeholder if isinstance(place, Finder) else str(place) for place in found.locations]
    return [locations, str(found.init) if found.init else None]


def put(root: Path, *parts: str) -> Path:
    """Put empty files into a folder, and folders where a name ends with a slash."""
    root.mkdir(parents=True, exist_ok=True)
    for part in parts:
        (root / part).parent.mkdir(parents=True, exist_ok=True)
        if part.endswith("/"):
            (root / part).mkdir(exist_ok=True)
        else:
            (root / part).touch()
    return root


def grow(folder: Path, rng: random.Random) -> str:
    """Put random parts into a new folder."""
    put(folder, *(part for part, chance in PARTS.items() if rng.random() < chance))
    if (folder / "megatron/__init__.py").is_file() and rng.random() < 0.5:
        (folder / "megatron/__init__.py").write_text(PKGUTIL)
    return str(folder)


def test_every_answer_is_that_of_the_import_system(tmp_path: Path, rng: random.Random) -> None:
    folders = [grow(tmp_path / str(number), rng) for number in range(60)] + [str(tmp_path / "missing")]
    paths = [rng.sample(folders, rng.randint(1, 4)) for _ in range(400)]
    paths += [[str(put(tmp_path / f"chosen{number}", *parts))] for number, parts in enumerate(CHOSEN)]
    kinds = set()
    for path, answer in zip(paths, ask_python(paths), strict=True):
        search = expand(path)
        for name in NAMES:
            found = told(find(name, search))
            assert found == answer[name], (name, path)
            kinds.add((name, *map(bool, found or ())))
    assert len(kinds) == 4 * len(NAMES)  # a package, a namespace, a module, nothing


def test_what_hides_a_copy_is_what_makes_python_miss_it(tmp_path: Path, rng: random.Random) -> None:
    """Without the file that is blamed (and the next, ...) the copy is found, or one in front of it."""
    folders = [grow(tmp_path / str(number), rng) for number in range(40)]
    blamed = 0
    for _ in range(100):
        search = expand(rng.sample(folders, 3))
        for folder, _editable in copies("megatron.core", search):
            removed: dict[Path, bytes] = {}
            while (folder / "__init__.py").is_file() and (file := hidden_by("megatron.core", folder, search)):
                assert find("megatron.core", search) != Found((folder,), folder / "__init__.py")
                removed[file] = file.read_bytes()
                file.unlink()
            if removed:
                blamed += 1
                assert find("megatron.core", search) is not None
            for file, content in removed.items():
                file.write_bytes(content)
    assert blamed


def test_sites_are_the_folders_behind_the_library(tmp_path: Path) -> None:
    library = put(tmp_path / "lib", "os.py")
    front, behind = tmp_path / "front/site-packages", tmp_path / "behind/site-packages"
    for site in (front, behind):
        site.mkdir(parents=True)
        put(tmp_path / f"for-{site.parent.name}", "nemo/__init__.py")
        (site / "x.pth").write_text(str(tmp_path / f"for-{site.parent.name}"))
    search = expand([str(front), str(library), str(behind), str(tmp_path)])
    assert search.sites == (behind,)
    assert search.linked == {tmp_path / "for-behind"}
    assert search.places == (front, library, behind, tmp_path / "for-behind", tmp_path)
    assert set(expand([str(front), str(behind)]).sites) == {front, behind}


def test_what_is_on_the_path_already_keeps_its_place(tmp_path: Path) -> None:
    site, one, two = tmp_path / "site-packages", tmp_path / "one", tmp_path / "two"
    for folder in (site, one, two):
        folder.mkdir()
    (site / "a.pth").write_text(f"{one}\n{two}\n")
    assert expand([str(two), str(site)]).places == (two, site, one)


def test_path_files_are_read_as_site_reads_them(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    for name in ("b", "a", "site-packages/egg"):
        (tmp_path / name).mkdir(parents=True)
    (site / "2.pth").write_text("../b\n")
    (site / "1.pth").write_bytes(
        b"\xef\xbb\xbf# comment\r\n\r\n../a  \r\n./egg\r\n../gone\r\nimport sys; sys.exit(1)\r\n"
    )
    (site / "3.pth.bak").write_text("../missing\n")
    assert expand([str(site)]).places == (site, tmp_path / "a", site / "egg", tmp_path / "b")


@pytest.mark.parametrize(
    "text", ["", "import __editable___gone_finder\n", "import __editable___bad_finder\n", "\0\xff"]
)
def test_path_files_that_lead_nowhere_add_nothing(text: str, tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    put(site, "x.pth").joinpath("x.pth").write_text(text)
    (site / "__editable___bad_finder.py").write_text("MAPPING = compute()\n")
    search = expand([str(site)])
    assert (search.places, search.finders) == ((site,), ())


def test_a_current_folder_that_is_gone_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert expand(["", str(tmp_path)]).places == (tmp_path,)


def test_nothing_hides_what_is_found(tmp_path: Path) -> None:
    put(tmp_path, "megatron/__init__.py", "megatron/core/__init__.py")
    search = expand([str(tmp_path)])
    assert hidden_by("megatron.core", tmp_path / "megatron/core", search) is None

"""The patch series: as it is, and what is said of one that is not in order."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from migrator import series
from migrator.model import Argument, Hunk, Insert, Patch
from migrator.series import BadSeries, load, requirements

PROJECT = """
name = "nemo"
distribution = "nemo_toolkit"
package = "nemo"
version-file = "nemo/package_info.py"
upstream = "https://example.com/NeMo"
known = ">=2.3,<3"
series = ["one"]
"""
PATCH = """
title = "A title"
why = '''
Because.
'''
symptom = "None."
references = ["https://example.com/1"]
retire-when = "never"
"""
HUNK = """
[[hunk]]
versions = ">=2.3"
file = "nemo/a.py"
scope = "f"
edit = '''
-a
+b
'''
"""
INSERT = """
[[insert]]
versions = ">=2.3"
file = "nemo/a.py"
before = "f"
source = "one.py"
names = ["LIMIT", "helper"]
"""
TEST = """
[[test]]
versions = ">=2.3"
source = "one.py"
path = "tests/test_one.py"
"""
OUTDATED = """
[[outdated]]
versions = ">=2.3"
path = "tests/test_two.py"
names = ["test_b", "test_c"]
"""
SOURCE = "import torch\n\n# how many\n# at most\nLIMIT = 3\n\n\n@torch.jit\ndef helper(x):\n    return x\n"

Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A patches folder with one project and one patch; `**files` are put beside them or replace them."""

    def make(project: str = PROJECT, patch: str = PATCH + HUNK, **files: str) -> Path:
        (tmp_path / "nemo").mkdir(exist_ok=True)
        files = {"project.toml": project, "one.toml": patch, "one.py": SOURCE} | files
        for name, text in files.items():
            (tmp_path / "nemo" / name).write_text(text, encoding="utf-8")
        load.cache_clear()
        return tmp_path

    return make


def one(folder: Path) -> Patch:
    series._definitions.cache_clear()
    load.cache_clear()
    (patch,) = load(folder).patches
    return patch


# --- what is read


def test_a_patch(folder: Folder) -> None:
    argument = (
        '[[argument]]\nversions = ""\nfile = "a.py"\nfunction = "g"\ncall = "h"\ncalls = 2\nadd = "x=1"\n'
    )
    probe = '[[probe]]\nversions = ">=3"\nfile = "nemo/a.py"\nscope = "f"\ncalls = "b"\n'
    patch = one(folder(patch=PATCH + "requires = []\ndefault = false\n" + HUNK + INSERT + argument + probe))
    assert (patch.name, patch.title, patch.why, patch.default) == ("nemo/one", "A title", "Because.", False)
    assert [type(e) for e in patch.edits] == [Hunk, Insert, Argument]
    added = patch.edits[1]
    assert isinstance(added, Insert)
    assert added.text == ("# how many\n# at most\nLIMIT = 3", "@torch.jit\ndef helper(x):\n    return x")
    assert [(e.call, e.calls) for e in patch.edits if isinstance(e, Argument)] == [("h", 2)]
    assert patch.probes[0].calls == "b"


def test_the_fingerprint_covers_the_patch_and_its_new_code(folder: Folder) -> None:
    first = one(folder(patch=PATCH + INSERT)).fingerprint
    assert one(folder(patch=PATCH + INSERT)).fingerprint == first
    assert one(folder(patch=PATCH + INSERT + HUNK)).fingerprint != first
    assert one(folder(patch=PATCH + INSERT, **{"one.py": SOURCE.replace("= 3", "= 4")})).fingerprint != first
    assert one(folder(patch=PATCH + INSERT, **{"one.py": SOURCE + "\n\nOTHER = 1\n"})).fingerprint == first


def test_patches_keep_the_order_of_the_series(folder: Folder) -> None:
    other = PATCH + 'requires = ["one"]\n' + HUNK
    found = load(folder(PROJECT.replace('["one"]', '["two", "one"]'), **{"two.toml": other}))
    assert [p.id for p in found.of("nemo")] == ["two", "one"]
    assert requirements(found.patches[0]) == ["nemo/one"]
    assert found.of("megatron-core") == ()
    assert found.project("nemo").distribution == "nemo_toolkit"


# --- what is refused


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        ("x = = 1", "one.toml"),
        (PATCH, "a patch without an edit"),
        (HUNK, "`title` is missing"),
        (PATCH.replace("why", "wy") + HUNK, "`why` is missing"),
        (PATCH + "titel = 1\n" + HUNK, "unknown key `titel`"),
        (PATCH + HUNK + "scop = 1\n", "unknown key `scop`"),
        (PATCH + HUNK.replace('scope = "f"\n', ""), "`scope` is missing"),
        (PATCH + HUNK.replace(">=2.3", "2.3 and up"), "Invalid specifier"),
        (PATCH + HUNK.replace("-a", "-a(").replace("+b", "+b("), "one statement carries two marks"),
        (PATCH + HUNK.replace("-a\n+b", " a\n b"), "changes nothing"),
        (PATCH + HUNK.replace("-a\n+b", "-a\n b"), "the line above them and the one below"),
        (PATCH + INSERT.replace("helper", "helpers"), "one.py defines no `helpers`"),
        (PATCH + INSERT.replace("one.py", "gone.py"), "gone.py"),
        (PATCH + 'requires = ["two"]\n' + HUNK, "nemo/one requires `nemo/two`, which is not in the series"),
        (PATCH + 'requires = ["megatron-core/two"]\n' + HUNK, "requires `megatron-core/two`"),
        (
            PATCH + HUNK + '[[probe]]\nversions = ""\nfile = "a"\nscope = ""\n',
            "a probe that asks for nothing",
        ),
        (
            PATCH + HUNK + '[[probe]]\nversions = ""\nfile = "a"\nscope = ""\npresent = """ a\n-b"""\n',
            "start with a blank",
        ),
        (
            PATCH + '[[argument]]\nversions = ""\nfile = "a"\nfunction = "f"\nadd = "x: int"\n',
            "a parameter is added as `name: type = default`",
        ),
        (
            PATCH + '[[argument]]\nversions = ""\nfile = "a"\nfunction = "f"\nadd = "x=1, y=2"\n',
            "a parameter is added as `name: type = default`",
        ),
        (
            PATCH + '[[argument]]\nversions = ""\nfile = "a"\nfunction = "f"\ncall = "g"\nadd = "x"\n',
            "a keyword argument is added as `name=value`",
        ),
        (PATCH + HUNK + OUTDATED + "name = 1\n", "unknown key `name`"),
        (PATCH + HUNK + OUTDATED.replace(">=2.3", "all"), "Invalid specifier"),
        (PATCH + HUNK + TEST.replace("one.py", "gone.py"), "gone.py"),
        (PATCH + HUNK + TEST + 'varaint = "rc"\n', "unknown key `varaint`"),
        (PATCH + HUNK + TEST + 'variant = "rc"\n', "one.py tests 'rc', a variant of no edit"),
    ],
)
def test_a_patch_that_is_not_in_order(folder: Folder, patch: str, why: str) -> None:
    with pytest.raises(BadSeries, match=why) as error:
        load(folder(patch=patch))
    assert "one" in str(error.value)


@pytest.mark.parametrize(
    ("project", "why"),
    [
        (PROJECT.replace('"one"', '"gone"'), "gone.toml"),
        (PROJECT.replace("known", "knowns"), "`known` is missing"),
        (PROJECT + "more = 1\n", "unknown key `more`"),
        (PROJECT.replace(">=2.3,<3", "2.3 to 3"), "Invalid specifier"),
    ],
)
def test_a_project_that_is_not_in_order(folder: Folder, project: str, why: str) -> None:
    with pytest.raises(BadSeries, match=why):
        load(folder(project))


def test_what_is_applied_anyway_must_not_need_what_is_optional(folder: Folder) -> None:
    files = {"two.toml": PATCH + "default = false\n" + HUNK}
    with pytest.raises(BadSeries, match="nemo/one requires `nemo/two`, which is optional"):
        load(folder(PROJECT.replace('"one"', '"one", "two"'), PATCH + 'requires = ["two"]\n' + HUNK, **files))


def test_an_incomplete_installation_says_so(tmp_path: Path) -> None:
    load.cache_clear()
    with pytest.raises(BadSeries, match="incomplete"):
        load(tmp_path)


def test_new_code_that_is_no_python(folder: Folder) -> None:
    series._definitions.cache_clear()
    with pytest.raises(BadSeries, match=r"one\.py"):
        load(folder(patch=PATCH + INSERT, **{"one.py": "def (:\n"}))


# --- the series that is shipped

SHIPPED = load().patches


def test_every_patch_file_is_in_a_series() -> None:
    files = {f"{p.parent.name}/{p.stem}" for p in series.PATCHES.glob("*/*.toml") if p.stem != "ruff"}
    named = {p.name for p in SHIPPED} | {f"{p.name}/project" for p in load().projects}
    assert files == named


@pytest.mark.parametrize("patch", SHIPPED, ids=lambda p: p.name)
def test_every_patch_says_what_it_is_for(patch: Patch) -> None:
    assert patch.title
    assert len(patch.why.split()) > 15
    assert patch.symptom
    assert patch.retire_when
    assert all(url.startswith("https://") for url in patch.references)


@pytest.mark.parametrize("patch", SHIPPED, ids=lambda p: p.name)
def test_every_patch_stays_within_its_project(patch: Patch) -> None:
    package = load().project(patch.project).package.replace(".", "/")
    for part in (*patch.edits, *patch.probes):
        assert part.file.startswith(f"{package}/")
        assert ".." not in part.file
        assert list(part.versions), f"{part.file}: an edit for every version there will ever be"


@pytest.mark.parametrize("patch", SHIPPED, ids=lambda p: p.name)
def test_new_code_is_what_its_file_has(patch: Patch) -> None:
    for edit in patch.edits:
        for name, text in zip(edit.names, edit.text, strict=True) if isinstance(edit, Insert) else ():
            (node,) = ast.parse(text).body
            found = getattr(node, "name", None) or ast.unparse(node).split(":")[0].split(" =")[0]
            assert found == name

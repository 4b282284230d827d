"""Versions and ranges: release numbers decide, and the code where they can't."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from migrator.files import File, Files
from migrator.model import Argument
from migrator.ranges import edits_for, release, spelled
from tests.edits import FILE, hunk, module, patch


@pytest.mark.parametrize(
    ("version", "number"),
    [
        ("2.5.0", "2.5.0"),
        ("2.5.0rc0", "2.5.0"),
        ("0.16.0rc0.dev102440", "0.16.0"),
        ("0.15.0+0d8e071", "0.15.0"),
        ("0.1.0a0", "0.1.0"),
        ("2.5.0.post1", "2.5.0"),
        ("2.5", "2.5"),
        ("v2.5.3", "2.5.3"),
    ],
)
def test_release(version: str, number: str) -> None:
    assert str(release(version)) == number


@pytest.mark.parametrize("version", ["", "unknown", "2.5.x", "main"])
def test_no_release(version: str) -> None:
    assert release(version) is None


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("2.3.3", ["a", "b"]),
        ("2.4.0rc0", ["b", "c"]),
        ("2.4.0.dev1", ["b", "c"]),
        ("2.4.0+local", ["b", "c"]),
        ("2.7.9", ["c"]),
        ("2.8.0rc1", []),
        ("2.8", []),
        ("1.0", []),
        ("", []),
    ],
)
def test_edits_for(version: str, names: list[str]) -> None:
    edits = [
        hunk("-a\n+x", versions=">=2.3,<2.4"),
        hunk("-b\n+x", versions=">=2.3,<2.5"),
        hunk("-c\n+x", versions=">=2.4,<2.8"),
    ]
    found = edits_for(patch("p", *edits), version)
    assert [e.edit[1] for e in found if not isinstance(e, Argument) and hasattr(e, "edit")] == names


def test_an_edit_for_any_version_is_for_pre_releases_too() -> None:
    edit = hunk("-a\n+b")
    assert edit.versions == SpecifierSet()
    assert edits_for(patch("p", edit), "0.1.0rc3") == (edit,)


def files(text: str) -> Files:
    return lambda path: File(path, text.encode(), module(text) if path == FILE else None, "no such file")


def test_the_code_picks_the_variant() -> None:
    always = hunk("-z\n+y")
    old = [hunk("-a\n+new", variant="old"), hunk("-b\n+new", variant="old")]
    young = [hunk("-c\n+new", variant="young"), hunk("-b\n+new", variant="young")]
    split = patch("p", old[0], young[0], always, young[1], old[1])
    assert edits_for(split, "1.0") == split.edits
    assert edits_for(split, "1.0", files("a\nb\n")) == (old[0], always, old[1])
    assert edits_for(split, "1.0", files("c\nb\n")) == (young[0], always, young[1])
    assert edits_for(split, "1.0", files("new\nb\n")) == (old[0], always, old[1])
    assert edits_for(split, "1.0", files("c\n")) == (young[0], always, young[1])  # fewest that don't fit


def test_a_variant_out_of_range_is_no_variant() -> None:
    far = hunk("-a\n+new", variant="far", versions=">=2")
    near = hunk("-b\n+new", variant="near")
    assert edits_for(patch("p", far, near), "1.0", files("a\n")) == (near,)


def test_a_variant_whose_file_is_not_there_does_not_fit() -> None:
    elsewhere = hunk("-a\n+new", variant="elsewhere", file="nemo/gone.py")
    here = hunk("-a\n+new", variant="here")
    assert edits_for(patch("p", elsewhere, here), "1.0", files("a\n")) == (here,)


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        (["<2.4,>=2.3"], ">=2.3,<2.4"),
        (["<0.7,>=0.3", ">=0.3,<0.5", ">=0.5,<0.7", ">=0.6,<0.7"], ">=0.3,<0.7"),
        ([">=0.5,<0.6", ">=0.3,<0.5"], ">=0.3,<0.6"),
        ([">=0.5,<0.6", ">=0.10,<0.11", ">=0.5.1,<0.6"], ">=0.5,<0.6 or >=0.10,<0.11"),
        ([">=0.7", "<0.4,>=0.3", ">=0.7"], ">=0.3,<0.4 or >=0.7"),
    ],
)
def test_spelled(ranges: list[str], words: str) -> None:
    assert spelled(map(SpecifierSet, ranges)) == words

"""Edits, patches and projects as tests write them: everything that does not matter left out."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet

from migrator.match import Finding, Found, find
from migrator.model import Argument, Edit, Hunk, Insert, Patch, Probe
from migrator.rewrite import rewrite
from migrator.source import Module, parse, skim

ANY = SpecifierSet()
FILE = "nemo/module.py"


def hunk(edit: str, scope: str = "", *, file: str = FILE, versions: str = "", variant: str = "") -> Hunk:
    """A hunk for any version."""
    return Hunk(SpecifierSet(versions), file, scope, edit, variant)


def insert(text: str, before: str, *, file: str = FILE, versions: str = "") -> Insert:
    """New definitions, `text` being one or more of them with two blank lines between."""
    texts = tuple(text.strip("\n").split("\n\n\n"))
    names = tuple(_name(t) for t in texts)
    return Insert(SpecifierSet(versions), file, before, "new.py", names, texts)


def _name(text: str) -> str:
    return text.split("def ")[1].split("(")[0] if "def " in text else text.split(" ")[0].rstrip(":")


def argument(function: str, add: str, call: str = "", calls: int = 1, *, file: str = FILE) -> Argument:
    """A parameter, or with `call` a keyword argument."""
    return Argument(ANY, file, function, add, call, calls)


def probe(
    scope: str = "", *, present: str = "", calls: str = "", passes: str = "", defines: str = ""
) -> Probe:
    """A probe for any version."""
    return Probe(ANY, FILE, scope, present, calls, passes, defines)


def patch(
    id: str,
    *edits: Edit,
    project: str = "nemo",
    probes: tuple[Probe, ...] = (),
    requires: tuple[str, ...] = (),
    default: bool = True,
    fingerprint: str = "one",
) -> Patch:
    """A patch with nothing said of it."""
    return Patch(project, id, id, "", "", (), "", edits, probes, requires, default, fingerprint)


def module(text: str | bytes) -> Module:
    """Source as it is on disk."""
    return parse(text if isinstance(text, bytes) else text.encode())


def look(edit: Edit, text: str | bytes) -> Finding:
    """What a source says of an edit, whether the whole of it is parsed or a part."""
    raw = text if isinstance(text, bytes) else text.encode()
    whole, part = find(edit, parse(raw)), find(edit, skim(raw))
    assert (whole.found, whole.reason) == (part.found, part.reason)
    return whole


def make(text: str | bytes, *edits: Edit) -> bytes:
    """The source with edits made, after checking that they read back as made."""
    new = rewrite(module(text), edits)
    assert rewrite(skim(text if isinstance(text, bytes) else text.encode()), edits) == new
    for edit in edits:
        assert look(edit, new).found is Found.DONE, look(edit, new)
    return new


def written(text: str, *edits: Edit) -> str:
    """`make` for text."""
    return make(text, *edits).decode()

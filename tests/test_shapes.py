"""What is in the objects of `--json`; that they are as documented is tested in test_docs_json.py."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from packaging.specifiers import SpecifierSet

from migrator import shapes
from migrator.commands import Failure, Outcome
from migrator.ledger import Entry
from migrator.model import FileChange, Git, Install, PatchState, State
from tests.edits import hunk, patch

ROOT = Path("/opt/site-packages")
INSTALL = Install("nemo", "nemo_toolkit", "2.5.0", ROOT, "checkout", True, False, Git("abc", None), ("note",))


def test_of_outcome() -> None:
    states = (PatchState(patch("p"), INSTALL, State.DRIFTED, "because", ("nemo/a.py",)),)
    changes = (FileChange(ROOT, "nemo/a.py", b"a", b"b", b"a"), FileChange(ROOT, "nemo/c.py", b"", b"", b""))
    failed = (Failure("nemo", "p", "2.5.0", ROOT, "why"),)
    shape = shapes.of_outcome(Outcome(changes, states, failed, ("said",), 3), dry_run=False)
    assert shape["changed"] == [
        {
            "path": "/opt/site-packages/nemo/a.py",
            "before": hashlib.sha256(b"a").hexdigest(),
            "after": hashlib.sha256(b"b").hexdigest(),
        }
    ]
    assert shape["patches"][0]["state"] == "drifted"
    assert shape["failed"] == [{"project": "nemo", "id": "p", "root": str(ROOT), "reason": "why"}]
    assert shape["written"] is True
    assert shapes.of_outcome(Outcome(changes, states), dry_run=True)["written"] is False
    assert shapes.of_outcome(Outcome(changes[1:], states), dry_run=False)["written"] is False
    assert json.loads(json.dumps(shape)) == shape


def test_of_diff_is_text_whatever_the_bytes_are() -> None:
    shape = shapes.of_diff({ROOT: b"+# \xe9\n"})
    assert shape == {"trees": [{"top": str(ROOT), "diff": "+# \ufffd\n"}]}


def test_of_log() -> None:
    entry = Entry("2025-10-01T12:00:00Z", "apply", "1.0", ("nemo/a.py",), ("nemo/p",), ())
    shape = json.loads(json.dumps(shapes.of_log([(ROOT, entry)])))
    assert shape["entries"][0]["applied"] == ["nemo/p"]
    assert shape["entries"][0]["root"] == str(ROOT)


def test_places_are_named_once() -> None:
    edit = replace(hunk("-a\n+b"), versions=SpecifierSet(">=2"))
    assert shapes.places(patch("p", edit, edit)) == [">=2  nemo/module.py"]

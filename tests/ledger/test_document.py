"""Checked reading of JSON. What a damaged file leads to is in test_journal.py and test_transaction.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from migrator.ledger import document


def test_format_comes_first() -> None:
    data = document.dump({"a": "é"})
    assert json.loads(data) == {"format": 1, "a": "é"}
    assert data.startswith(b'{\n "format": 1,')
    assert data.endswith(b"}\n")


def test_load(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    assert document.load(file, lambda data: data["a"], "") is None
    file.write_bytes(document.dump({"a": 5}))
    assert document.load(file, lambda data: data["a"], "") == 5


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (document.table, {}, []),
        (document.tables, [{}], [[]]),
        (document.tables, [], {}),
        (document.text, "", 1),
        (document.texts, ["a"], "a"),
        (document.texts, [], [1]),
        (document.digest, "0123456789abcdef" * 4, "0123456789ABCDEF" * 4),
        (document.digest, "f" * 64, "f" * 64 + "\n"),
        (document.digest, "f" * 64, ""),
        (document.digest_or_none, "", "f"),
        (document.below, "a/b.py", "a/../../b.py"),
        (document.below, "a", "/a"),
        (document.below, "..a", ".."),
        (document.below, "a", ""),
    ],
)
def test_checks(check: Callable[[object], object], good: object, bad: object) -> None:
    result = check(good)
    assert (list(result) if isinstance(result, tuple) else result) == good
    with pytest.raises((TypeError, ValueError)):
        check(bad)

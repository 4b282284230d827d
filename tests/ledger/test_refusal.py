"""Why the system refuses, and what to do."""

from __future__ import annotations

import errno
import os

import pytest

from migrator.ledger.refusal import explain


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.ENOSPC, "Make room"), (errno.EROFS, "while the image is built"), (errno.EACCES, "owner")],
)
def test_explain(code: int, remedy: str) -> None:
    said = explain(OSError(code, os.strerror(code), "/opt/a.py"))
    assert said.startswith(f"Cannot read or write /opt/a.py: {os.strerror(code)}. ")
    assert remedy in said


def test_names_what_a_rename_was_to_replace() -> None:
    assert "/opt/a.py" in explain(
        OSError(errno.EBUSY, "Device or resource busy", "/opt/temp", None, "/opt/a.py")
    )


def test_unknown() -> None:
    assert explain(OSError("odd")) == "Cannot read or write a file: odd. Run cpfix again when that is mended."

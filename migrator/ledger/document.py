"""The ledger's JSON files: read with every field checked, written for people to read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TypeVar

from migrator.model import CannotApply, EnvironmentRefuses

FORMAT = 1
_DIGEST = re.compile(r"[0-9a-f]{64}")

T = TypeVar("T")


def load(path: Path, parse: Callable[[dict[str, object]], T], remedy: str) -> T | None:
    """What `parse` makes of a document, None where there is none.

    `parse` may raise KeyError, TypeError or ValueError. Raises CannotApply where the document is damaged (the
    message ends with `remedy`) or of another format, EnvironmentRefuses where it may not be read.
    """
    try:
        document = table(json.loads(path.read_bytes()))
        if document["format"] == FORMAT:
            return parse(document)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise EnvironmentRefuses(
            f"{path} cannot be read ({error.strerror}): run cpfix as its owner."
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise CannotApply(
            f"{path} is damaged ({why}), so it cannot say what cpfix has written. {remedy}"
        ) from error
    raise CannotApply(
        f"{path} has format {document['format']!r}, this cpfix reads {FORMAT}: use the version that wrote it."
    )


def dump(document: dict[str, object]) -> bytes:
    """The bytes of a document, with the format in front."""
    return (json.dumps({"format": FORMAT, **document}, indent=1) + "\n").encode()


def table(value: object) -> dict[str, object]:
    """An object with names."""
    if not isinstance(value, dict):
        raise TypeError(f"an object was expected, not {value!r:.60}")
    return value


def tables(value: object) -> list[dict[str, object]]:
    """An array of objects."""
    if not isinstance(value, list):
        raise TypeError(f"an array was expected, not {value!r:.60}")
    return [table(item) for item in value]


def text(value: object) -> str:
    """A string."""
    if not isinstance(value, str):
        raise TypeError(f"a string was expected, not {value!r:.60}")
    return value


def texts(value: object) -> tuple[str, ...]:
    """An array of strings."""
    if not isinstance(value, list):
        raise TypeError(f"an array was expected, not {value!r:.60}")
    return tuple(text(item) for item in value)


def digest(value: object) -> str:
    """A sha256 in hex; it may name a file."""
    if not _DIGEST.fullmatch(text(value)):
        raise ValueError(f"a sha256 was expected, not {value!r:.60}")
    return text(value)


def digest_or_none(value: object) -> str:
    """A sha256 in hex, or "" for a file that is not there."""
    return digest(value) if value else ""


def below(value: object) -> str:
    """A posix path that cannot lead out of the folder that it is joined to."""
    path = PurePosixPath(text(value))
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"a path below the import root was expected, not {value!r:.200}")
    return text(value)

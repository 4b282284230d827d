"""The compiled files that Python may load in place of a source file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import cache_from_source
from pathlib import Path


def compiled(source: Path) -> tuple[Path, ...]:
    """Every `.pyc` of `source`, for any interpreter and optimisation level.

    Python trusts a `.pyc` whose recorded source time and size still fit, and an "unchecked-hash" one
    always, so each of them may outlive a change of its source. Looks in `__pycache__` beside the source as
    imported and beside the real file behind symlinks, and below `sys.pycache_prefix` where that is set.
    """
    if source.suffix != ".py":
        return ()
    places = dict.fromkeys((source, source.resolve()))
    return tuple(dict.fromkeys(file for place in places for file in _compiled_from(place)))


def _compiled_from(place: Path) -> Iterator[Path]:
    folders = [place.parent / "__pycache__"]
    if sys.pycache_prefix is not None:
        folders.append(Path(cache_from_source(str(place))).parent)
    for folder in folders:
        if folder.is_dir():
            for file in sorted(folder.iterdir()):
                if file.name.startswith(f"{place.stem}.") and file.suffix == ".pyc":
                    yield file

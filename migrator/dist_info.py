"""What the metadata of installed distributions claims; whether it is true, only the files themselves tell."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from migrator.pythonpath import is_file, names_in

_SUFFIXES = (".dist-info", ".egg-info", ".egg-link")
_NAME = re.compile(r"(?P<name>.+?)(-(?P<version>\d[^-]*)(-py\d.*)?)?\.(dist-info|egg-info|egg-link)")


@dataclass(frozen=True)
class Dist:
    """One `.dist-info`, `.egg-info` or `.egg-link`."""

    path: Path
    name: str  # canonical: "nemo-toolkit"
    version: str  # "" for an egg-link

    def lists(self, package: str) -> bool:
        """Whether its RECORD names files below `package`, a posix path."""
        record = "\n" + _text(self.path / "RECORD")
        return f"\n{package}/" in record

    def project_folder(self) -> Path | None:
        """The folder that an editable install points to, resolved."""
        if self.path.suffix == ".egg-link":
            lines = _text(self.path).splitlines()
            return Path(lines[0].strip()).resolve() if lines else None
        written = _text(self.path / "direct_url.json")
        if not written:
            return None
        from urllib.parse import unquote, urlsplit  # slow to import, and rarely wanted

        try:
            origin = json.loads(written)
            url = urlsplit(str(origin["url"])) if origin.get("dir_info", {}).get("editable") else None
        except (ValueError, KeyError, AttributeError):
            return None
        return Path(unquote(url.path)).resolve() if url and url.scheme == "file" else None


def canonical(name: str) -> str:
    """A distribution's name as the package index compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions(folder: Path, names: Collection[str]) -> tuple[Dist, ...]:
    """The metadata in `folder` of the distributions with these canonical names."""
    found = []
    for entry in names_in(folder):
        match = _NAME.fullmatch(entry) if entry.endswith(_SUFFIXES) else None
        if match and (name := canonical(match["name"])) in names:
            path = folder / entry
            found.append(Dist(path, name, match["version"] or _version(path)))
    return tuple(found)


def _version(path: Path) -> str:
    """`Version:` of an egg-info folder, or of one that is a file."""
    header = re.search(r"^Version: *(\S+)", _text(path if is_file(path) else path / "PKG-INFO"), re.MULTILINE)
    return header[1] if header else ""


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""

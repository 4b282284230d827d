"""A small install with a journal, for tests of planning: the disk is a folder, the ledger a dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.specifiers import SpecifierSet

from migrator.changes import changes, without
from migrator.files import Files, Journal, digest, files_of
from migrator.model import FileChange, FileRecord, Install, Patch, PatchState, Project, State
from migrator.plan import inspect

PROJECT = Project("nemo", "nemo_toolkit", "nemo", "nemo/package_info.py", "", SpecifierSet(">=1,<3"))


@dataclass
class World:
    """One import root, what cpfix wrote below it, and the originals."""

    root: Path
    version: str = "2.5.0"
    cpfix: str = "1.0"
    records: dict[tuple[Path, str], FileRecord] = field(default_factory=dict)
    originals: dict[str, bytes] = field(default_factory=dict)

    @property
    def install(self) -> Install:
        """The install below the root."""
        return Install("nemo", "nemo_toolkit", self.version, self.root, "wheel", True, True)

    @property
    def journal(self) -> Journal:
        """What planning sees of the ledger."""
        return Journal(dict(self.records), lambda record: self.originals[record.before])

    @property
    def files(self) -> Files:
        """The files as they are now."""
        return files_of(self.root, self.journal)

    def put(self, **texts: str) -> None:
        """Write `nemo/NAME.py`, as somebody else than cpfix."""
        (self.root / "nemo").mkdir(exist_ok=True)
        for name, text in texts.items():
            (self.root / f"nemo/{name}.py").write_bytes(text.encode())

    def text(self, name: str) -> str:
        """What `nemo/NAME.py` holds."""
        return (self.root / f"nemo/{name}.py").read_bytes().decode()

    def look(self, *patches: Patch) -> list[PatchState]:
        """The state of each patch."""
        return inspect(self.install, PROJECT, patches, self.journal, self.files)

    def states(self, *patches: Patch) -> list[State]:
        """The bare states."""
        return [s.state for s in self.look(*patches)]

    def state(self, patch: Patch) -> PatchState:
        """The state of one patch that is the whole series."""
        (state,) = self.look(patch)
        return state

    def plan(self, series: Sequence[Patch], only: Sequence[str] = ()) -> list[FileChange]:
        """What apply would write, for all or for some ids."""
        chosen = [s for s in self.look(*series) if not only or s.patch.id in only]
        return changes(self.install, series, chosen, self.journal, self.files, self.cpfix)

    def apply(self, *series: Patch, only: Sequence[str] = ()) -> list[FileChange]:
        """Write what apply would write."""
        return self.commit(self.plan(series, only))

    def revert(self, path: str, series: Sequence[Patch], *ids: str) -> FileChange:
        """Take patches out of a file; all of them without ids."""
        taken = {f"nemo/{id}" for id in ids}
        taken = taken or {a.name for a in self.records[self.root, path].patches}
        change = without(path, self.install, series, taken, self.journal, self.files)
        return self.commit([change])[0]

    def commit(self, planned: list[FileChange]) -> list[FileChange]:
        """What the ledger does."""
        for change in planned:
            assert change.target.read_bytes() == change.old
            change.target.write_bytes(change.new)
            self.originals[digest(change.original)] = change.original
            key = (change.root, change.path)
            self.records.pop(key, None)
            if change.patches:
                hashes = digest(change.original), digest(change.new)
                self.records[key] = FileRecord(change.root, change.path, *hashes, change.patches)
            else:
                assert change.new == change.original
        return planned

"""The frozen dataclasses that the rooms of cpfix hand each other. Nothing here reads or writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from packaging.specifiers import SpecifierSet


@dataclass(frozen=True)
class Contribution:
    """What an upstream project asks of a pull request."""

    line_length: int = 0  # in characters; 0 where it is not known
    rules: tuple[str, ...] = ()  # what a contributor has to see to, a sentence each


@dataclass(frozen=True)
class Project:
    """One upstream project: where its code lives and which patches its series holds, in order."""

    name: str  # as on the command line: "nemo", "megatron-core", "megatron-bridge"
    distribution: str  # as on the package index: "nemo_toolkit"
    package: str  # dotted import name: "nemo", "megatron.core"
    version_file: str  # posix path below the import root: "nemo/package_info.py"
    upstream: str  # repository URL
    known: SpecifierSet  # releases this series has been tried against
    series: tuple[str, ...] = ()  # patch ids in the order in which they apply
    contribution: Contribution = Contribution()


@dataclass(frozen=True)
class Git:
    """The repository that an install lives in."""

    head: str  # full commit hash, "" on an unborn branch
    dirty: bool | None  # tracked files differ from HEAD; None where git could not say


@dataclass(frozen=True)
class Install:
    """One copy of one project on disk."""

    project: str
    distribution: str
    version: str  # from the version file, "" where it could not be read
    root: Path  # import root: the folder that holds `nemo/` or `megatron/`, symlinks resolved
    kind: str  # "wheel" (dist-info beside the package), "editable", "checkout" or "copy"
    imports: bool  # this is the copy that `import` finds
    writable: bool
    git: Git | None = None
    notes: tuple[str, ...] = ()  # what a user should know: symlinks, hidden namespace, version mismatch


@dataclass(frozen=True)
class Hunk:
    """An edit of logical lines inside one scope of one file."""

    versions: SpecifierSet
    file: str  # posix path below the import root
    scope: str  # qualified name, "" for the module
    edit: str  # lines that start with "-", "+" or " "
    variant: str = ""  # of the edits with a variant, those of the one that fits the code are meant


@dataclass(frozen=True)
class Insert:
    """New top-level definitions, taken by name from the Python file beside the patch."""

    versions: SpecifierSet
    file: str
    before: str  # name of the top-level definition that they are put in front of
    source: str  # file name beside the patch
    names: tuple[str, ...]
    text: tuple[str, ...]  # source text of each name, in the order of `names`
    variant: str = ""


@dataclass(frozen=True)
class Argument:
    """A parameter added to a function, or a keyword argument added to the calls inside it."""

    versions: SpecifierSet
    file: str
    function: str  # qualified name
    add: str  # "name: type = default" for a parameter, "name=value" for a call
    call: str = ""  # dotted name as called; "" adds a parameter
    calls: int = 1  # how many calls of that name the function has
    variant: str = ""
    width: int = 0  # columns of upstream's formatter: a longer row is broken; 0 for no limit


Edit = Hunk | Insert | Argument


@dataclass(frozen=True)
class Probe:
    """Upstream's own fix, known by its code. All conditions that are given must hold."""

    versions: SpecifierSet
    file: str
    scope: str
    present: str = ""  # logical lines to be found in the scope, `...` and `$NAME` allowed
    calls: str = ""  # last component of a name that the scope calls
    passes: str = ""  # a keyword argument that some call in the scope is given
    defines: str = ""  # a parameter, class field or local definition of the scope


@dataclass(frozen=True)
class TestFile:
    """A unit test for upstream's own test folder: `export` commits it, `apply` knows nothing of it."""

    versions: SpecifierSet
    source: str  # file name beside the patch
    path: str  # posix path below the top of the upstream repository
    text: str = field(repr=False)
    variant: str = ""  # of the edits that it tests; "": of all


@dataclass(frozen=True)
class OutdatedTests:
    """Upstream's own tests that state what a patch changes: `export` names them."""

    versions: SpecifierSet
    path: str  # posix path below the top of the upstream repository
    names: tuple[str, ...]  # of the test functions; a file need not have all of them


@dataclass(frozen=True)
class Patch:
    """One idea, one file, one future pull request."""

    project: str
    id: str
    title: str
    why: str
    symptom: str
    references: tuple[str, ...]
    retire_when: str
    edits: tuple[Edit, ...]
    probes: tuple[Probe, ...]
    requires: tuple[str, ...] = ()  # "id" in the same project, "project/id" in another
    default: bool = True
    fingerprint: str = ""  # sha256 over the TOML file and the new code
    tests: tuple[TestFile, ...] = ()
    outdated: tuple[OutdatedTests, ...] = ()

    @property
    def name(self) -> str:
        """`project/id`, unique over all projects."""
        return f"{self.project}/{self.id}"


class State(str, Enum):
    """What a patch is on an install; the values are the words that the command line prints."""

    NEEDED = "needed"
    APPLIED = "applied"
    FIXED_UPSTREAM = "fixed-upstream"
    NOT_APPLICABLE = "not-applicable"
    PARTIAL = "partial"
    CONFLICT = "conflict"
    DRIFTED = "drifted"

    @property
    def is_error(self) -> bool:
        """True where the patch can neither be applied nor is known to be superfluous."""
        return self in (State.PARTIAL, State.CONFLICT)

    @property
    def is_work(self) -> bool:
        """True where `apply` has something to do."""
        return self in (State.NEEDED, State.DRIFTED)


@dataclass(frozen=True)
class PatchState:
    """A patch on an install, and why it is in that state."""

    patch: Patch
    install: Install
    state: State
    reason: str
    files: tuple[str, ...] = ()  # posix paths below the import root that the patch edits here
    in_doubt: bool = (
        False  # outside every range, and no probe shows that the defect is absent: never a silent OK
    )


@dataclass(frozen=True)
class AppliedPatch:
    """A patch as the journal remembers it."""

    project: str
    id: str
    fingerprint: str
    cpfix: str  # version of the cpfix that applied it

    @property
    def name(self) -> str:
        """`project/id`."""
        return f"{self.project}/{self.id}"


@dataclass(frozen=True)
class FileRecord:
    """What the journal knows of one patched file."""

    root: Path  # import root, resolved
    path: str  # posix path below `root`
    before: str  # sha256 of the original bytes
    after: str  # sha256 of the bytes that cpfix wrote
    patches: tuple[AppliedPatch, ...]


@dataclass(frozen=True)
class FileChange:
    """New bytes for one file, and what the journal is to say of it afterwards."""

    root: Path  # import root, resolved
    path: str  # posix path below `root`
    old: bytes = field(repr=False)  # what the file holds now
    new: bytes = field(repr=False)  # what it shall hold
    original: bytes = field(repr=False)  # what it held before cpfix first touched it
    patches: tuple[AppliedPatch, ...] = ()  # empty: `new` is the original again, the record goes

    @property
    def target(self) -> Path:
        """The file on disk (may be a symlink)."""
        return self.root / self.path


class CpfixError(Exception):
    """A failure with an exit code; the message says what to do next."""

    exit_code = 1


class UsageError(CpfixError):
    """The command line asks for something that does not exist or cannot be combined."""

    exit_code = 2


class CannotApply(CpfixError):
    """A patch cannot be applied or taken back; nothing was written."""

    exit_code = 3


class EnvironmentRefuses(CpfixError):
    """Nothing supported was found, or the files cannot be written (read-only, locked)."""

    exit_code = 4

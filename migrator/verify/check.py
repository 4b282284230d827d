"""What a verification says: one `Check` a claim and CP size, all of them in a `Report`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast

Status = Literal["passed", "failed", "not run"]


@dataclass(frozen=True)
class Check:
    """One claim about the stack, tried at one context parallel size."""

    name: str  # "data: targets", "parity: gradients", ...
    cp: int | None  # context parallel size, None where the claim has none
    status: Status
    measured: float | None = None  # in the unit of `bound`
    bound: float | None = None  # largest `measured` that passes
    detail: str = ""  # what was seen; for "failed" the defect, for "not run" the reason


# Names of checks without which a level has shown little: its torch, and the import of what is installed.
GROUNDS = (" level", ": import")


@dataclass(frozen=True)
class Report:
    """All checks of one verification and what they rest on."""

    checks: tuple[Check, ...]
    stubs: tuple[str, ...] = ()  # packages and functions that were replaced, and by what
    levels: tuple[str, ...] = ()  # levels that were run: "static", "cpu", "gpu"
    pictures: Mapping[str, Any] = field(default_factory=dict)  # data for the HTML page, plain JSON
    by_name: bool = False  # the level was asked for by its name, not "as far as the machine allows"

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.status == "failed")

    @property
    def unmet(self) -> tuple[Check, ...]:
        """Why a level that was asked for by name could not be run: no torch, or a project that cannot be
        imported.
        """
        return tuple(
            check
            for check in self.checks
            if self.by_name and check.status == "not run" and check.name.endswith(GROUNDS)
        )

    @property
    def exit_code(self) -> int:
        """1 where a check failed, a level asked for could not be run or nothing was checked, else 0."""
        proven = any(check.status == "passed" for check in self.checks)
        return 1 if self.failed or self.unmet or not proven else 0


def worst(values: Iterable[float]) -> float:
    """The largest of some deviations, 0 if there are none; NaN counts as infinite, wherever it stands."""
    return max((value if value == value else float("inf") for value in values), default=0.0)


def worst_loss(got: Iterable[float], want: Iterable[float]) -> float:
    """The largest relative deviation of some losses from the right ones, as `worst` counts."""
    return worst(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(got, want, strict=True))


def bounded(name: str, cp: int | None, measured: float, bound: float, detail: str = "") -> Check:
    """A check that passes where `measured <= bound`; NaN fails."""
    return Check(name, cp, "passed" if measured <= bound else "failed", measured, bound, detail)


def counted(name: str, cp: int | None, faults: Sequence[str], detail: str = "") -> Check:
    """A check that passes without faults; the first three are quoted, all are counted."""
    if not faults:
        return Check(name, cp, "passed", 0.0, 0.0, detail)
    more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
    return Check(name, cp, "failed", float(len(faults)), 0.0, "; ".join(faults[:3]) + more)


def to_json(check: Check) -> dict[str, Any]:
    """`check` as plain JSON."""
    return asdict(check)


def from_json(data: Mapping[str, Any]) -> Check:
    """The inverse of `to_json`; ValueError where `data` is no check."""
    try:
        status = data["status"]
        if status not in ("passed", "failed", "not run"):
            raise ValueError(f"unknown status {status!r}")
        return Check(
            str(data["name"]),
            data["cp"],
            cast(Status, status),
            data["measured"],
            data["bound"],
            str(data["detail"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a check: {data!r}") from error

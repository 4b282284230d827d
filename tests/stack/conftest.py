"""Says which stacks are left out."""

from __future__ import annotations

from tests.stack.stacks import NEEDS_PY312, PY312, at_hand


def pytest_report_header() -> str:
    """One line at the top of a run."""
    left_out = [stack for stack in NEEDS_PY312 if stack not in at_hand(*NEEDS_PY312)]
    if not left_out:
        return "stacks: all"
    names = ", ".join(f"{stack} ({_versions(dict(stack.versions))})" for stack in left_out)
    return f"stacks: not run, as {PY312} names no Python 3.12: {names}"


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{project} {version}" for project, version in versions.items())

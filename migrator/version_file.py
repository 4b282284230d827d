"""The version that a `package_info.py` states, read on the syntax tree and never executed."""

from __future__ import annotations

import ast

from packaging.version import InvalidVersion, Version

_RELEASE = ("MAJOR", "MINOR", "PATCH")


def read_version(source: bytes) -> tuple[str, str]:
    """The version that `source` states, and what is to be said of it ("" if nothing).

    A literal `__version__` at the top level wins. Otherwise MAJOR, MINOR, PATCH and PRE_RELEASE make the
    version, as upstream joins them. The git hash that newer releases append at import time is left out: it
    belongs to the repository around the current copy, which need not be the project's. A version that cannot
    be read is "".
    """
    try:
        literals = _literals(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError):
        return "", "it is not valid Python"
    stated = literals.get("__version__")
    if isinstance(stated, str):
        return (stated, "") if is_version(stated) else ("", f"{stated!r} is not a version")
    numbers = [literals.get(name) for name in _RELEASE]
    if not all(type(number) is int for number in numbers):
        return "", "it states neither __version__ nor MAJOR, MINOR and PATCH as literals"
    release = ".".join(map(str, numbers))
    suffix = literals.get("PRE_RELEASE", "")
    if not isinstance(suffix, str):
        return release, "its PRE_RELEASE is not a literal"
    if not is_version(release + suffix):
        return release, f"{release + suffix!r} is not a version"
    return release + suffix, ""


def is_version(text: str) -> bool:
    """Whether `text` is a version that can be compared (PEP 440)."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def same_version(one: str, other: str) -> bool:
    """Whether two versions are equal, local parts (`+0d8e071`) and spelling aside."""
    if is_version(one) and is_version(other):
        return Version(one).public == Version(other).public
    return one == other


def _literals(tree: ast.Module) -> dict[str, object]:
    """What the names of the top level were last set to; None where that is not a literal."""
    values: dict[str, object] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name):
                values[target.id] = value.value if isinstance(value, ast.Constant) else None
    return values

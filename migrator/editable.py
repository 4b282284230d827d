"""setuptools' editable finder modules, read as text and never imported."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HOOK_SUFFIX = ".__path_hook__"  # ends the fake entry that stands for a finder in `sys.path` and in `__path__`


@dataclass(frozen=True)
class Finder:
    """What a `__editable___NAME_VERSION_finder.py` makes importable."""

    file: Path
    placeholder: str  # the fake path entry; "" where the finder has none
    mapping: Mapping[str, Path]  # dotted name to the folder (or stem of the module) that holds it
    namespaces: Mapping[str, tuple[Path, ...]]  # dotted name to the folders it is spread over


def read_finder(file: Path) -> Finder | None:
    """The finder in `file`; None where it is missing or does not look like one."""
    try:
        # What counts stands above the classes.
        tree = ast.parse(file.read_bytes().partition(b"\nclass ")[0])
    except (OSError, SyntaxError, ValueError):
        return None
    values = {name: value for node in tree.body for name, value in _assigned(node)}
    mapping, namespaces = values.get("MAPPING"), values.get("NAMESPACES", {})
    if not isinstance(mapping, dict) or not isinstance(namespaces, dict):
        return None
    hook = values.get("PATH_PLACEHOLDER")
    return Finder(
        file,
        f"{hook}{HOOK_SUFFIX}" if isinstance(hook, str) else "",
        {name: Path(target) for name, target in mapping.items()},
        {name: tuple(map(Path, targets)) for name, targets in namespaces.items()},
    )


def _assigned(node: ast.stmt) -> list[tuple[str, object]]:
    """Names that a statement sets to a literal; of `"name" + ".__path_hook__"` the left side is taken."""
    if isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets, value = [node.target], node.value
    else:
        return []
    if isinstance(value, ast.BinOp):
        value = value.left
    try:
        literal = ast.literal_eval(value)
    except ValueError:
        return []
    return [(target.id, literal) for target in targets if isinstance(target, ast.Name)]

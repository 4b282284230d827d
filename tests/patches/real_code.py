"""Definitions of the real wheels' modules, patched or not, run with stand-ins for what the modules import."""

from __future__ import annotations

import ast
import importlib.util
import linecache
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from fixtures import fetch
from migrator import plan, series

PATCHES = Path(__file__).parents[2] / "patches"


@cache
def source(project: str, version: str, file: str, patched: bool) -> bytes:
    """A file of a wheel as it is, or with all default patches of its project, in the order of the series."""
    raw = (fetch.path(project, version) / file).read_bytes()
    if not patched:
        return raw
    patches = [patch for patch in series.load().of(project) if patch.default]
    edits = [e for patch in patches for e in plan.edits_for(patch, version) if e.file == file]
    assert edits, f"no patch of {project} {version} touches {file}"
    return plan.patched(raw, edits, file)


def define(
    project: str, version: str, file: str, patched: bool, names: str, **stand_ins: Any
) -> dict[str, Any]:
    """The named top-level definitions (blank-separated) of a file, with those of the file that they use.

    What the file imports has to be in `stand_ins`; of what is in both, the stand-in counts.
    """
    namespace = {"__name__": __name__, **stand_ins}  # a module that is there, as dataclass looks for it
    exec(_code(project, version, file, patched, names, frozenset(stand_ins)), namespace)
    return namespace


@cache
def _code(
    project: str, version: str, file: str, patched: bool, names: str, given: frozenset[str]
) -> CodeType:
    tree = _tree(project, version, file, patched)
    found = {name: node for node in tree.body for name in _names(node) if name not in given}
    wanted: dict[int, ast.stmt] = {}
    queue = names.split()
    for name in queue:
        if name in found and id(found[name]) not in wanted:
            wanted[id(found[name])] = found[name]
            queue += [part.id for part in ast.walk(found[name]) if isinstance(part, ast.Name)]
    body = [node for node in tree.body if id(node) in wanted]
    where = f"{project}-{version}/{'patched' if patched else 'unpatched'}/{file}"
    text = source(project, version, file, patched).decode()
    linecache.cache[where] = (len(text), None, text.splitlines(keepends=True), where)  # for inspect.stack()
    code: CodeType = compile(  # annotations are not evaluated: they name what is not imported here
        ast.Module(body, []), where, "exec", annotations.compiler_flag, dont_inherit=True
    )
    return code


@cache
def _tree(project: str, version: str, file: str, patched: bool) -> ast.Module:
    return ast.parse(source(project, version, file, patched))


def _names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def new_code(file: str) -> ModuleType:
    """A Python file of `patches/`, as it stands."""
    spec = importlib.util.spec_from_file_location(f"patches_{Path(file).stem}", PATCHES / file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

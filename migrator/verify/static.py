"""What can be told without importing the target: files compile, names are defined, calls fit, no stale .pyc,
and the file that was patched is the one that Python imports. Standard library only, run by the target's
interpreter.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import marshal
import symtable
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType

from migrator.verify.check import Check, counted

# Where sequence packing meets context parallelism, whatever the version; those that are there are looked at.
TARGETS = (
    "nemo/collections/llm/gpt/model/base.py",
    "nemo/collections/llm/gpt/data/core.py",
    "nemo/collections/llm/gpt/data/fine_tuning.py",
    "nemo/collections/llm/gpt/data/packed_sequence.py",
    "nemo/collections/llm/modelopt/distill/model.py",
    "nemo/utils/sequence_packing_utils.py",
    "megatron/core/utils.py",
    "megatron/bridge/training/gpt_step.py",
    "megatron/bridge/training/vlm_step.py",
    "megatron/bridge/training/llava_step.py",
    "megatron/bridge/training/utils/packed_seq_utils.py",
    "megatron/bridge/data/datasets/packed_sequence.py",
    "megatron/bridge/data/datasets/packing_utils.py",
    "megatron/bridge/data/datasets/sft.py",
    "megatron/bridge/data/builders/finetuning_dataset.py",
)

# Names that upstream itself misspells, in code that packing doesn't reach.
UPSTREAM_SLIPS = {"megatron/core/utils.py": ("flashinver_version",)}


def target_files(roots: Sequence[Path], files: Sequence[Path]) -> list[tuple[Path, str]]:
    """(root, posix path below it) of each file to look at: `files`, and the `TARGETS` that are there."""
    found: dict[tuple[Path, str], None] = {}
    for root in roots:
        here = [path for path in TARGETS if (root / path).is_file()]
        here += [file.relative_to(root).as_posix() for file in files if file.is_relative_to(root)]
        found |= dict.fromkeys((root, path) for path in here if path.endswith(".py"))
    return list(found)


def module_name(path: str) -> str:
    """Dotted name of a posix path below an import root."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def find_module(name: str) -> ModuleSpec | None:
    """The spec that `import name` would use; nothing is imported."""
    top, *rest = name.split(".")
    spec = importlib.util.find_spec(top)
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        # By its last name: the path of a namespace package looks its parent up, which isn't imported.
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    return spec


def imports_elsewhere(root: Path, path: str) -> str:
    """Where `import` would take this module from, "" where it is the file itself."""
    spec = find_module(module_name(path))
    if spec is None or spec.origin is None:
        return "nowhere"
    same = Path(spec.origin).exists() and Path(spec.origin).samefile(root / path)
    return "" if same else spec.origin


def undefined_names(source: str, path: str) -> list[str]:
    """Global names that the module reads but nowhere binds; [] for modules with a star import."""
    if any(isinstance(n, ast.ImportFrom) and n.names[0].name == "*" for n in ast.walk(ast.parse(source))):
        return []
    table = symtable.symtable(source, path, "exec")
    known = {
        s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()
    }
    known |= set(dir(builtins)) | {
        "__file__",
        "__path__",
        "__class__",
        "__annotations__",
        *UPSTREAM_SLIPS.get(path, ()),
    }
    known |= {
        symbol.get_name()
        for scope in _scopes(table)
        for symbol in scope.get_symbols()
        if symbol.is_declared_global() and symbol.is_assigned()
    }
    missing = {
        symbol.get_name()
        for scope in _scopes(table)
        for symbol in scope.get_symbols()
        if symbol.is_referenced() and symbol.is_global() and symbol.get_name() not in known
    }
    missing |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and s.get_name() not in known}
    return sorted(missing)


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _scopes(child)


def stale_pyc(source: bytes, file: Path) -> list[str]:
    """Cached byte code that this interpreter would use in place of `source` though it is of other source."""
    stale = []
    for level in ("", 1, 2):
        cached = Path(importlib.util.cache_from_source(str(file), optimization=level))
        try:
            raw = cached.read_bytes()
        except OSError:
            continue
        if len(raw) < 16 or raw[:4] != importlib.util.MAGIC_NUMBER or not _would_be_used(raw, source, file):
            continue
        fresh = compile(source, str(file), "exec", dont_inherit=True, optimize=int(level or 0))
        if not _same_code(marshal.loads(raw[16:]), fresh):
            stale.append(str(cached))
    return stale


def _would_be_used(raw: bytes, source: bytes, file: Path) -> bool:
    flags = int.from_bytes(raw[4:8], "little")
    if flags & 1:
        return not flags & 2 or raw[8:16] == importlib.util.source_hash(source)
    stat = file.stat()
    return raw[8:16] == (int(stat.st_mtime) & 0xFFFFFFFF).to_bytes(4, "little") + (
        stat.st_size & 0xFFFFFFFF
    ).to_bytes(4, "little")


def _same_code(one: CodeType, other: CodeType) -> bool:
    return one == other


def call_faults(modules: Sequence[tuple[str, ast.Module]]) -> list[str]:
    """Calls between the given files (path, tree) that the called function's signature does not take."""
    defined = {
        (module_name(path), node.name): node
        for path, tree in modules
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }
    faults = []
    for path, tree in modules:
        local = {name: node for (module, name), node in defined.items() if module == module_name(path)}
        for imported in ast.walk(tree):
            if isinstance(imported, ast.ImportFrom):
                for alias in imported.names:
                    node = defined.get((imported.module or "", alias.name))
                    if node is not None:
                        local[alias.asname or alias.name] = node
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in local:
                why = _misfit(call, local[call.func.id])
                if why:
                    faults.append(f"{path}:{call.lineno}: {call.func.id}() {why}")
    return faults


def _misfit(call: ast.Call, function: ast.FunctionDef) -> str:
    if function.decorator_list or any(isinstance(arg, ast.Starred) for arg in call.args):
        return ""
    arguments = function.args
    positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    keywords = {k.arg for k in call.keywords if k.arg is not None}
    names = {*positional, *(a.arg for a in arguments.kwonlyargs)}
    if arguments.kwarg is None and not keywords <= names:
        return f"has no parameter {sorted(keywords - names)[0]!r}"
    if arguments.vararg is None and len(call.args) > len(positional):
        return f"takes {len(positional)} positional arguments, not {len(call.args)}"
    if any(k.arg is None for k in call.keywords):
        return ""
    required = positional[len(call.args) : len(positional) - len(arguments.defaults)]
    required += [a.arg for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is None]
    lacking = [name for name in required if name not in keywords]
    return f"lacks the argument {lacking[0]!r}" if lacking else ""


def check_static(roots: Sequence[Path], files: Sequence[Path] = ()) -> list[Check]:
    """The static checks of the files that matter below `roots`, which have to be on `sys.path`."""
    targets = target_files(roots, files)
    if not targets:
        return [
            Check(
                "static: files compile", None, "not run", detail="nothing that cpfix knows is installed there"
            )
        ]
    compiles: list[str] = []
    undefined: list[str] = []
    stale: list[str] = []
    elsewhere: list[str] = []
    modules: list[tuple[str, ast.Module]] = []
    for root, path in targets:
        source = (root / path).read_bytes()
        try:
            compile(source, path, "exec", dont_inherit=True)
            tree = ast.parse(source)
            text = ast.unparse(tree)  # as text whatever the encoding
        except (SyntaxError, ValueError) as error:
            compiles.append(f"{path}: {error}")
            continue
        modules.append((path, tree))
        undefined += [f"{path}: {name}" for name in undefined_names(text, path)]
        stale += stale_pyc(source, root / path)
        origin = imports_elsewhere(root, path)
        if origin:
            elsewhere.append(f"{root / path}: Python imports {origin}")
    looked = f"{len(targets)} files, Python {sys.version.split()[0]}"
    return [
        counted("static: files compile", None, compiles, looked),
        counted("static: every name is defined", None, undefined),
        counted("static: calls between them fit", None, call_faults(modules)),
        counted("static: no stale byte code", None, stale),
        counted("static: these files are the ones imported", None, elsewhere),
    ]

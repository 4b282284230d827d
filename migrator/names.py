"""Names that a module uses without defining them: new code must not lean on what its module doesn't have."""

from __future__ import annotations

import builtins
import symtable
from collections.abc import Iterator

from migrator.source import Module, without_warnings

_IMPLICIT = frozenset(dir(builtins)) | {
    "__file__",
    "__name__",
    "__doc__",
    "__path__",
    "__spec__",
    "__package__",
}


def undefined(module: Module) -> set[str]:
    """Names that are read from the module's globals and bound neither there nor by Python itself."""
    with without_warnings():
        top = symtable.symtable(module.text, "<module>", "exec")
    bound = {
        s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()
    }
    read: set[str] = set()
    for table in _tables(top):
        for symbol in table.get_symbols():
            if symbol.is_declared_global() and symbol.is_assigned():
                bound.add(symbol.get_name())
            if symbol.is_referenced() and (symbol.is_global() or table is top):
                read.add(symbol.get_name())
    return read - bound - _IMPLICIT


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)

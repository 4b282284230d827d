"""A definition parsed by itself is the one that the whole file has; in any doubt the whole file is parsed."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from migrator.source import Module, Unreadable, find_scopes, parse, skim, top_level
from tests.sandbox import patched_files

Upstream = Callable[[str, str], Path]


def dumped(module: Module, name: str) -> list[str]:
    """The top-level definitions of a name, positions included."""
    return [ast.dump(d, include_attributes=True) for d in top_level(module, name)]


@pytest.mark.parametrize(
    ("project", "version"), [("nemo", "2.5.3"), ("megatron-core", "0.16.0"), ("megatron-bridge", "0.3.0")]
)
def test_every_definition_of_real_files(
    upstream: Callable[[str, str], Path], project: str, version: str
) -> None:
    for path in sorted(patched_files(project)):
        file = upstream(project, version) / path
        if file.is_file():
            whole = parse(file.read_bytes())
            names = {n.name for n in ast.walk(whole.tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
            for name in names:
                assert dumped(skim(file.read_bytes()), name) == dumped(whole, name), (path, name)


LONELY = "import os\n\n\n@d\ndef f(a):\n    '''doc'''\n\n# a comment\n    return (\na\n)\n\n\ndef g(): pass\n"


def test_one_is_parsed_by_itself() -> None:
    module = skim(LONELY.encode())
    assert dumped(module, "g") == dumped(parse(LONELY.encode()), "g")
    assert "tree" not in vars(module)
    assert find_scopes(module, "g") == top_level(module, "g")


@pytest.mark.parametrize(
    "text",
    [
        LONELY,
        "def f(): pass\ndef f(): pass\n",
        "if x:\n    def f(): pass\nelse:\n    def f(): pass\n",
        "class C:\n    def f(self): pass\ndef f(): pass\n",
        "class C:\n    def f(self): pass\n",
        "def g():\n    def f(): pass\n",
        "x = '''\n\ndef f(): pass\n'''\n",
        'x = """\n# def\ndef f(): pass\n"""\ndef f(): return 1\n',
        "@d(\n    1,\n)\ndef f(): pass\n",
        "@d\n@e\nasync def f(): pass\n",
        "@d\n# why\ndef f(): pass\n",
        "@d\n\n\ndef f(): pass\n",
        "@d(\n    1,\n)\n\n# why\ndef f(): pass\n",
        "@d\ndef g(): pass\n\n\n# why\ndef f(): pass\n",
        "def f():\n    x = '''\ndef g(): pass\n'''\n    return x\n",
        "def f():\n    return a + \\\nb\n",
        "def f(\n    a,\n): pass\n",
        "def f():\n    if a:\n        pass\n\x0c\n    return 1\n",
        "\x0cdef f(): pass\n",
        "def f():\r\n    pass\r\n\r\n\r\nx = 1\r\n",
        "def f():\r    pass\r\r\rx = 1\r",
        "try:\n    from a import f\nexcept ImportError:\n    def f(): pass\n",
        "f = 1\n",
        "def f_(): pass\nclass ff: pass\n",
        "class f(Base):\n    a = 1\n\n    def f(self): pass\n",
        "def f(): pass",
        "x = 1; y = 2\ndef f(): pass\n",
    ],
)
def test_the_same_as_by_the_whole_file(text: str) -> None:
    assert dumped(skim(text.encode()), "f") == dumped(parse(text.encode()), "f")


def test_a_broken_file_is_found_out_when_all_of_it_is_looked_at() -> None:
    module = skim(b"def f(): pass\n\n\nx = = 1\n")
    assert len(top_level(module, "f")) == 1
    with pytest.raises(Unreadable, match="invalid syntax"):
        find_scopes(module, "")
    with pytest.raises(Unreadable, match="invalid syntax"):
        parse(b"def f(): pass\n\n\nx = = 1\n")

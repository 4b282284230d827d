"""However a file is laid out, an edit finds its place and leaves the rest alone."""

from __future__ import annotations

import ast
import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from migrator.match import Found
from migrator.model import Edit
from migrator.rewrite import rewrite
from tests.edits import argument, hunk, insert, look, make, module

# The pieces of a file: what an edit names, in any spelling, and what may stand between.

SPLIT = [
    'out = split(val, "cp", dim=1)',
    "out = split(val, 'cp', dim=1)",
    "out = (split(val, '''cp''', dim=0x1,))",
    "out=split(val,'c' 'p',dim = 1)",
    "out = split(\n@    val,  # the batch\n@    'cp',\n\n@    # along\n@    dim=1,\n@)",
    "out = split(val, \\\n'cp', dim=1)",
    "out = \\\n@  split(val,\n'cp',\n@dim=1)",
]
BRANCH = ["if size > 1:", "if (size > 1):", "if size>1 :", "if (\n@    size\n@    > 1  # ranks\n@):"]
ELSE = ["else:", "else :", "else:  # alone"]
NOISE = ["", "  ", "\t", "@# why", "@# \x0c odd: é", "\x0c", "@#", "@'a string'", "@pass  # nothing"]
COMMENTS = ["@# of it", "@#: é", "@#"]
BEHIND = ["", "  # behind", " #é", "  ", "\t"]


@dataclass(frozen=True)
class Layout:
    """How a file is written down."""

    unit: str
    eol: str
    bom: bytes
    end: bool  # with a line end in its last row

    def rows(self, text: str, depth: int) -> str:
        """A piece at a depth; `@` stands for its indentation."""
        return text.replace("@", self.unit * depth).replace("\n", self.eol)

    def file(self, pieces: Sequence[tuple[str, int]]) -> bytes:
        """The whole file."""
        text = "".join(self.rows(text, depth) + self.eol for text, depth in pieces)
        return self.bom + (text if self.end else text.removesuffix(self.eol)).encode()


layouts = st.builds(
    Layout,
    unit=st.sampled_from(["    ", "  ", "\t", " "]),
    eol=st.sampled_from(["\n", "\r\n", "\r"]),
    bom=st.sampled_from([b"", codecs.BOM_UTF8]),
    end=st.booleans(),
)
noise = st.lists(st.sampled_from(NOISE), max_size=3)
comments = st.lists(st.sampled_from(COMMENTS), max_size=2)
behind = st.sampled_from(BEHIND)


@st.composite
def steps(draw: st.DrawFn) -> dict[str, list[tuple[str, int]]]:
    """The parts of a step function: rows and depths, by what they are."""

    def some(depth: int) -> list[tuple[str, int]]:
        return [(row, depth) for row in draw(noise)]

    def said(depth: int) -> list[tuple[str, int]]:
        return [(row, depth) for row in draw(comments)]

    return {
        "top": [("import torch", 0), *[(row, 0) for row in draw(st.lists(st.sampled_from(["", "@# x"])))]],
        "constant": [("RATE = 1", 0)],
        "def": [("def step(batch, size):", 0), *some(1)],
        "if": [("@" + draw(st.sampled_from(BRANCH)), 1), *some(2)],
        "val": [("@val = batch['a']" + draw(behind), 2)],
        "between": some(2),
        "split": [("@" + draw(st.sampled_from(SPLIT)) + draw(behind).rstrip(), 2)],
        "after": some(2),
        "else": [("@" + draw(st.sampled_from(ELSE)), 1), *some(2), ("@out = None", 2), ("", 0)],
        "comments": said(1),
        "return": [("@return out" + draw(behind), 1)],
    }


def whole(parts: dict[str, list[tuple[str, int]]], **changed: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """All pieces in order, some of them changed."""
    return [piece for name, pieces in parts.items() for piece in changed.get(name, pieces)]


def kept(parts: dict[str, list[tuple[str, int]]]) -> str:
    """The comment behind the statement that goes."""
    last = parts["split"][0][0].split("\n")[-1]
    return "  #" + last.split(")", 1)[1].split("#", 1)[1] if "#" in last.split(")", 1)[-1] else ""


@given(layouts, steps())
def test_a_statement_is_replaced(layout: Layout, parts: dict[str, list[tuple[str, int]]]) -> None:
    edit = hunk("-out = split(val, 'cp', dim=1)\n+if packed:\n+    out = thd(val)\n+out = x", "step")
    new = [("@if packed:", 2), ("@out = thd(val)", 3), ("@out = x" + kept(parts), 2)]
    assert look(edit, layout.file(whole(parts))).found is Found.TO_DO
    assert make(layout.file(whole(parts)), edit) == layout.file(whole(parts, split=new))


@given(layouts, steps())
def test_lines_come_behind(layout: Layout, parts: dict[str, list[tuple[str, int]]]) -> None:
    edit = hunk(" val = batch['a']\n+check(val)\n+\n+# so", "step")
    new = [*parts["val"], ("@check(val)", 2), ("", 2), ("@# so", 2)]
    assert make(layout.file(whole(parts)), edit) == layout.file(whole(parts, val=new))


@given(layouts, steps())
def test_lines_come_in_front_of_comments(layout: Layout, parts: dict[str, list[tuple[str, int]]]) -> None:
    edit = hunk("+check(out)\n return out", "step")
    new = [("@check(out)", 1), *parts["comments"]]
    assert make(layout.file(whole(parts)), edit) == layout.file(whole(parts, comments=new))


@given(layouts, steps())
def test_a_clause_is_looked_into(layout: Layout, parts: dict[str, list[tuple[str, int]]]) -> None:
    edit = hunk(" if size > 1:\n     ...\n else:\n     ...\n-    out = None\n+    out = val", "step")
    new = [piece if piece[0] != "@out = None" else ("@out = val", 2) for piece in parts["else"]]
    assert make(layout.file(whole(parts)), edit) == layout.file(whole(parts, **{"else": new}))


@settings(max_examples=25)  # seven edits, each by itself too
@given(layouts, steps())
def test_everything_at_once_and_in_any_order(layout: Layout, parts: dict[str, list[tuple[str, int]]]) -> None:
    edits: list[Edit] = [
        hunk(" import torch\n+import math"),
        insert("def thd(val):\n    return val", "step"),
        argument("step", "cp: int = 1"),
        hunk(" val = batch['a']\n+check(val)", "step"),
        hunk("-out = split(val, 'cp', dim=1)\n+out = thd(val)", "step"),
        hunk("+check(out)\n return out", "step"),
    ]
    raw = layout.file(whole(parts))
    new = make(raw, *edits)
    assert rewrite(module(raw), edits[::-1]) == new
    step_by_step = raw
    for edit in edits:
        step_by_step = make(step_by_step, edit)
    assert step_by_step == new
    function = module(new).tree.body[4]
    assert isinstance(function, ast.FunctionDef)
    assert "out = thd(val)" in ast.unparse(function)


@given(layouts, steps())
def test_the_strongest_reformatter(layout: Layout, parts: dict[str, list[tuple[str, int]]]) -> None:
    edit = hunk("-out = split(val, 'cp', dim=1)\n+out = thd(val)", "step")
    raw = layout.file(whole(parts))
    plain = ast.unparse(module(raw).tree).encode()
    assert ast.dump(module(make(plain, edit)).tree) == ast.dump(module(make(raw, edit)).tree)

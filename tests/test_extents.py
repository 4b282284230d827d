"""Rows of logical lines as libcst sees them; what is written there is tested in test_rewrite.py."""

from __future__ import annotations

import pytest

from migrator.extents import Extent, Unparsable, extents, parse_run
from migrator.source import find_scopes
from tests.edits import module

SOURCE = """\
import a  # one

# of f
@d(
    1,
)
# too
def f(
    b,
):  # why
    '''doc

    more'''
    # of c
    c = (
        1
    )  # behind
    if b:
        d; e
    else: g
"""


def shown(scope: str, *wanted: int) -> dict[int, Extent]:
    """The extents by 1-based row, their rows being 0-based."""
    (node,) = find_scopes(module(SOURCE), scope)
    return {row + 1: extent for row, extent in extents(node, module(SOURCE).rows, wanted).items()}


def test_a_scope_of_the_module() -> None:
    found = shown("", 0, 3)
    assert found[1] == Extent(0, 0, 0, 0, "# one", True, None)
    assert found[8] == Extent(
        comments=2, first=3, header=9, last=12, comment="# why", alone=True, inner=(10, 4)
    )


def test_only_what_is_wanted_is_parsed() -> None:
    assert list(shown("", 0)) == [1]
    assert list(shown("f", 14)) == [15]


def test_a_function() -> None:
    found = shown("f", 14, 17)
    assert found[15] == Extent(13, 14, 16, 16, "# behind", True, None)
    assert found[18] == Extent(17, 17, 17, 17, "", True, (18, 8))
    assert (found[19].alone, found[20].alone, found[20].inner) == (False, False, None)


def test_rows_that_libcst_cannot_read_are_named() -> None:
    with pytest.raises(Unparsable, match="lines 2 to 3"):
        parse_run(("a\n", "b = (\n", "1\n", "2)\n"), 1, 3)


@pytest.mark.parametrize("eol", ["\n", "\r\n", "\r"])
def test_line_ends_do_not_shift_rows(eol: str) -> None:
    rows = module(SOURCE.replace("\n", eol)).rows
    tree = module(SOURCE.replace("\n", eol)).tree
    assert extents(tree, rows, [3])[7].last == 12

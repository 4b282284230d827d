"""Edits written into files: what stands around them stays as it was, byte for byte."""

from __future__ import annotations

import codecs

import pytest

from migrator.model import Edit
from migrator.rewrite import CannotRewrite, rewrite
from tests.edits import hunk, insert, make, module, written

# --- hunks: where new lines go


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        # replaced: comments above and behind stay
        ("-a\n+b", "# above\na  # behind\n# below\n", "# above\nb  # behind\n# below\n"),
        ("-a\n+b\n+c", "a  # behind\n", "b\nc  # behind\n"),
        ("-a\n+b\n+# own", "a  # behind\n", "b  # behind\n# own\n"),
        ("-a\n-b\n+c", "a  # one\nb  # two\n", "c  # two\n"),
        ("-f(a, b)\n+c", "f(\n    a,  # inside\n    b,\n)  # behind\n", "c  # behind\n"),
        ("-x = 'a'\n+b", "x = '''a'''\n", "b\n"),
        ("-x = 'a\\nb'\n+b", "x = '''a\nb'''  # behind\n", "b  # behind\n"),
        ("-a\n+if b:\n+    c\n+else:\n+    d", "a\n", "if b:\n    c\nelse:\n    d\n"),
        ("-a\n+b", "c; \na\n", "c; \nb\n"),
        ("-a\n+b", "x = 1\n\\\na\n", "x = 1\n\\\nb\n"),
        ("-a\n+b", "a;\n", "b\n"),
        # several
        ("-a\n+b\n x\n-c\n+d", "a\nx\nc\n", "b\nx\nd\n"),
        ("-a\n-b\n-c\n+d", "a\nb\nc\ne\n", "d\ne\n"),
        ("-a\n+x\n-b\n+y", "a\n# why\nb\n", "x\n# why\ny\n"),
        # removed
        (" a\n-b\n c", "a\n# of b\nb  # behind\nc\n", "a\n# of b\nc\n"),
        (" a\n-if b:\n-    c\n d", "a\nif b:\n    # why\n    c\nd\n", "a\n    # why\nd\n"),
        # behind the line above, before its comments below
        (" a\n+b", "a\n\n# of c\nc\n", "a\nb\n\n# of c\nc\n"),
        (" a\n+\n+b", "a  # behind\nc\n", "a  # behind\n\nb\nc\n"),
        (" a\n+b\n+\n c", "a\n# of c\nc\n", "a\nb\n\n# of c\nc\n"),
        # in front of the line below, above its comments
        ("+b\n a", "# of a\na\n", "b\n# of a\na\n"),
        ("+b\n a", "x\n\n# far\n\n# of a\n# too\na\n", "x\n\n# far\n\nb\n# of a\n# too\na\n"),
        ("+b\n a", "'''doc'''\n# of a\na\n", "'''doc'''\nb\n# of a\na\n"),
        ("+b\n+\n @x\n def f():\n     a", "# of f\n@x\n# too\ndef f():\n    a\n",
         "b\n\n# of f\n@x\n# too\ndef f():\n    a\n"),
        ("+b\n def f():", "@x(\n  1)\ndef f(): a\n", "b\n@x(\n  1)\ndef f(): a\n"),
        # clauses
        (" if a:\n     b\n+elif c:\n+    d\n else:", "if a:\n    b\n# of else\nelse:\n    e\n",
         "if a:\n    b\nelif c:\n    d\n# of else\nelse:\n    e\n"),
        (" else:\n-    a\n+    b", "if x:\n    a\nelse:  # why\n    a\n",
         "if x:\n    a\nelse:  # why\n    b\n"),
        (" else:\n+    b", "if x:\n    a\nelse:  # why\n    a\n",
         "if x:\n    a\nelse:  # why\n    b\n    a\n"),
        ("-elif a:\n+elif b:", "if x: y\nelif a:  # why\n  z\n", "if x: y\nelif b:  # why\n  z\n"),
        (" try:\n+    b", "try:\n    a\nfinally: c\n", "try:\n    b\n    a\nfinally: c\n"),
        ("-except E as e:\n+except F:", "try: a\n# why\nexcept E as e:\n  b\n",
         "try: a\n# why\nexcept F:\n  b\n"),
        (" finally:\n-    a\n+    b", "try: c\nfinally:\n\ta\n", "try: c\nfinally:\n\tb\n"),
        (" match x:\n-    case 1:\n+    case 2:", "match x:\n  case 1:\n    a\n",
         "match x:\n  case 2:\n    a\n"),
        # docstrings
        (" def f():\n+    b", "def f():\n    '''doc'''\n\n    a\n",
         "def f():\n    '''doc'''\n    b\n\n    a\n"),
        ("-def f(a):\n+def f(a, b):", "def f(a):  # why\n  '''doc\n\n  more'''\n  a\n",
         "def f(a, b):  # why\n  '''doc\n\n  more'''\n  a\n"),
        ("-def f(a):\n+def f(b):\n+    c", "def f(a):\n  'doc'\n  a\n", "def f(b):\n  'doc'\n  c\n  a\n"),
        ("-def f(a):\n+def f(b):\n+    'own'", "def f(a):\n  'doc'\n  a\n", "def f(b):\n  'own'\n  a\n"),
        ("-class C:\n+class C(B):", "class C:\n    '''doc'''\n    a\n",
         "class C(B):\n    '''doc'''\n    a\n"),
        (" x\n-def f():\n-    a\n y", "x\ndef f():\n    'doc'\n    a\ny\n", "x\ny\n"),
        ("-@x\n-def f():\n+@y\n+def f():", "@x\ndef f():\n    a\n", "@y\ndef f():\n    a\n"),
        # the end of the file
        ("-a\n+b", "a", "b\n"),
        (" a\n+b", "a", "a\nb\n"),
        (" a\n-b\n c", "a\nb\nc", "a\nc"),
        ("+b\n a", "a", "b\na"),
        # one-line compounds that only stand beside
        ("+b\n if a:", "if a: c\n", "b\nif a: c\n"),
        ("-b\n+c", "if a: x\nelse: y\nb\n", "if a: x\nelse: y\nc\n"),
        # what holes stand for
        ("-f($A)\n+g(not $A)", "f(a or  'b')\n", "g(not (a or  'b'))\n"),
        ("-f($A)\n+g($A)", "f(a or\n  b)\n", "g(a or b)\n"),
        ("-f($A, $AB)\n+g($AB, $A)", "f(1, '$A')\n", "g('$A', 1)\n"),
    ],
)  # fmt: skip
def test_hunk(edit: str, before: str, after: str) -> None:
    assert written(before, hunk(edit)) == after


@pytest.mark.parametrize("eol", ["\n", "\r\n", "\r"])
def test_line_ends(eol: str) -> None:
    before = "def f():\n    a\n    # why\n    b\n".replace("\n", eol)
    after = "def f():\n    a\n    x\n\n    y\n    # why\n    z\n".replace("\n", eol)
    assert make(before.encode(), hunk(" a\n+x\n+\n+y\n-b\n+z", "f")) == after.encode()


def test_mixed_line_ends_are_taken_from_the_row_beside() -> None:
    assert make(b"a\r\nb\nc\rd", hunk(" a\n+x\n b\n+y\n c\n+z\n d\n+e")) == b"a\r\nx\r\nb\ny\nc\rz\rd\re\r"


@pytest.mark.parametrize("unit", ["  ", "   ", "    ", "\t", "        "])
def test_indentation_is_the_files_own(unit: str) -> None:
    before = "def f():\n    if a:\n        b\n    c\n"
    after = "def f():\n    if a:\n        b\n        if d:\n            e\n    if g:\n        h\n    c\n"
    edit = hunk(" if a:\n     b\n+    if d:\n+        e\n+if g:\n+    h", "f")
    assert written(before.replace("    ", unit), edit) == after.replace("    ", unit)


def test_indentation_that_differs_from_block_to_block() -> None:
    before = "if a:\n  b\nelif c:\n        d\nelse:\n\te\n"
    assert written(before, hunk(" elif c:\n+    x")) == before.replace("        d", "        x\n        d")
    assert written(before, hunk(" else:\n+    x")) == before.replace("\te", "\tx\n\te")
    assert written(before, hunk(" if a:\n+    x")) == before.replace("  b", "  x\n  b", 1)
    assert written(before, hunk(" b\n+x")) == before.replace("  b", "  b\n  x", 1)


def test_rows_within_a_statement_keep_their_own_indentation() -> None:
    edit = hunk("-a\n+f(\n+    x,\n+      y,\n+)", "f")
    assert written("def f():\n\ta\n", edit) == "def f():\n\tf(\n\t    x,\n\t      y,\n\t)\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (codecs.BOM_UTF8 + b"# \xc3\xa9\na\n", codecs.BOM_UTF8 + b"# \xc3\xa9\nb\n"),
        (b"# coding: latin-1\nx = '\xe9'; y\na\n# \xff", b"# coding: latin-1\nx = '\xe9'; y\nb\n# \xff"),
        (
            b"#!python\n# -*- coding: cp1252 -*-\n# \x80\na",
            b"#!python\n# -*- coding: cp1252 -*-\n# \x80\nb\n",
        ),
        ("x = 'é\u2028'\na  # ü\n".encode(), "x = 'é\u2028'\nb  # ü\n".encode()),
        (b"x\n\x0c\na\n\x0c\n", b"x\n\x0c\nb\n\x0c\n"),
        (b"x \t\n   \na\t\n\t\n", b"x \t\n   \nb\n\t\n"),
    ],
)
def test_bytes_around(before: bytes, after: bytes) -> None:
    assert make(before, hunk("-a\n+b")) == after


def test_text_that_the_files_encoding_lacks_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="latin"):
        rewrite(module(b"# coding: latin-1\na\n"), [hunk("-a\n+b('\u20ac')")])


def test_several_edits_of_one_file() -> None:
    before = "import a\n\n\n# of f\ndef f(x):\n    g(x)\n    h\n    return 1\n"
    edits: list[Edit] = [
        hunk(" import a\n+import b"),
        insert("def new():\n    pass", "f"),
        hunk("-g(x)\n+g(y)", "f"),
        hunk(" g(x)\n+first", "f"),
        hunk("+second\n h", "f"),
        hunk("-h\n+k", "f"),
        hunk("+last\n return 1", "f"),
    ]
    new = rewrite(module(before), edits).decode()
    assert new == (
        "import a\nimport b\n\n\ndef new():\n    pass\n\n\n# of f\ndef f(x):\n"
        "    g(y)\n    first\n    second\n    k\n    last\n    return 1\n"
    )


def test_insertions_at_one_place_keep_the_order_of_the_edits() -> None:
    edits = [hunk(" a\n+b"), hunk("+c\n d"), hunk(" a\n+e\n d")]
    assert rewrite(module("a\nd\n"), edits) == b"a\nb\nc\ne\nd\n"
    assert rewrite(module("a\nd\n"), edits[::-1]) == b"a\ne\nc\nb\nd\n"


@pytest.mark.parametrize(
    ("edit", "text", "why"),
    [
        ("-b\n+c", "if a: b\n", "line 1 holds more than one statement"),
        (" if a:\n-    b\n+    c", "if a: b\n", "line 1 holds more than one statement"),
        (" if a:\n+    c", "if a: b\n", "line 1 holds more than one statement"),
        ("-a\n+c", "a; b\n", "line 1 holds more than one statement"),
        ("-b\n+c", "a; b\n", "line 1 holds more than one statement"),
        ("+c\n b", "a; b\n", "line 1 holds more than one statement"),
        (" else:\n-    b\n+    c", "if x:\n    y\nelse: b\n", "line 3 holds more than one statement"),
        (
            "-def f():\n-    a\n+def f():\n+    b",
            "def f():\n    'doc'\n    a\n",
            "docstring of line 1 would be lost",
        ),
        ("-a\n+b", "b\n", "applied already"),
        ("-a\n+b", "c\n", "`a` was not found"),
    ],
)
def test_what_cannot_be_written_is_refused(edit: str, text: str, why: str) -> None:
    with pytest.raises(CannotRewrite, match=why):
        rewrite(module(text), [hunk(edit)])


def test_two_edits_of_one_statement_are_refused() -> None:
    with pytest.raises(CannotRewrite, match="two edits want line 2"):
        rewrite(module("x\na\n"), [hunk("-a\n+b"), hunk("-a\n+c")])


# --- new definitions


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(): a\n", "NEWdef f(): a\n"),
        ("import x\n\n\n@d\ndef f():\n    a\n", "import x\n\n\nNEW@d\ndef f():\n    a\n"),
        ("x\n\n\n# of f\n# too\nclass f: pass", "x\n\n\nNEW# of f\n# too\nclass f: pass"),
        ("x\n# far\n\nasync def f(): a\n", "x\n# far\n\nNEWasync def f(): a\n"),
        ("x\n@d\n# of f\ndef f(): a\n", "x\nNEW@d\n# of f\ndef f(): a\n"),
        ("x\n@d(\n  1\n)\n\ndef f(): a\n", "x\nNEW@d(\n  1\n)\n\ndef f(): a\n"),
        ("'''doc'''\ndef f(): a\n", "'''doc'''\nNEWdef f(): a\n"),
    ],
)
@pytest.mark.parametrize("eol", ["\n", "\r\n"])
def test_insert(before: str, after: str, eol: str) -> None:
    new = "# why\nLIMIT = 1\n\n\ndef new(x):\n    return x\n\n\n"
    edit = insert("# why\nLIMIT = 1\n\n\ndef new(x):\n    return x", "f")
    edit = type(edit)(edit.versions, edit.file, "f", "new.py", ("LIMIT", "new"), edit.text)
    before, after = (text.replace("NEW", new).replace("\n", eol) for text in (before, after))
    if "\n" not in before.replace("\r\n", ""):
        assert make(before.encode(), edit).decode() == after

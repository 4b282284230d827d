"""The documentation says what is so: generated pages are current, the support matrix fits the real wheels."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs import generate, padding_cost
from fixtures import fetch
from migrator import containers, series
from migrator.model import Hunk, PatchState, State
from migrator.scene import Options, look
from tests.sandbox import make_sandbox

DOCS = generate.DOCS
LOOK_ALIKES = Path(fetch.__file__).with_name("trees")
RAISED = re.compile(r"^\s*raise (ValueError|RuntimeError)\(")


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


# --- generated pages


def test_generated_pages_are_current() -> None:
    for path, text in generate.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `python -m docs.generate`"


def test_there_is_no_page_of_a_patch_that_is_gone() -> None:
    assert set((DOCS / "patches").glob("*.md")) <= set(generate.pages())


def test_what_stands_between_marks_is_replaced() -> None:
    assert generate.filled("a\n<!-- x -->\nold\n<!-- /x -->\nb", "x", "new\n") == (
        "a\n<!-- x -->\nnew\n<!-- /x -->\nb"
    )
    with pytest.raises(ValueError, match="no <!-- x -->"):
        generate.filled("a\n<!-- x -->\n", "x", "new\n")


# --- the support matrix against the code


def is_as_documented(state: PatchState, cell: str) -> bool:
    match cell:
        case "needed":
            return state.state is State.NEEDED
        case "fixed":
            return state.state is State.FIXED_UPSTREAM
        case "optional":
            return state.state is State.NOT_APPLICABLE and "optional, and possible here" in state.reason
        case "-":
            return state.state is State.NOT_APPLICABLE and not state.in_doubt
    return state.in_doubt


def differences(root: Path) -> list[str]:
    """Where the code below `root` is not what the support matrix says."""
    found = look(Options(roots=(root,)))
    documented = [
        (s, generate.cell(s.patch, found.series.project(s.install.project), s.install.version))
        for s in found.states
    ]
    assert documented
    return [
        f"{s.patch.name} on {s.install.version}: {s.state.value} ({s.reason}), documented as {cell}"
        for s, cell in documented
        if not is_as_documented(s, cell)
    ]


@pytest.mark.upstream
@pytest.mark.parametrize("project", ["nemo", "megatron-core", "megatron-bridge"])
def test_support_matrix_fits_every_locked_wheel(project: str, tmp_path: Path) -> None:
    versions = [wheel.version for wheel in fetch.lock() if wheel.project == project]
    roots = [make_sandbox(tmp_path / version, {project: version}) for version in versions]
    assert [line for root in roots for line in differences(root)] == []


def test_support_matrix_fits_the_releases_that_are_tags_only() -> None:
    for tree in LOOK_ALIKES.iterdir():
        assert differences(tree) == []


def test_support_matrix_has_a_column_for_each_release() -> None:
    page = text_of("support-matrix.md")
    for project in series.load().projects:
        labels = [label for label, _ in generate.columns(project, series.load().of(project.name))]
        assert all(f" {label} |" in page for label in labels)
        ends = [version for label in labels for version in label.split(" to ")]
        spoken = generate.releases(project.name)
        assert [ends[0], ends[-1]] == [spoken[0], spoken[-1]]


# --- containers, the price of padding


def test_every_container_has_its_section() -> None:
    page = text_of("containers.md")
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == [f"nemo:{c.tag}" for c in containers.load()]


def test_release_candidates_speak_for_a_version_without_a_release() -> None:
    assert generate.held("megatron-bridge", "0.1")[-1] == "0.1.0rc4"
    assert generate.held("megatron-bridge", "0.2") == ["0.2.0", "0.2.1", "0.2.2"]


def test_padding_costs_half_of_the_multiple_for_each_sample() -> None:
    samples = padding_cost.lengths(1024)
    assert sum(samples) / len(samples) == pytest.approx(1024, rel=0.01)
    assert padding_cost.cost(samples, 16) == pytest.approx(7.5 / 1024, rel=0.02)
    assert padding_cost.cost([4, 5, 8], 4) == pytest.approx(3 / 17)
    assert padding_cost.cost(samples, 1) == 0


def test_sequence_parallelism_asks_nothing_more_of_a_pack() -> None:
    for cp in padding_cost.CP_SIZES:
        for per_rank in padding_cost.PER_RANK:
            alone = padding_cost.pack_multiple(cp, 1, per_rank)
            assert {padding_cost.pack_multiple(cp, tp, per_rank) for tp in (2, 4, 8, 16)} == {alone}


# --- troubleshooting


def fragments(code: str) -> Iterator[str]:
    """The constant parts, if they are long, of each message that the code raises or hands to what does."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Raise(exc=ast.Call(args=[message])) | ast.Return(value=ast.JoinedStr() as message):
                parts = [n.value for n in ast.walk(message) if isinstance(n, ast.Constant)]
                yield from (" ".join(p.split()) for p in parts if isinstance(p, str) and len(p) > 12)


def added_code(hunk: Hunk) -> Iterator[str]:
    """Each `raise` among the lines that a hunk adds, as a module."""
    rows = [row[1:] for row in hunk.edit.splitlines() if row.startswith("+")]
    for start, row in enumerate(rows):
        if RAISED.match(row):
            indent = len(row) - len(row.lstrip())
            end = next(i for i in range(start, len(rows)) if rows[i].rstrip().endswith(")"))
            yield "\n".join(r[indent:] for r in rows[start : end + 1])


def test_every_error_that_patches_raise_is_explained() -> None:
    page = " ".join(text_of("troubleshooting.md").split())
    modules = [path.read_text(encoding="utf-8") for path in sorted(series.PATCHES.glob("*/*.py"))]
    hunks = [e for p in series.load().patches for e in p.edits if isinstance(e, Hunk)]
    found = {f for code in [*modules, *(c for h in hunks for c in added_code(h))] for f in fragments(code)}
    assert len(found) > 20
    assert any("without padding the mask" in text for text in found)  # raised in a hunk
    assert any("the length of each packed sequence must be" in text for text in found)  # raised by a caller
    assert sorted(text for text in found if text not in page) == []


def test_every_message_on_the_page_is_one_of_cpfix() -> None:
    section = text_of("troubleshooting.md").partition("## Messages of cpfix")[2]
    texts = re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)
    parts = {p for t in texts for part in re.split(r"\.\.\.|\bN\b", t) if len(p := part.strip(" .:;()")) > 8}
    sources = (path.read_text(encoding="utf-8") for path in Path(series.__file__).parent.rglob("*.py"))
    constants = {n.value for s in sources for n in ast.walk(ast.parse(s)) if isinstance(n, ast.Constant)}
    said = "\n".join(c for c in constants if isinstance(c, str))
    assert len(texts) > 10
    assert sorted(part for part in parts if part not in said) == []

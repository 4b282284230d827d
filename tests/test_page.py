"""The page of a verification."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from migrator.page import number, render
from migrator.verify.check import Check, Report

SPLIT = {"2": {"bounds": [0, 4, 8], "now": [0, 1, 1, 0, 0, 1, 1, 0], "whole": [0, 0, 1, 1, 1, 1, 0, 0]}}
CURVES = {"1": [2.0, 1.5, 1.0], "2": [2.0, 1.5, 1.0]}


class _Balanced(HTMLParser):
    """Fails on a tag that is closed without having been opened, or the other way round."""

    EMPTY = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def balanced(page: str) -> bool:
    parser = _Balanced()
    parser.feed(page)
    return not parser.open


def test_a_whole_page() -> None:
    checks = (
        Check("step: tokens", 2, "passed", 0.0, 0.0, "every token <once>"),
        Check("parity: gradients", 4, "failed", 0.5, 1e-5, "far off"),
        Check("gpu level", None, "not run", detail="0 GPUs found"),
    )
    page = render(
        Report(checks, ("nemo_run: a stub",), ("cpu",), {"split": SPLIT, "curves": CURVES}),
        ["nemo 2.5.0"],
        "1.0",
    )
    assert balanced(page)
    assert "1 of 3 checks failed" in page
    assert "every token &lt;once&gt;" in page
    for word in ("nemo 2.5.0", "cpfix 1.0", "far off", "1e-05", "0 GPUs found", "nemo_run: a stub"):
        assert word in page
    assert not re.search(r'(src|href)="|https?:', page)  # nothing is loaded from elsewhere


def test_who_gets_which_token_is_drawn_run_by_run() -> None:
    page = render(Report((), pictures={"split": SPLIT}), [], "1.0")
    assert page.count("<rect") == 3 + 5  # 0 0 | 1 1 1 1 | 0 0, and 0 | 1 1 | 0 0 | 1 1 | 0
    assert page.count("<line") == 3


def test_each_stack_has_its_pictures() -> None:
    names = ("nemo 2.5.0", "megatron-bridge 0.1.0rc3")
    pictures = {
        f"{name}, {kind}": data for name in names for kind, data in (("split", SPLIT), ("curves", CURVES))
    }
    page = render(Report((), pictures=pictures), [], "1.0")
    assert balanced(page)
    for name in names:
        assert f"Which rank gets which token of a pack: {name}<" in page
        assert f"Loss curves: {name}<" in page
    assert page.count("<svg") == 4


def test_what_could_not_be_shown_is_no_success() -> None:
    missing = (Check("static: files", None, "passed"), Check("cpu level", None, "not run", detail="no torch"))
    assert "verify: it was not shown to hold<" in render(Report(missing, by_name=True), [], "1.0")
    assert "verify: it holds<" in render(Report(missing), [], "1.0")


def test_each_context_parallel_size_has_a_curve() -> None:
    page = render(Report((), pictures={"curves": CURVES}), [], "1.0")
    points = re.findall(r'points="([^"]*)"', page)
    assert len(points) == 2
    assert points[0] == points[1]  # the losses are equal


def test_a_page_without_pictures_is_whole() -> None:
    page = render(Report((Check("a", None, "passed"),)), [], "1.0")
    assert balanced(page)
    assert "<svg" not in page
    assert "it holds" in page


def test_numbers() -> None:
    assert [number(v) for v in (None, 0.0, 1.23456e-7)] == ["", "0", "1.23e-07"]

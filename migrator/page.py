"""A verification as one self-contained HTML page: the table, who gets which token, and the loss curves."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from migrator.verify.check import Check, Report

_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#bab0ac")
_WIDTH = 900
_MARGIN = 50  # for the numbers beside a curve
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; width: 100% } td, th { padding: .3em .6em; text-align: left;
border-bottom: 1px solid #ddd; vertical-align: top; overflow-wrap: anywhere } .number { text-align: right }
.passed { color: #1a7f37 } .failed { color: #c0221d; font-weight: 600 } .not { color: #777 }
svg { width: 100%; height: auto } figcaption { color: #555 } figure { margin: 1em 0 }
"""


def render(report: Report, stack: Sequence[str], version: str) -> str:
    """The page. `stack` names what was verified, a line each."""
    parts = [
        f"<h1>cpfix verify: {_verdict(report)}</h1>",
        "<p>" + "<br>".join(map(html.escape, stack)) + f"<br>cpfix {html.escape(version)}</p>",
        _table(report.checks),
        *(_splits(stack, drawn) for stack, drawn in _pictures(report, "split")),
        *(_curves(stack, drawn) for stack, drawn in _pictures(report, "curves")),
    ]
    if report.stubs:
        rows = "".join(f"<li>{html.escape(stub)}</li>" for stub in report.stubs)
        parts.append(f"<h2>What was replaced</h2><ul>{rows}</ul>")
    head = f'<meta charset="utf-8"><title>cpfix verify</title><style>{_STYLE}</style>'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _verdict(report: Report) -> str:
    if report.failed:
        return f"{len(report.failed)} of {len(report.checks)} checks failed"
    return "it holds" if report.exit_code == 0 else "it was not shown to hold"


def _pictures(report: Report, kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The pictures of a kind, each with the stack that it belongs to: "" where there is only one."""
    for name, drawn in report.pictures.items():
        stack, _, last = name.rpartition(", ")
        if last == kind and drawn:
            yield stack, drawn


def _heading(text: str, stack: str) -> str:
    return f"<h2>{text}{html.escape(f': {stack}' if stack else '')}</h2>"


def _table(checks: Sequence[Check]) -> str:
    rows = [
        f'<tr><td>{html.escape(c.name)}</td><td class="number">{c.cp or ""}</td>'
        f'<td class="{c.status}">{c.status}</td><td class="number">{number(c.measured)}</td>'
        f'<td class="number">{number(c.bound)}</td><td>{html.escape(c.detail)}</td></tr>'
        for c in checks
    ]
    head = "<tr><th>check</th><th>CP</th><th>result</th><th>measured</th><th>bound</th><th></th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def number(value: float | None) -> str:
    """A measured value in a table."""
    return "" if value is None else f"{value:.3g}"


def _splits(stack: str, splits: Mapping[str, Mapping[str, Sequence[int]]]) -> str:
    parts = [_heading("Which rank gets which token of a pack", stack)]
    for cp, split in splits.items():
        bars = [
            (0, split["whole"], "cut as one sequence, as without the patches"),
            (70, split["now"], "as the installed step splits it"),
        ]
        shapes = "".join(_bar(top, ranks, text) for top, ranks, text in bars)
        total = len(split["now"])
        lines = "".join(
            f'<line x1="{x:.2f}" x2="{x:.2f}" y1="16" y2="120" stroke="#000" stroke-width=".8"/>'
            for x in (_WIDTH * bound / total for bound in split["bounds"])
        )
        caption = (
            f"Context parallel size {cp}: a colour a rank, black lines between sequences, white for none."
        )
        parts.append(
            f'<figure><svg viewBox="0 0 {_WIDTH} 125" role="img">{shapes}{lines}</svg>'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    return "\n".join(parts)


def _bar(top: int, ranks: Sequence[int], text: str) -> str:
    shapes = [f'<text x="0" y="{top + 12}" font-size="12">{html.escape(text)}</text>']
    at = 0
    for rank, run in groupby(ranks):
        length = len(list(run))
        colour = _COLOURS[rank % len(_COLOURS)] if rank >= 0 else "#fff"
        x, width = _WIDTH * at / len(ranks), _WIDTH * length / len(ranks)
        shapes.append(f'<rect x="{x:.2f}" y="{top + 18}" width="{width:.2f}" height="30" fill="{colour}"/>')
        at += length
    return "".join(shapes)


def _curves(stack: str, curves: Mapping[str, Sequence[float]]) -> str:
    losses = [loss for curve in curves.values() for loss in curve if loss == loss]
    if not losses:
        return ""
    low, high = min(losses), max(losses)
    height, span = 260, (high - low) or 1.0
    lines, legend = [], []
    for place, (cp, curve) in enumerate(curves.items()):
        colour, step = _COLOURS[place % len(_COLOURS)], (_WIDTH - _MARGIN) / max(1, len(curve) - 1)
        points = " ".join(
            f"{_MARGIN + i * step:.1f},{10 + (high - loss) / span * (height - 20):.1f}"
            for i, loss in enumerate(curve)
            if loss == loss
        )
        # the later ones thinner, so that equal curves are all seen
        width = 2 + 3 * (len(curves) - 1 - place)
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
        legend.append(f'<span style="color:{colour}">&#9632;</span> CP {html.escape(cp)}')
    caption = f"Loss of real optimizer steps, {low:.4g} to {high:.4g}: {' '.join(legend)}"
    marks = [
        (0, 10, f"{high:.4g}"),
        (0, height - 14, f"{low:.4g}"),
        (_WIDTH - 130, height - 2, "optimizer steps"),
    ]
    words = "".join(f'<text x="{x}" y="{y}" font-size="12">{text}</text>' for x, y, text in marks)
    drawing = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(lines)}{words}</svg>'
    return _heading("Loss curves", stack) + f"<figure>{drawing}<figcaption>{caption}</figcaption></figure>"

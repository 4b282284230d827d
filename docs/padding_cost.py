"""What padding for context parallelism costs, on synthetic data; the tables of the data guide.

    python -m docs.padding_cost

Lengths follow a lognormal distribution, of which the quantiles are taken: no random numbers, the same
tables on every machine.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from statistics import NormalDist

SAMPLES = 20_000
SIGMA = 0.8  # of the logarithm: half of the samples are shorter than 0.73 times the mean
MEANS = (64, 256, 1024, 4096)  # tokens
CP_SIZES = (2, 4, 8)
SEQUENCE_PARALLEL = (1, 4, 8)  # tensor parallel size, 1 without sequence parallelism
BY_HAND = (32, 64, 128)  # multiples that are never derived for these sizes
PER_RANK = (16, 32, 128)  # what the tokens of a rank have to be a multiple of


def lengths(mean: float) -> list[int]:
    """Lengths in tokens of `SAMPLES` samples, at least 1."""
    center = math.log(mean) - SIGMA**2 / 2
    draw = NormalDist(center, SIGMA).inv_cdf
    return [max(1, round(math.exp(draw((i + 0.5) / SAMPLES)))) for i in range(SAMPLES)]


def cost(samples: Sequence[int], multiple: int) -> float:
    """The share of tokens that padding each sample to a multiple adds."""
    return sum(-n % multiple for n in samples) / sum(samples)


def sequence_multiple(cp: int, sp: int) -> int:
    """What the length of each sequence has to be a multiple of: the value that the patches derive."""
    return math.lcm(2 * cp, sp)


def pack_multiple(cp: int, sp: int, per_rank: int) -> int:
    """What the length of a whole pack has to be a multiple of."""
    return math.lcm(2 * cp, cp * sp, cp * per_rank)


def tables() -> dict[str, str]:
    """The tables of the data guide, Markdown, by the name of their place there."""
    samples = [lengths(mean) for mean in MEANS]
    settings: dict[int, list[str]] = {}
    for cp in CP_SIZES:
        for sp in SEQUENCE_PARALLEL:
            label = f"CP {cp}, TP {sp}" if sp > 1 else f"CP {cp}"
            settings.setdefault(sequence_multiple(cp, sp), []).append(label)
    costs = [
        [
            str(multiple),
            "; ".join(settings.get(multiple, ["set by hand only"])),
            *(f"{100 * cost(those, multiple):.2f} %" for those in samples),
        ]
        for multiple in sorted({*settings, *BY_HAND})
    ]
    packs = [[f"CP {cp}", *(str(pack_multiple(cp, 1, n)) for n in PER_RANK)] for cp in CP_SIZES]
    return {
        "padding-cost": _table(["multiple", "derived for", *(f"mean {m}" for m in MEANS)], costs),
        "pack-multiple": _table(["", *(f"{n} per rank" for n in PER_RANK)], packs),
    }


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return (
        "\n" + "".join("| " + " | ".join(row) + " |\n" for row in [head, ["---"] * len(head), *rows]) + "\n"
    )


if __name__ == "__main__":
    sys.stdout.writelines(f"{name}\n{text}" for name, text in tables().items())

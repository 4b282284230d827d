"""What the commands cost, as ratios to importing libcst and click, all measured in one run.

    python bench/bench_cli.py [--rounds N]

The tree is a NeMo 25.09 stack cut down to the files that matter. Each round runs every command once, in
turn, as a process of its own; the ratio is that of the medians. Aims: status <= 0.6, apply <= 1.6.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.sandbox import make_sandbox

VERSIONS = {"nemo": "2.5.0", "megatron-core": "0.14.0", "megatron-bridge": "0.1.0rc3"}


def seconds(command: Sequence[str], before: Callable[[], object] = lambda: None) -> float:
    """Wall time of one process. Raises `CalledProcessError` if it fails."""
    before()
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        root = str(make_sandbox(Path(folder), VERSIONS))
        cpfix = [sys.executable, "-m", "migrator"]
        revert = [*cpfix, "revert", "-q", "--root", root]
        commands: dict[str, tuple[list[str], Callable[[], object]]] = {
            "import libcst, click": ([sys.executable, "-c", "import libcst, click"], lambda: None),
            "import click": ([sys.executable, "-c", "import click"], lambda: None),
            "status": ([*cpfix, "status", "--root", root], lambda: None),
            "diff": ([*cpfix, "diff", "--root", root], lambda: None),
            "apply": (
                [*cpfix, "apply", "-q", "--verify", "static", "--root", root],
                lambda: seconds(revert),
            ),
        }
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            seconds(revert)
            for name, (command, before) in commands.items():
                taken[name].append(seconds(command, before))
    base = statistics.median(taken["import libcst, click"])
    print(f"{'':22}{'median s':>10}{'ratio':>8}   over {rounds} rounds")
    for name, values in taken.items():
        median = statistics.median(values)
        print(f"{name:22}{median:>10.3f}{median / base:>8.2f}")


if __name__ == "__main__":
    main()

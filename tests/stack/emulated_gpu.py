"""A child process in a stack's interpreter: the gpu level, with a CPU in the GPUs' place.

python emulated_gpu.py REPOSITORY COUNT CPS SEED OUT.json ROOT...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(count: int, cps: list[int], seed: int, out: Path) -> None:
    """Write {"checks": [check], "stubs": [stub]}."""
    from migrator.verify import gpu
    from migrator.verify.check import to_json
    from tests.verify.emulated import emulated

    stubs: list[str] = []
    checks = [to_json(check) for check in gpu.check_gpu(emulated(count), cps, seed, stubs.append)]
    out.write_text(json.dumps({"checks": checks, "stubs": stubs}))


if __name__ == "__main__":
    repository, number, sizes, drawn, file, *roots = sys.argv[1:]
    sys.path[:] = [repository, *roots, *(entry for entry in sys.path if Path(entry) != Path(__file__).parent)]
    main(int(number), [int(cp) for cp in sizes.split(",")], int(drawn), Path(file))

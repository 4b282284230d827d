"""The search path of a Python interpreter: this one's, or another's for the asking."""

from __future__ import annotations

import site
import sys
from collections.abc import Iterable, Sequence

from migrator.model import EnvironmentRefuses

_MARK = "cpfix-search-path:"
_ASK = f"""
import json, site, sys
known = list(getattr(site, "getsitepackages", list)()) + [getattr(site, "getusersitepackages", str)()]
print("\\n{_MARK}" + json.dumps([sys.path, known]))
"""


def running_search_path() -> list[str]:
    """`sys.path` of this interpreter, its site-packages folders last as well."""
    return _with_sites(sys.path, [*site.getsitepackages(), site.getusersitepackages()])


def search_path_of(python: str, timeout: float = 30.0) -> list[str]:
    """The search path that the interpreter `python` (a file, or a name on PATH) gives to programs.

    PYTHONPATH counts, the current folder does not. Raises `EnvironmentRefuses` where it does not answer
    within `timeout` seconds.
    """
    import json  # slow to import, and seldom needed
    import subprocess

    try:
        run = subprocess.run(
            [python, "-c", _ASK], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentRefuses(f"{python} did not tell its search path within {timeout:g} s") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise EnvironmentRefuses(
            f"{python} cannot be run: {reason}; give the path of a Python interpreter"
        ) from None
    answers = [line.removeprefix(_MARK) for line in run.stdout.splitlines() if line.startswith(_MARK)]
    if run.returncode or not answers:
        said = (run.stderr.strip() or run.stdout.strip() or "nothing").splitlines()[-1]
        raise EnvironmentRefuses(
            f"{python} did not tell its search path (exit code {run.returncode}): {said}"
        )
    path, sites = json.loads(answers[-1])
    # `-c` put the current folder first; a console script would not have it.
    return _with_sites(path[1:] if path[:1] == [""] else path, sites)


def _with_sites(path: Sequence[str], sites: Iterable[str]) -> list[str]:
    """Name the site folders once more behind the standard library, where they would stand by themselves.

    One that PYTHONPATH names too stands only in front of it, and would pass for a folder whose `.pth` files
    are not read. A folder named twice changes nothing for `import`.
    """
    return [*path, *(folder for folder in sites if folder in path)]

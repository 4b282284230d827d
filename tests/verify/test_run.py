"""The parent: whatever the child does, it ends in time and what it said is kept."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from migrator.model import UsageError
from migrator.verify import run
from migrator.verify.check import Check, Report, to_json

PASSED = json.dumps({"check": to_json(Check("one", None, "passed"))})


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A worker of the test's own, whose `out(line)` appends to the results file."""
    worker = tmp_path / "child_worker.py"
    monkeypatch.setattr(run, "WORKER", worker)
    return worker


def body(worker: Path, text: str) -> None:
    worker.write_text(
        "import json, os, sys, time, signal\nrequest = json.load(open(sys.argv[1]))\n"
        "def out(line):\n    open(request['results'], 'a').write(line + '\\n')\n" + text
    )


def verify(level: str = "static", timeout_s: float = 60) -> Report:
    return run.verify([], level, (2,), sys.executable, timeout_s)


def test_what_a_child_says_is_kept(child: Path) -> None:
    body(
        child,
        f'out({PASSED!r})\nout(\'{{"stub": "triton (stub)"}}\')\nout(\'{{"level": "static"}}\')\n'
        'out(\'{"picture": "split", "data": [1]}\')\nout(\'{"done": true}\')\n',
    )
    report = verify()
    one = Check("one", None, "passed")
    assert report == Report((one,), ("triton (stub)",), ("static",), {"split": [1]}, by_name=True)
    assert report.exit_code == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sys.exit(0)", "it ended with status 0"),
        ("raise ValueError('the last words')", "the last words"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "it ended with status -11"),
        ("out('{\"check\"')", "it ended with status 0"),
    ],
)
def test_a_child_that_does_not_finish_is_a_failure(child: Path, text: str, why: str) -> None:
    body(child, f"out({PASSED!r})\n{text}\n")
    report = verify()
    assert [check.status for check in report.checks] == ["passed", "failed"]
    assert why in report.checks[1].detail
    assert report.exit_code == 1


def test_a_child_that_hangs_is_ended_with_all_its_own(child: Path, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    body(
        child,
        f"pid = os.fork()\nopen({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        f"out({PASSED!r})\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)\n",
    )
    start = time.monotonic()
    report = verify(timeout_s=2)
    assert time.monotonic() - start < 30
    assert "took longer than 2 s" in report.checks[-1].detail
    assert report.exit_code == 1
    for line in pids.read_text().splitlines():
        deadline = time.monotonic() + 10
        while alive(int(line)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not alive(int(line))


def alive(pid: int) -> bool:
    """It runs; a zombie that waits for its new parent doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_interpreter_that_is_not_there() -> None:
    report = run.verify([], "static", (2,), "/nowhere/python", 10)
    assert (report.exit_code, "cannot be started" in report.checks[0].detail) == (1, True)


@pytest.mark.parametrize(("level", "cps"), [("all", (2,)), ("static", (0,))])
def test_what_cannot_be_asked_for(level: str, cps: tuple[int, ...]) -> None:
    with pytest.raises(UsageError):
        run.verify([], level, cps)


@pytest.mark.parametrize(
    ("level", "children"),
    [
        ("static", [["static"]]),
        ("cpu", [["static", "cpu"]]),
        ("gpu", [["static", "cpu"], ["gpu"]]),
        ("auto", [["static", "cpu"], ["gpu"]]),
    ],
)
def test_levels_and_who_sees_gpus(child: Path, level: str, children: list[list[str]]) -> None:
    body(
        child,
        "seen = os.environ.get('CUDA_VISIBLE_DEVICES')\n"
        "out(json.dumps({'picture': '+'.join(request['levels']), 'data': seen}))\n"
        "out('{\"done\": true}')\n",
    )
    pictures = verify(level).pictures
    assert sorted(pictures) == sorted("+".join(levels) for levels in children)
    assert all(seen == "" for levels, seen in pictures.items() if levels != "gpu")


def test_without_torch_a_level_that_was_asked_for_is_said_to_be_missing(child: Path) -> None:
    body(child, f'out({PASSED!r})\nout(\'{{"missing": "cpu"}}\')\nout(\'{{"done": true}}\')\n')
    asked, auto = verify("cpu"), verify("auto")
    for report, code in ((asked, 1), (auto, 0)):
        missing = [check for check in report.checks if check.status == "not run"]
        assert {(check.name, check.detail) for check in missing} == {
            ("cpu level", "torch is not installed there")
        }
        assert report.exit_code == code


def test_a_level_of_which_nothing_ran_is_not_among_those_that_were_run(child: Path) -> None:
    gpu = json.dumps({"check": to_json(Check("gpu: a", None, "not run", detail="0 GPUs found"))})
    body(
        child,
        f"gpu = request['levels'] == ['gpu']\nout({gpu!r} if gpu else {PASSED!r})\n"
        "for level in request['levels']:\n    out(json.dumps({'level': level}))\nout('{\"done\": true}')\n",
    )
    report = verify("auto")
    assert report.levels == ("static", "cpu")
    assert report.exit_code == 0


def test_a_gpu_level_that_breaks_fails_who_asked_for_it(child: Path) -> None:
    broke = json.dumps({"check": to_json(Check("gpu: parity", 2, "failed", None, 0.1, "no kernel"))})
    body(
        child,
        f"out({broke!r} if request['levels'] == ['gpu'] else {PASSED!r})\n"
        "if request['levels'] != ['gpu']:\n    out('{\"done\": true}')\n",
    )
    asked, auto = verify("gpu"), verify("auto")
    assert [check.status for check in asked.checks] == ["passed", "failed", "failed"]
    assert [check.status for check in auto.checks] == ["passed", "not run", "not run"]
    assert auto.checks[1].detail == "it broke: no kernel"
    assert "it ended with status 0" in auto.checks[2].detail
    assert (asked.exit_code, auto.exit_code) == (1, 0)


def test_a_gpu_level_that_measures_a_defect_fails_for_everyone(child: Path) -> None:
    wrong = json.dumps({"check": to_json(Check("gpu: parity", 2, "failed", 0.3, 0.1, "far off"))})
    body(
        child,
        f"out({wrong!r} if request['levels'] == ['gpu'] else {PASSED!r})\nout('{{\"done\": true}}')\n",
    )
    assert verify("auto").failed == verify("gpu").failed != ()


def test_an_interpreter_is_named_as_in_a_shell(
    child: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child has another working directory, and PATH holds bare names."""
    body(child, f"out({PASSED!r})\nout('{{\"done\": true}}')\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/snake").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    for name in ("bin/snake", "./bin/snake", "snake", str(tmp_path / "bin/snake")):
        assert run.verify([], "static", (2,), name, 60).failed == (), name


def test_the_childs_environment(tmp_path: Path) -> None:
    base = {"RANK": "3", "SLURM_JOB_ID": "7", "MASTER_ADDR": "h", "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1"}
    env = run.environment(("cpu",), tmp_path, base)
    assert {"RANK", "SLURM_JOB_ID", "MASTER_ADDR"}.isdisjoint(env)
    assert (env["PATH"], env["OMP_NUM_THREADS"], env["CUDA_VISIBLE_DEVICES"]) == ("/bin", "1", "")
    assert run.environment(("gpu",), tmp_path, base)["CUDA_VISIBLE_DEVICES"] == "1"


def test_the_parent_imports_nothing_heavy() -> None:
    code = (
        "import sys, migrator.verify.run, migrator.verify.static; "
        "print({'torch', 'numpy', 'megatron', 'nemo'} & set(sys.modules))"
    )
    env = os.environ | {"PYTHONPATH": str(Path(run.__file__).parents[2])}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert ast.literal_eval(out.stdout.replace("set()", "()")) == ()


def test_the_worker_needs_no_cpfix_in_its_interpreter(tmp_path: Path) -> None:
    file = tmp_path / "megatron/core/utils.py"
    file.parent.mkdir(parents=True)
    file.write_text("x = 1\n")
    report = run.verify([tmp_path], "static", (2,), sys.executable, 60, files=[file])
    assert {check.status for check in report.checks} == {"passed"}
    assert report.levels == ("static",)

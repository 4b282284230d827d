"""The state of a patch: each of them, and the ways that lead there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from migrator.model import Probe, State
from tests.edits import argument, hunk, insert, patch, probe
from tests.planning import World

A, B = "nemo/a.py", "nemo/b.py"


@pytest.fixture
def world(tmp_path: Path) -> World:
    """`nemo/a.py` and `nemo/b.py` with a defect each."""
    made = World(tmp_path)
    made.put(a="def f(x):\n    return bad(x)\n", b="def g(x):\n    bad(x)\n    return x\n")
    return made


FIX_A = hunk("-return bad(x)\n+return int(x)", "f", file=A)
FIX_B = hunk("-bad(x)\n+int(x)", "g", file=B)
BOTH = patch("p", FIX_A, FIX_B)

# --- the states


def test_needed(world: World) -> None:
    state = world.state(BOTH)
    assert (state.state, state.reason, state.files) == (State.NEEDED, "the defect is there", (A, B))


def test_applied(world: World) -> None:
    world.apply(BOTH)
    assert world.text("a") == "def f(x):\n    return int(x)\n"
    assert world.text("b") == "def g(x):\n    int(x)\n    return x\n"
    state = world.state(BOTH)
    assert (state.state, state.reason) == (State.APPLIED, "applied by cpfix 1.0")
    assert world.plan([BOTH]) == []


def test_applied_by_hand(world: World) -> None:
    world.put(a="def f(x):\n  return (int(x))", b="def g(x): int(x); return x")
    state = world.state(BOTH)
    assert state.state is State.APPLIED
    assert "not by this journal, so revert cannot take it back" in state.reason
    assert world.plan([BOTH]) == []


def test_applied_and_then_edited_elsewhere(world: World) -> None:
    world.apply(BOTH)
    world.put(a=world.text("a") + "mine = 1\n")
    state = world.state(BOTH)
    assert state.state is State.APPLIED
    assert f"{A} changed since, so revert will refuse" in state.reason


def test_fixed_upstream(world: World) -> None:
    fixed = replace(BOTH, probes=(Probe(SpecifierSet(), A, "f", calls="good"),))
    assert world.state(fixed).state is State.NEEDED
    world.put(a="def f(x):\n    return good(x)\n")
    state = world.state(fixed)
    assert (state.state, state.reason) == (State.FIXED_UPSTREAM, f"{A} has upstream's own fix")
    assert world.plan([fixed]) == []


def test_what_the_patch_itself_brings_is_no_fix_of_upstreams(world: World) -> None:
    own = replace(BOTH, probes=(Probe(SpecifierSet(), A, "f", calls="int"),))
    world.apply(own)
    assert world.state(own).state is State.APPLIED
    world.put(b="def g(x):\n    bad(x)\n    return x\n")  # half of it reinstalled
    assert world.state(own).state is State.DRIFTED


def test_a_probe_outside_its_range_says_nothing(world: World) -> None:
    world.put(a="def f(x):\n    return good(x)\n")
    fixed = replace(BOTH, probes=(Probe(SpecifierSet(">=2.6"), A, "f", calls="good"),))
    assert world.state(fixed).state is State.CONFLICT


def test_partial_by_hand(world: World) -> None:
    world.put(a="def f(x):\n    return int(x)\n")
    state = world.state(BOTH)
    assert state.state is State.PARTIAL
    assert state.reason == f"{B}, g: not there; {A}, f: already there"


def test_partial_says_what_is_in_the_way(world: World) -> None:
    world.put(a="def f(x):\n    return int(x)\n", b="def g(x):\n    bad(x, 1)\n")
    state = world.state(BOTH)
    assert state.state is State.PARTIAL
    assert f"{B}, g: `bad(x)` was not found; the nearest candidate is line 2: `bad(x, 1)`" in state.reason


def test_conflict_reports_every_edit_that_does_not_fit(world: World) -> None:
    world.put(a="def f(x):\n    return bad(x, 1)\n", b="def h(x): pass\n")
    state = world.state(BOTH)
    assert state.state is State.CONFLICT
    assert state.reason == (
        f"{A}, f: `return bad(x)` was not found; the nearest candidate is line 2: `return bad(x, 1)`; "
        f"{B}, g: there is no `g`"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [(None, f"there is no {A}"), ("x = = 1\n", f"{A}: not readable as Python: invalid syntax")],
)
def test_conflict_where_a_file_is_gone_or_broken(world: World, text: str | None, reason: str) -> None:
    if text is None:
        (world.root / A).unlink()
    else:
        world.put(a=text)
    state = world.state(BOTH)
    assert state.state is State.CONFLICT
    assert reason in state.reason


def test_drifted_by_reinstalling(world: World) -> None:
    before = world.text("a"), world.text("b")
    world.apply(BOTH)
    world.put(a=before[0], b=before[1])
    state = world.state(BOTH)
    assert state.state is State.DRIFTED
    assert "reinstalled or edited" in state.reason
    world.apply(BOTH)
    assert world.state(BOTH).state is State.APPLIED


def test_drifted_in_one_of_two_files(world: World) -> None:
    before = world.text("b")
    world.apply(BOTH)
    world.put(b=before)
    assert world.state(BOTH).state is State.DRIFTED
    assert [c.path for c in world.apply(BOTH)] == [B]
    assert world.state(BOTH).state is State.APPLIED


def test_reinstalled_with_code_that_does_not_fit_is_a_conflict(world: World) -> None:
    world.apply(BOTH)
    world.put(a="def f(x):\n    pass\n", b="def g(x):\n    pass\n")
    assert world.state(BOTH).state is State.CONFLICT


# --- versions


@pytest.mark.parametrize("version", ["", "unknown", "main"])
def test_a_version_that_cannot_be_read_is_a_conflict(world: World, version: str) -> None:
    world.version = version
    state = world.state(BOTH)
    assert state.state is State.CONFLICT
    assert state.reason == f"version {version!r} cannot be read from nemo/package_info.py"


def test_outside_every_range_is_not_applicable_even_where_it_would_fit(world: World) -> None:
    narrow = patch("p", replace(FIX_A, versions=SpecifierSet(">=2.4,<2.5")))
    state = world.state(narrow)
    assert (state.state, state.in_doubt) == (State.NOT_APPLICABLE, False)
    assert state.reason == "2.5.0 is outside its range (>=2.4,<2.5)"
    assert world.plan([narrow]) == []
    world.version = "2.4.9"
    assert world.state(narrow).state is State.NEEDED


def test_where_the_code_is_not_part_of_the_release(world: World) -> None:
    (world.root / A).unlink()
    narrow = patch("p", replace(FIX_A, versions=SpecifierSet("<2.5")))
    assert world.state(narrow).reason == "the code that it repairs is not part of 2.5.0"


@pytest.mark.parametrize("version", ["3.0", "3.0.0rc1", "17.1", "0.9"])
def test_an_unknown_version_is_never_a_silent_ok(world: World, version: str) -> None:
    world.version = version
    state = world.state(BOTH)
    assert (state.state, state.in_doubt) == (State.NOT_APPLICABLE, True)
    assert state.reason == f"{version} is not known to this cpfix (known: <3,>=1); there is no probe for it"
    assert world.plan([BOTH]) == []


def test_an_unknown_version_whose_probe_finds_the_fix(world: World) -> None:
    world.version = "3.1"
    fixed = replace(BOTH, probes=(Probe(SpecifierSet(">=2.9"), A, "f", calls="good"),))
    state = world.state(fixed)
    assert (state.state, state.in_doubt) == (State.NOT_APPLICABLE, True)
    assert "its probes do not find upstream's fix" in state.reason
    world.put(a="def f(x):\n    return good(x)\n")
    state = world.state(fixed)
    assert (state.state, state.in_doubt) == (State.FIXED_UPSTREAM, False)
    assert state.reason == f"3.1 is not known to this cpfix; its probe says: {A} has upstream's own fix"


def test_a_fix_that_was_expected_and_is_not_there_is_in_doubt(world: World) -> None:
    late = patch("p", replace(FIX_A, versions=SpecifierSet("<2.5")))
    late = replace(late, probes=(Probe(SpecifierSet(">=2.5"), A, "f", calls="good"),))
    state = world.state(late)
    assert (state.state, state.in_doubt) == (State.NOT_APPLICABLE, True)
    assert state.reason == f"upstream's fix was expected in 2.5.0, but {A} does not have it"


def test_a_pre_release_counts_as_its_release(world: World) -> None:
    narrow = patch("p", replace(FIX_A, versions=SpecifierSet(">=2.5,<2.6")))
    for world.version in ("2.5.0rc0", "2.5.0.dev3", "2.5.1+local"):
        assert world.state(narrow).state is State.NEEDED
    world.version = "2.6.0rc0"
    assert world.state(narrow).state is State.NOT_APPLICABLE


# --- optional patches


def test_an_optional_patch_says_that_it_is_there(world: World) -> None:
    optional = replace(BOTH, default=False)
    state = world.state(optional)
    assert (state.state, state.in_doubt) == (State.NOT_APPLICABLE, False)
    assert state.reason == "optional, and possible here: cpfix apply --with nemo/p"
    world.apply(BOTH)  # as --with makes it
    assert world.state(optional).state is State.APPLIED
    assert world.plan([optional]) == []


def test_an_optional_patch_that_does_not_fit_is_no_error(world: World) -> None:
    world.put(a="def f(x):\n    pass\n")
    state = world.state(replace(patch("p", FIX_A), default=False))
    assert state.state is State.NOT_APPLICABLE
    assert state.reason.startswith(f"optional, and not possible here: {A}, f: ")


def test_an_optional_patch_by_halves_is_an_error_all_the_same(world: World) -> None:
    world.put(a="def f(x):\n    return int(x)\n")
    assert world.state(replace(BOTH, default=False)).state is State.PARTIAL


def test_an_optional_patch_that_drifted_is_put_back(world: World) -> None:
    optional, before = replace(BOTH, default=False), world.text("a")
    world.apply(BOTH)
    world.put(a=before)
    assert world.state(optional).state is State.DRIFTED
    world.apply(optional)
    assert world.state(optional).state is State.APPLIED


def test_an_optional_patch_for_an_unknown_version_is_not_in_doubt(world: World) -> None:
    world.version = "9.0"
    assert not world.state(replace(BOTH, default=False)).in_doubt


# --- every kind of edit


def test_every_kind_of_edit_has_its_place_in_the_reason(world: World) -> None:
    edits = (
        insert("def new(x):\n    return x", "gone", file=A),
        argument("lost", "y: int = 1", file=A),
        hunk("-import os\n+import sys", file=A),
    )
    reason = world.state(patch("p", *edits)).reason
    assert reason == (
        f"{A}, gone: there is no `gone`; {A}, lost: there is no `lost`; "
        f"{A}, the module: `import os` was not found, nor anything like it"
    )


def test_a_probe_of_another_file_that_is_gone_holds_nothing(world: World) -> None:
    lost = replace(probe(calls="good"), file="nemo/gone.py")
    assert world.state(replace(BOTH, probes=(lost,))).state is State.NEEDED

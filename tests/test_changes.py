"""New bytes: applied, brought up to date, taken back; one by one and all at once."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from migrator.changes import Unplannable, outdated, patched
from migrator.model import Edit, Patch, State
from tests.edits import argument, hunk, insert, patch
from tests.planning import World

A, B = "nemo/a.py", "nemo/b.py"
TEXT = "import os\n\n\ndef f(x):\n    one(x)\n    two(x)\n    return x\n"
BUILT_IN = "one = two = three = four = f = print\n"


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two files alike, in which every name is defined."""
    made = World(tmp_path)
    made.put(a=BUILT_IN + TEXT, b=BUILT_IN + TEXT)
    return made


def fix(id: str, old: str, new: str, *files: str, fingerprint: str = "one") -> Patch:
    """A patch that replaces a statement of `f`."""
    edits = (hunk(f"-{old}\n+{new}", "f", file=file) for file in files or (A,))
    return patch(id, *edits, fingerprint=fingerprint)


ONE, TWO = fix("one", "one(x)", "three(x)"), fix("two", "two(x)", "four(x)", A, B)
NEW = patch("new", insert("def new(x):\n    return x", "f", file=A), argument("f", "y: int = 1", file=A))

# --- patched


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (
            hunk("-one(x)\n+nowhere(x)", "f", file=A),
            f"{A}: the new code uses `nowhere`, which is not defined",
        ),
        (hunk("+break\n one(x)", "f", file=A), f"{A}: 'break' outside loop"),
        (hunk("+one = (yield)\n two(x)", "f", file=A), None),
        (hunk("-one(x)\n+two(x)", "f", file=A), "2 places fit"),
        (insert("def new(x):\n    return helper(x)", "f", file=A), "the new code uses `helper`"),
        (
            insert("def new(x): return x\n\n\ndef new(x): return x", "f", file=A),
            "does not read back as applied",
        ),
        (argument("f", "x: int = 1", file=A), "`f` has its own parameter `x`"),
    ],
)
def test_only_what_compiles_and_reads_back_is_written(edit: Edit, why: str | None) -> None:
    raw = (BUILT_IN + TEXT).encode()
    if why is None:
        patched(raw, [edit], A)
        return
    with pytest.raises(Unplannable, match=why):
        patched(raw, [edit], A)


def test_edits_that_are_there_are_left_alone() -> None:
    raw = (BUILT_IN + TEXT).encode()
    new = patched(raw, NEW.edits, A)
    assert patched(new, NEW.edits, A) == new
    assert patched(new, [*NEW.edits, *ONE.edits], A) == patched(raw, [*NEW.edits, *ONE.edits], A)


def test_upstreams_own_warnings_are_kept_quiet() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        patched(b"def f():\n    one = '\\d' is 1\n    return one\n", [hunk("+pass\n return one", "f")], A)


# --- one by one, all at once, and back

SERIES = (ONE, TWO, NEW)


@pytest.mark.parametrize("order", list(itertools.permutations(["one", "two", "new"])))
def test_any_order_gives_the_same_bytes(world: World, order: tuple[str, ...]) -> None:
    before = world.text("a")
    at_once = {change.path: change.new for change in world.plan(SERIES)}
    for id in order:
        world.apply(*SERIES, only=[id])
        assert [s.patch.id for s in world.look(*SERIES) if s.state is State.APPLIED] == [
            p.id for p in SERIES if p.id in order[: order.index(id) + 1]
        ]
    assert world.text("a").encode() == at_once[A]
    assert world.text("b").encode() == at_once[B]
    assert [p.id for p in world.records[world.root, A].patches] == ["one", "two", "new"]
    for id in order:  # and back, the first first
        world.revert(A, SERIES, id)
    assert world.text("a") == before
    assert (world.root, A) not in world.records


def test_a_patch_taken_out_leaves_what_the_others_make(world: World) -> None:
    world.apply(*SERIES)
    change = world.revert(A, SERIES, "two")
    assert [p.id for p in change.patches] == ["one", "new"]
    assert change.original == (BUILT_IN + TEXT).encode()
    assert change.new == patched(change.original, [*ONE.edits, *NEW.edits], A)


def test_a_change_starts_from_the_original_where_cpfix_wrote_the_file(world: World) -> None:
    (first,) = world.apply(ONE, only=["one"])
    (second,) = (c for c in world.plan((ONE, NEW)) if c.path == A)
    assert second.old == first.new
    assert second.original == first.original == (BUILT_IN + TEXT).encode()


def test_what_was_made_by_hand_is_kept_when_another_patch_comes(world: World) -> None:
    by_hand = world.text("a").replace("one(x)", "three( x )")
    world.put(a=by_hand)
    assert world.states(ONE, NEW) == [State.APPLIED, State.NEEDED]
    (change,) = world.apply(ONE, NEW)
    assert change.original == by_hand.encode()
    assert [p.id for p in change.patches] == ["new"]
    assert "three( x )" in world.text("a")
    world.revert(A, (ONE, NEW))
    assert world.text("a") == by_hand


# --- edited or reinstalled in between


def test_a_file_that_was_edited_since_is_not_written_again(world: World) -> None:
    world.apply(ONE)
    world.put(a=world.text("a") + "# mine\n")
    with pytest.raises(Unplannable, match="was changed after cpfix patched it") as error:
        world.plan((ONE, TWO))
    assert list(error.value.reasons.values()) == [{"nemo/two"}]
    with pytest.raises(Unplannable, match="has changed since cpfix wrote it: revert would lose that change"):
        world.revert(A, (ONE, TWO))
    assert world.text("a").endswith("# mine\n")


def test_a_reinstalled_file_gets_only_what_is_asked_for(world: World) -> None:
    before = world.text("a")
    world.apply(ONE, TWO)
    world.put(a=before)
    assert world.states(ONE, TWO) == [State.DRIFTED, State.DRIFTED]
    (change,) = world.apply(ONE, TWO, only=["one"])
    assert [p.id for p in change.patches] == ["one"]
    assert "two(x)" in world.text("a")
    assert world.states(ONE, TWO) == [State.APPLIED, State.DRIFTED]
    world.apply(ONE, TWO)
    assert world.states(ONE, TWO) == [State.APPLIED, State.APPLIED]


def test_a_reinstalled_file_is_forgotten_by_revert(world: World) -> None:
    before = world.text("a")
    for text in (before, before + "# a newer release\n"):
        world.put(a=before)
        world.apply(ONE)
        world.put(a=text)
        change = world.revert(A, (ONE,))
        assert change.new == change.old == text.encode()
        assert (world.root, A) not in world.records


def test_a_file_that_is_gone_cannot_be_taken_back(world: World) -> None:
    world.apply(ONE)
    (world.root / A).unlink()
    with pytest.raises(Unplannable, match=f"there is no {A}"):
        world.revert(A, (ONE,))


def test_every_file_that_cannot_be_written_is_named(world: World) -> None:
    bad = patch("bad", *(hunk("-one(x)\n+nowhere(x)", "f", file=file) for file in (A, B)))
    with pytest.raises(Unplannable) as error:
        world.plan((bad, TWO))
    assert [reason.split(":")[0] for reason in error.value.reasons] == [A, B]
    assert {"nemo/bad", "nemo/two"} in error.value.reasons.values()


# --- another cpfix


def test_a_newer_patch_replaces_an_older_one(world: World) -> None:
    original = world.text("a")
    world.apply(ONE)
    newer = fix("one", "one(x)", "four(x)", fingerprint="two")
    state = world.state(newer)
    assert state.state is State.NEEDED
    assert state.reason == "cpfix 1.0 applied another version of this patch; apply replaces it"
    world.cpfix = "2.0"
    (change,) = world.apply(newer)
    assert "four(x)" in world.text("a")
    assert "three(x)" not in world.text("a")
    assert [(p.cpfix, p.fingerprint) for p in change.patches] == [("2.0", "two")]
    assert world.state(newer).reason == "applied by cpfix 2.0"
    world.revert(A, (newer,))
    assert world.text("a") == original


def test_a_newer_patch_that_edits_more_files(world: World) -> None:
    original = world.text("a"), world.text("b")
    world.apply(ONE)
    newer = fix("one", "one(x)", "four(x)", A, B, fingerprint="two")
    assert world.state(newer).state is State.NEEDED
    assert [c.path for c in world.apply(newer)] == [A, B]
    assert world.state(newer).state is State.APPLIED
    world.revert(A, (newer,))
    world.revert(B, (newer,))
    assert (world.text("a"), world.text("b")) == original


def test_a_newer_patch_that_edits_fewer_files(world: World) -> None:
    original = world.text("b")
    world.apply(TWO)
    newer = fix("two", "two(x)", "four(x)", fingerprint="two")
    assert world.state(newer).state is State.NEEDED
    assert [c.path for c in world.apply(newer)] == [B]
    assert world.text("b") == original
    assert list(world.records) == [(world.root, A)]
    assert world.state(newer).state is State.APPLIED


def test_a_newer_patch_that_edits_other_files(world: World) -> None:
    original = world.text("a")
    world.apply(ONE)
    newer = fix("one", "one(x)", "three(x)", B, fingerprint="two")
    assert world.state(newer).state is State.NEEDED
    world.apply(newer)
    assert world.text("a") == original
    assert "three(x)" in world.text("b")
    assert list(world.records) == [(world.root, B)]


def test_a_patch_that_was_split_in_two(world: World) -> None:
    original = world.text("a")
    both = patch("both", *ONE.edits, *(e for e in TWO.edits if e.file == A))
    world.apply(both)
    at_once = world.text("a")
    assert world.states(ONE, TWO) == [State.NEEDED, State.NEEDED]
    assert outdated(world.install, (ONE, TWO), world.journal, world.files) == {A: {"nemo/both"}}
    world.apply(ONE, TWO)
    assert world.text("a") == at_once
    assert world.states(ONE, TWO) == [State.APPLIED, State.APPLIED]
    world.revert(A, (ONE, TWO))
    assert world.text("a") == original


def test_a_patch_that_was_dropped_is_taken_out(world: World) -> None:
    world.apply(ONE, NEW)
    assert world.states(NEW) == [State.APPLIED]
    assert list(outdated(world.install, (NEW,), world.journal, world.files)) == [A]
    (change,) = world.apply(NEW)
    assert [p.id for p in change.patches] == ["new"]
    assert change.new == patched(change.original, NEW.edits, A)


def test_a_patch_whose_range_has_left_this_version_is_taken_out(world: World) -> None:
    original = world.text("a")
    world.apply(ONE)
    edits = tuple(replace(e, versions=SpecifierSet("<2.5")) for e in ONE.edits)
    newer = replace(ONE, edits=edits, fingerprint="two")
    assert world.state(newer).state is State.NOT_APPLICABLE
    world.apply(newer)
    assert world.text("a") == original
    assert not world.records


def test_another_fingerprint_with_the_same_result_is_no_work(world: World) -> None:
    world.apply(*SERIES)
    reworded = tuple(replace(p, fingerprint="two") for p in SERIES)
    assert world.states(*reworded) == [State.APPLIED] * 3
    assert world.plan(reworded) == []
    assert outdated(world.install, reworded, world.journal, world.files) == {}
    world.revert(A, reworded, "one")  # and no hindrance
    assert world.states(*reworded) == [State.NEEDED, State.APPLIED, State.APPLIED]


def test_only_does_not_bring_half_of_another_patch_up_to_date(world: World) -> None:
    world.apply(ONE)
    newer = fix("one", "one(x)", "four(x)", A, B, fingerprint="two")
    with pytest.raises(Unplannable, match=f"{A}: another cpfix has applied nemo/one there: apply that too"):
        world.plan((newer, NEW), only=["new"])
    other = patch("other", hunk("-two(x)\n+three(x)", "f", file=B))
    assert [c.path for c in world.apply(newer, other, only=["other"])] == [B]
    assert "three(x)" in world.text("a")
    assert world.states(newer, other) == [State.NEEDED, State.APPLIED]


def test_some_patches_of_another_cpfix_cannot_be_taken_out(world: World) -> None:
    world.apply(ONE, NEW)
    newer = fix("one", "one(x)", "four(x)", fingerprint="two")
    with pytest.raises(Unplannable, match="patched by another cpfix: revert everything, or apply first"):
        world.revert(A, (newer, NEW), "new")
    world.revert(A, (newer, NEW))
    assert world.text("a") == BUILT_IN + TEXT


def test_an_older_patch_in_a_file_that_was_edited_since_is_left_alone(world: World) -> None:
    world.apply(ONE)
    world.put(a=world.text("a") + "# mine\n")
    newer = fix("one", "one(x)", "four(x)", fingerprint="two")
    assert world.state(newer).state is State.CONFLICT
    assert outdated(world.install, (newer,), world.journal, world.files) == {}
    assert world.plan((newer,)) == []


def test_an_upgrade_that_does_not_fit_the_original_is_a_conflict(world: World) -> None:
    world.apply(ONE)
    newer = fix("one", "elsewhere(x)", "four(x)", fingerprint="two")
    state = world.state(newer)
    assert state.state is State.CONFLICT
    assert "`elsewhere(x)` was not found" in state.reason

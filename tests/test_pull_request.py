"""The text of commits and pull requests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from migrator import pull_request
from migrator.model import Argument, Contribution, Hunk, Insert, Patch, UsageError
from migrator.pull_request import WIDTH, Facts, document, evidence_of, message
from migrator.verify.check import Check, to_json

ANY = SpecifierSet()
PATCH = Patch(
    project="nemo",
    id="split",
    title="Split packed batches",
    why="The step slices every batch\nas one sequence. " + "It then trains silently wrong. " * 5,
    symptom="IndexError: tuple index out of range",
    references=("https://example.org/a-very-long-address/that-must-not-be-broken-into-two-lines/pull/1867",),
    retire_when="upstream does it",
    edits=(
        Hunk(ANY, "nemo/a.py", "step", "-x\n+y\n"),
        Hunk(ANY, "nemo/a.py", "", "+import z\n x\n"),
        Insert(ANY, "nemo/a.py", "step", "new.py", ("_split", "_check"), ("def _split(): ...",) * 2),
        Argument(ANY, "nemo/b.py", "Data.prepare", "multiple=1", "pack"),
    ),
    probes=(),
)
OTHER = replace(PATCH, id="pad", title="Pad samples", requires=("split", "megatron-core/skip"), references=())
RULES = Contribution(119, ("It is rebased on main.",))
FACTS = Facts(
    upstream="https://example.org/upstream",
    branch="cpfix/split",
    base="v2.5.0",
    commit="0123456789abcdef" * 2 + "01234567",
    version="2.5.0",
    own=(PATCH,),
    below=(),
    edits=(PATCH.edits,),
    sources=("nemo/a.py", "nemo/b.py"),
    tests=("tests/test_split.py",),
    longest_line=119,
    signed_off=True,
)


class TestMessage:
    def test_has_a_title_a_body_and_trailers(self) -> None:
        parts = message(PATCH, "Ada <ada@example.org>").split("\n\n")
        assert parts[0] == PATCH.title
        assert parts[1].startswith("The step slices every batch as one sequence.")
        assert parts[2] == f"Symptom: {PATCH.symptom}"
        assert parts[3] == f"References:\n- {PATCH.references[0]}"
        assert parts[4] == "Signed-off-by: Ada <ada@example.org>\n"

    def test_keeps_to_the_width_but_for_addresses(self) -> None:
        long = [row for row in message(PATCH, "").splitlines() if len(row) > WIDTH]
        assert long == [f"- {PATCH.references[0]}"]

    def test_leaves_out_what_there_is_not(self) -> None:
        text = message(OTHER, "")
        assert "References" not in text
        assert "Signed-off-by" not in text


class TestDocument:
    def test_says_what_it_is_about_and_where_it_goes(self) -> None:
        text = document(FACTS, RULES, None)
        assert text.startswith("# Split packed batches\n")
        assert "Branch `cpfix/split`, off `v2.5.0` (0123456789ab, version 2.5.0)" in text
        headings = [row for row in text.splitlines() if row.startswith("## ")]
        names = ("Problem", "Reproduction", "Fix", "Evidence", "Before it is ready for review", "References")
        assert headings == [f"## {name}" for name in names]

    def test_names_what_the_fix_touches_file_by_file(self) -> None:
        text = document(FACTS, RULES, None)
        assert "- `src/nemo/a.py`: changes" in document(replace(FACTS, folder="src/"), RULES, None)
        assert "- `nemo/a.py`: changes `step`, module level; adds `_split`, `_check`\n" in text
        assert "- `nemo/b.py`: changes `Data.prepare`\n" in text

    def test_reproduces_with_the_changed_files_as_they_were(self) -> None:
        """By the branch and not by the base, which the author is asked to replace by main."""
        text = document(FACTS, RULES, None)
        assert "git checkout cpfix/split~1 -- nemo/a.py nemo/b.py\npytest tests/test_split.py" in text
        both = document(replace(FACTS, own=(PATCH, OTHER), edits=(PATCH.edits,) * 2), RULES, None)
        assert "git checkout cpfix/split~2 -- nemo/a.py nemo/b.py\n" in both
        assert "No unit test" in document(replace(FACTS, tests=()), RULES, None)

    def test_of_several_patches_has_a_part_for_each(self) -> None:
        several = replace(FACTS, own=(PATCH, OTHER), edits=(PATCH.edits, OTHER.edits[:1]))
        text = document(several, RULES, None)
        assert text.startswith("# Split packed batches (and 1 more)\n")
        assert "### Split packed batches\n" in text
        assert "### Pad samples\n" in text
        assert "Pad samples:\n\n- `nemo/a.py`: changes `step`\n" in text

    def test_names_what_it_stands_on_and_needs_elsewhere(self) -> None:
        core = replace(PATCH, project="megatron-core", id="skip", title="Skip packed batches")
        stacked = replace(FACTS, own=(OTHER,), below=(PATCH,), edits=(OTHER.edits,), elsewhere=(core,))
        text = document(stacked, RULES, None)
        assert "come first, and without them it would be wrong.\n\n- Split packed batches\n" in text
        assert "another project as well:\n\n- megatron-core: Skip packed batches\n" in text
        assert "Stacked" not in document(FACTS, RULES, None)

    def test_names_existing_tests_that_state_what_it_changes(self) -> None:
        text = document(replace(FACTS, outdated=("tests/test_a.py::TestA::test_b",)), RULES, None)
        assert "## Existing tests\n\nThey state what this changes, and fail with it:\n\n" in text
        assert "- `tests/test_a.py::TestA::test_b`\n" in text
        assert "- [ ] The existing tests named above are brought up to date.\n" in text
        assert "existing" not in document(FACTS, RULES, None).lower()

    def test_ticks_what_is_so_and_leaves_the_rest_to_the_author(self) -> None:
        def boxes(facts: Facts, rules: Contribution = RULES) -> list[bool]:
            rows = document(facts, rules, None).splitlines()
            return [row.startswith("- [x]") for row in rows if row.startswith("- [")]

        assert boxes(FACTS) == [True, True, True, False]
        assert boxes(replace(FACTS, signed_off=False)) == [False, True, True, False]
        assert boxes(replace(FACTS, longest_line=120)) == [True, False, True, False]
        assert boxes(replace(FACTS, tests=())) == [True, True, False, False]
        assert boxes(FACTS, Contribution()) == [True, False, True]


def test_tests_are_found_in_classes_and_outside() -> None:
    source = "class TestA:\n    def test_a(self): ...\n    def test_b(self): ...\n\n\ndef test_b(): ...\n"
    found = pull_request.test_ids("t.py", source, ["test_b", "test_c"])
    assert found == ["t.py::test_b", "t.py::TestA::test_b"]
    assert pull_request.test_ids("t.py", "def test_b(:", ["test_b"]) == []


class TestEvidence:
    CHECKS = (
        Check("parity: gradients", 2, "passed", 7.1e-07, 1e-05, "one | two\nlines"),
        Check("data: targets", None, "failed", 3.0, 0.0),
        Check("parity: gradients", 4, "not run", detail="no TE"),
    )

    def test_is_a_table_of_the_report(self) -> None:
        text = document(FACTS, RULES, self.CHECKS)
        assert "| parity: gradients | 2 | passed | 7.1e-07 | 1e-05 | one \\| two lines |\n" in text
        assert "| data: targets |  | failed | 3 | 0 |  |\n" in text
        assert "| parity: gradients | 4 | not run |  |  | no TE |\n" in text
        assert "**1 of 3 checks failed.**" in text

    def test_that_is_missing_is_said(self) -> None:
        assert "`cpfix verify` was not run" in document(FACTS, RULES, None)
        assert "failed" not in document(FACTS, RULES, self.CHECKS[:1])

    def test_is_read_from_a_report(self, tmp_path: Path) -> None:
        file = tmp_path / "report.json"
        file.write_text(json.dumps({"checks": [to_json(check) for check in self.CHECKS]}))
        assert evidence_of(file) == self.CHECKS
        assert evidence_of(None) is None

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"checks": [{}]}', '{"checks": 1}'])
    def test_that_is_something_else_is_refused(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "report.json"
        file.write_text(text)
        with pytest.raises(UsageError, match="is no report"):
            evidence_of(file)

"""What an import that fails says: the stack's own fault, or something missing around it."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("missing", "status"),
    [
        ("megatron.core.gone", "failed"),
        ("megatron.bridge.data.gone", "failed"),
        ("nemo.collections.gone", "failed"),
        ("megatron.bridge", "failed"),
        ("megatron.energon", "not run"),  # another project that shares the namespace
        ("transformers", "not run"),
        ("nemotron", "not run"),
    ],
)
def test_a_missing_module_fails_where_the_stack_should_have_it(missing: str, status: str) -> None:
    from migrator.verify import cpu

    found = cpu.import_failure("import", ModuleNotFoundError(f"No module named {missing!r}", name=missing))
    assert (found.status, missing in found.detail) == (status, True)

"""Fixtures for the tests of Megatron-Bridge's patches."""

from __future__ import annotations

import random
import sys
from types import ModuleType

import pytest
import torch

from tests.patches.bridge import real_code


class Index(ModuleType):
    """`transformer_engine_torch` as far as the steps use it; it counts its calls."""

    def __init__(self) -> None:
        super().__init__("transformer_engine_torch")
        self.calls = 0
        self.cu_seqlens: list[int] = []  # of the last call

    def thd_get_partitioned_indices(
        self, cu_seqlens: torch.Tensor, total: int, cp_size: int, rank: int
    ) -> torch.Tensor:
        """The index of this rank's tokens."""
        self.calls += 1
        self.cu_seqlens = cu_seqlens.tolist()
        index: torch.Tensor = real_code.thd_get_partitioned_indices(cu_seqlens, total, cp_size, rank)
        return index


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    """Transformer Engine's index function, computed here."""
    module = Index()
    monkeypatch.setitem(sys.modules, "transformer_engine_torch", module)
    return module


@pytest.fixture
def draw(seed: int) -> random.Random:
    """Fresh random data; the seed is printed, and pytest shows it where a test fails."""
    print(f"seed {seed}")
    return random.Random(seed)

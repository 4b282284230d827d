"""Fixtures for the tests of the patches' new code: where a process stands, and the index function."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from tests.patches.thd import Index, Ranks


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    """Where the test's process stands; the test may move it. Tensors stay on the CPU whoever asks."""
    here = Ranks()
    core = ModuleType("megatron.core")
    core.__dict__["parallel_state"] = here
    for name, module in {"megatron": ModuleType("megatron"), "megatron.core": core}.items():
        monkeypatch.setitem(sys.modules, name, module)
    tensor = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda *a, pin_memory=False, **k: tensor(*a, **k))
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self, **_: self)
    return here


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    """Transformer Engine's index function, and a list of its calls."""
    tex = ModuleType("transformer_engine_torch")
    here = Index()
    tex.__dict__["thd_get_partitioned_indices"] = here.thd_get_partitioned_indices
    monkeypatch.setitem(sys.modules, "transformer_engine_torch", tex)
    return here

"""Megatron-Bridge's own packing, data step, forward step and loss."""

from __future__ import annotations

from collections.abc import Iterable

from migrator.verify.stack import Stack

NAME = "bridge"
OPTIONAL = ("modelopt", "wandb", "nvidia_resiliency_ext", "triton")


def stub_names(missing: Iterable[str]) -> tuple[str, ...]:
    """What to stub, given which of `OPTIONAL` are missing."""
    return tuple(missing)


def load() -> Stack:
    """Import the installed Megatron-Bridge and wrap it."""
    raise ImportError("not supported yet")

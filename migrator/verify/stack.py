"""What a verification drives: the real functions of an installed stack, behind one small set of callables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

Batch = dict[str, Any]
Stage = Literal["only", "first", "middle", "last"]  # of the pipeline


@dataclass(frozen=True)
class Stack:
    """The functions that carry a sample from disk to the loss, as they are installed."""

    name: str  # "nemo 2.5.3"
    # (folder with training.jsonl and validation.jsonl, chat?) -> the unpacked data set's items
    unpacked: Callable[[Path, bool], list[Mapping[str, Any]]]
    # (the same folder, chat?, cp, pad_cu_seqlens) -> one batch per pack, micro batch size 1
    batches: Callable[[Path, bool, int, bool], list[Batch]]
    # (batch, stage) -> this rank's share of it
    step: Callable[[Batch, Stage], Batch]
    # this rank's share -> PackedSeqParams, or None where the step would build none
    params: Callable[[Batch], Any]
    # (model, this rank's share) -> loss of each token [1, t]
    forward: Callable[[nn.Module, Batch], Tensor]
    # (this rank's share, loss of each token) -> (what to run backward on, mean loss as it is logged)
    reduce: Callable[[Batch, Tensor], tuple[Tensor, float]]

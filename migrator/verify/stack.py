"""What a verification drives: the real functions of an installed stack, behind one small set of callables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
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
    # a whole batch -> its PackedSeqParams
    params: Callable[[Batch], Any]
    # (batch, stage) -> what this rank's model is given: tokens, position_ids, labels, loss_mask and
    # attention_mask, None where a stage has none, and packed_seq_params, None where it isn't passed
    step: Callable[[Batch, Stage], Batch]
    # (model, batch) -> (what to run backward on, mean loss as it is logged)
    loss: Callable[[nn.Module, Batch], tuple[Tensor, float]]
    # (model, batch) -> logits of this rank's tokens [1, t, vocabulary]
    logits: Callable[[nn.Module, Batch], Tensor]
    # batch -> the PackedSeqParams that a schedule plan is built with; None where the stack builds no plans
    plan: Callable[[Batch], Any] | None = None
    # as `unpacked`, what packing for context parallelism starts from, where it leaves one token more of a
    # sample that is too long; None where it is the same
    unpacked_longer: Callable[[Path, bool], list[Mapping[str, Any]]] | None = None
    core_names: bool = False  # packs may also come with cu_seqlens_q and so on, as PackedSeqParams names it


class Recorder:
    """Stands where a model would: keeps the arguments that it is called with."""

    def __init__(self, **attributes: Any) -> None:
        self.arguments: Batch = {}
        for name, value in attributes.items():
            setattr(self, name, value)

    def __call__(self, **arguments: Any) -> Tensor:
        self.arguments = arguments
        return torch.zeros(1)

    def build_schedule_plan(self, *_: Any, **arguments: Any) -> None:
        """As of Megatron-Core's models."""
        self.arguments = arguments


def share_of(arguments: Mapping[str, Any], loss_mask: Tensor | None) -> Batch:
    """What a model was called with, under the names that a batch has."""
    return {
        "tokens": arguments.get("input_ids"),
        "position_ids": arguments.get("position_ids"),
        "labels": arguments.get("labels"),
        "attention_mask": arguments.get("attention_mask"),
        "loss_mask": loss_mask,
        "packed_seq_params": arguments.get("packed_seq_params"),
    }

"""New code of the patch `prepad-loss-mask`: the loss mask is padded together with the tokens."""

from __future__ import annotations

from typing import Any


def _with_lists_and_mask(sample: dict[str, Any]) -> None:
    """Bring a tokenized sample into the one form that prepadding knows, in place, before it is padded.

    Tokens become plain lists (chat samples come as tensors) and the loss mask a list of bool, one for each
    token. A sample without a mask gets the one that its `answer_start_idx` means, so that no pad, which comes
    later, can be taken for a part of the answer.
    """
    for key in ("input_ids", "context_ids", "loss_mask"):
        if key in sample:
            values = sample[key]
            sample[key] = values.tolist() if hasattr(values, "tolist") else list(values)
    if "loss_mask" in sample:
        sample["loss_mask"] = [bool(value) for value in sample["loss_mask"]]
    elif "answer_start_idx" in sample:
        start = sample["answer_start_idx"]
        sample["loss_mask"] = [index >= start for index in range(len(sample["input_ids"]))]


def _fit_loss_mask(sample: dict[str, Any]) -> None:
    """Cut or fill the loss mask to the length of the padded tokens, in place: pads are no target."""
    if "loss_mask" in sample:
        length = len(sample["input_ids"])
        missing = length - len(sample["loss_mask"])
        sample["loss_mask"] = sample["loss_mask"][:length] + [False] * missing

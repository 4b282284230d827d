"""New code of the patch `keep-eos-targets`: the loss mask of a pack says itself what is a target."""

from __future__ import annotations

from typing import Any

import numpy as np

# --- where samples are sorted by length, before they are packed


def _supply_loss_mask(sample: dict[str, Any]) -> None:
    """Give a sample that has none the loss mask that its `answer_start_idx` means, in place.

    `token_count` was taken before the sample was padded, so the pads behind it are no part of the answer.
    """
    if "loss_mask" not in sample and "answer_start_idx" in sample:
        length = len(sample["input_ids"])
        start, end = sample["answer_start_idx"], min(length, sample.get("token_count", length))
        sample["loss_mask"] = [start <= index < end for index in range(length)]


# --- where packs are read


def _explicit_loss_mask(
    input_ids: list[int], loss_mask: list[int], seq_boundaries: list[int], eos_id: int, answer_only: bool
) -> list[int]:
    """The loss mask of a pack, one entry for each input token of each of its sequences.

    The mask that is stored beside the tokens counts, and inner EOS tokens have no say: what follows one is a
    target like any other. Only the EOS tokens that end a sequence may be pads. They are none where the mask
    calls them targets, unless that mask was stored by code that knew of no pads; it can be told by its last
    entry, the one that has no label, which an explicit mask leaves at 0.

    Args:
        input_ids: the stored tokens of the pack.
        loss_mask: 0 or 1 for each of them, aligned with the labels.
        seq_boundaries: offsets of the stored sequences; each holds one token more than the model is given.
        eos_id: the token that also fills up sequences.
        answer_only: False to train on every token that is no pad, whatever the mask says.

    Returns:
        sum of (stored length - 1) entries, 0 or 1.
    """
    masks = []
    for number, end in enumerate(seq_boundaries[1:]):
        start = seq_boundaries[number]
        tokens = np.asarray(input_ids[start : end - 1], dtype=np.int64)
        stored = np.asarray(loss_mask[start:end], dtype=np.int64)
        mask = stored[: end - start - 1]
        others = np.flatnonzero(tokens != eos_id)
        may_be_pad = np.arange(len(tokens)) > (others[-1] if len(others) else -1)
        is_pad = may_be_pad & ((mask == 0) | (stored[-1:] != 0))
        masks.extend(np.where(is_pad, 0, mask if answer_only else 1).tolist())
    return masks

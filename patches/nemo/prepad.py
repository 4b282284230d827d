"""New code of the patch `prepad`: every sample of a pack is padded to what context parallelism can split.

Each function is inserted by name into the upstream module named above it.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np

# --- nemo/collections/llm/gpt/data/packed_sequence.py


def _resize_tokens(values: Any, length: int, fill: int) -> Any:
    """Cut a token sequence (list, numpy array or torch tensor) to `length`, or fill it up; its type stays."""
    missing = max(0, length - len(values))
    if hasattr(values, "new_full"):
        import torch

        return torch.cat([values[:length], values.new_full((missing,), fill)])
    if isinstance(values, np.ndarray):
        return np.concatenate([values[:length], np.full(missing, fill, dtype=values.dtype)])
    return list(values[:length]) + np.full(missing, fill, dtype=np.asarray(values[:1]).dtype).tolist()


def _prepad_examples(dataset: Any, max_seq_length: int, pad_seq_to_mult: int, pad_id: int) -> Any:
    """The tokenized examples of `dataset`, each of a length that context parallelism can split.

    Input and label drop one token each, so an example of n + 1 stored tokens runs as n: n is made a multiple of
    `pad_seq_to_mult`, and `(max_seq_length // pad_seq_to_mult) * pad_seq_to_mult` at the most. `input_ids`,
    `loss_mask` and `context_ids` change together, and a pad is never a target. With a multiple of 1 the dataset
    is returned as it is.

    Raises:
        ValueError: if not even one multiple fits into `max_seq_length`.
    """
    if pad_seq_to_mult == 1:
        return dataset
    longest = max_seq_length // pad_seq_to_mult * pad_seq_to_mult
    if longest == 0:
        raise ValueError(
            f"seq_length={max_seq_length} is shorter than PackedSequenceSpecs.pad_seq_to_mult={pad_seq_to_mult}: "
            f"set seq_length to a multiple of {pad_seq_to_mult}"
        )
    examples, truncated = [], 0
    for index in range(len(dataset)):
        example = dict(dataset[index])
        stored = len(example["input_ids"])
        if example.get("loss_mask") is None:
            example["loss_mask"] = [float(i >= example["answer_start_idx"]) for i in range(stored)]
        length = min(-(-(stored - 1) // pad_seq_to_mult) * pad_seq_to_mult, longest) + 1 if stored else 0
        truncated += stored > length
        for key, fill in (("input_ids", pad_id), ("loss_mask", 0), ("context_ids", pad_id)):
            if key in example:
                example[key] = _resize_tokens(example[key], length, fill)
        example["pad_seq_to_mult"] = pad_seq_to_mult
        examples.append(example)
    if truncated:
        logging.warning(
            f"{truncated} of {len(examples)} samples were truncated to {longest + 1} tokens, the longest that "
            f"seq_length={max_seq_length} and pad_seq_to_mult={pad_seq_to_mult} leave room for"
        )
    return examples


# --- nemo/utils/sequence_packing_utils.py


def _target_masks(examples: list[dict[str, list[float]]], order: list[int]) -> list[list[float]]:
    """The loss masks of prepadded examples of one length, in the given order and aligned with the labels: what is
    said of a token holds for the position before it."""
    return [[*np.asarray(examples[index]["loss_mask"])[1:].tolist(), 0] for index in order]


# --- nemo/collections/llm/gpt/data/core.py


def _is_prepadded(file_path: str, pack_metadata: list[dict[str, int]] | None) -> bool:
    """Whether the samples of a pack were padded when it was made, as its name or its metadata (if any) say."""
    multiples = [entry.get("pad_seq_to_mult", 1) for entry in pack_metadata or ()]
    return "_pad_seq_to_mult" in Path(file_path).name or max(multiples, default=1) > 1


def _mask_of_real_labels(example: dict[str, list[int]], pad_id: int) -> list[float]:
    """1.0 for every label of a prepadded pack but the pads, which follow the last target of their sequence and its
    last label that is no pad. A pack without targets only fills up a batch."""
    tokens, targets = np.asarray(example["input_ids"]), np.asarray(example["loss_mask"]) != 0
    mask: list[float] = []
    for start, end in zip(example["seq_boundaries"][:-1], example["seq_boundaries"][1:]):
        real = np.flatnonzero(targets[start : end - 1] | (tokens[start + 1 : end] != pad_id))
        length = int(real[-1]) + 1 if len(real) and targets.any() else 0
        mask += [1.0] * length + [0.0] * (end - 1 - start - length)
    return mask


# --- nemo/collections/llm/gpt/data/fine_tuning.py


def _parallel_sizes(trainer: Any) -> tuple[int, int]:
    """Context parallel size, and the tensor parallel size that splits the sequence (1 without sequence parallel)."""
    strategy = getattr(trainer, "strategy", None)
    cp_size = getattr(strategy, "context_parallel_size", None) or 1
    tp_size = getattr(strategy, "tensor_model_parallel_size", None) or 1
    return cp_size, tp_size if getattr(strategy, "sequence_parallel", False) else 1


def _pad_seq_to_mult(packed_sequence_specs: Any, trainer: Any) -> int:
    """What the runtime length of each packed sequence is a multiple of.

    Raises:
        ValueError: if the value that the user set does not fit the run's context parallel size.
    """
    cp_size, tp_size = _parallel_sizes(trainer)
    multiple = getattr(packed_sequence_specs, "pad_seq_to_mult", None)
    if multiple is None:
        return math.lcm(2 * cp_size, tp_size) if cp_size > 1 else 1
    if multiple < 1:
        raise ValueError(f"PackedSequenceSpecs.pad_seq_to_mult={multiple} must be at least 1")
    if cp_size > 1 and multiple % (2 * cp_size):
        raise ValueError(
            f"PackedSequenceSpecs.pad_seq_to_mult={multiple} is not a multiple of {2 * cp_size}, twice the context "
            f"parallel size: set it to {math.lcm(2 * cp_size, tp_size)}, or leave it unset to have it derived"
        )
    return int(multiple)


def _pack_suffix(pad_seq_to_mult: int) -> str:
    """The part of a pack's file name that keeps packs for different context parallel sizes apart."""
    return f"_pad_seq_to_mult{pad_seq_to_mult}" if pad_seq_to_mult > 1 else ""


def _fit_packed_dataset(data_module: Any, dataset: Any) -> None:
    """Have a packed dataset collate to lengths that the run's ranks can split, and refuse a pack that can't be.

    Raises:
        ValueError: on every rank alike, naming the file, the first offending lengths and the knob.
    """
    cp_size, tp_size = _parallel_sizes(data_module.trainer)
    if cp_size == 1 or not str(dataset.file_path).endswith(".npy"):
        return
    total = math.lcm(2 * cp_size, cp_size * tp_size)
    if dataset.max_seq_length % total:
        raise ValueError(
            f"packs of {dataset.max_seq_length} tokens can't be split: context parallel size {cp_size} and sequence "
            f"parallel size {tp_size} ask for a multiple of {total}. Set PackedSequenceSpecs.packed_sequence_size "
            "(and seq_length, for the validation of chat data) to one"
        )
    # FP8 wants of each rank's tokens what it wanted of all
    per_rank = data_module.dataset_kwargs.get("pad_seq_length_to_mult", 16)
    dataset.pad_seq_length_to_mult = math.lcm(total, cp_size * per_rank)
    _check_packed_lengths(dataset.indexed_dataset, dataset.file_path, cp_size, tp_size)


def _check_packed_lengths(packs: Any, file_path: Any, cp_size: int, tp_size: int) -> None:
    """Raise `ValueError` unless the runtime length of each sequence in `packs` is a multiple of twice the context
    parallel size."""
    import numpy as np

    for index in range(len(packs)):
        bounds = np.append(packs[index]["seq_start_id"], len(packs[index]["input_ids"]))
        lengths = np.diff(bounds) - 1
        if (offending := lengths[lengths % (2 * cp_size) != 0]).size:
            raise ValueError(
                f"{file_path} does not fit context parallel size {cp_size}: pack {index} has sequences of "
                f"{', '.join(map(str, offending[:5]))} tokens, which are not multiples of {2 * cp_size}. Pack the "
                f"data again with PackedSequenceSpecs.pad_seq_to_mult={math.lcm(2 * cp_size, tp_size)}, or leave "
                "it unset to have it derived"
            )

"""New code of the patch `prepad`: every sample of a pack is padded to what context parallelism can split.

Each function is inserted by name into the upstream module named above it.
"""

import logging
import math
from typing import Any

import numpy as np
from megatron.bridge.data.datasets.packed_sequence import PackedSequenceSpecs
from megatron.bridge.data.datasets.sft import GPTSFTPackedDataset

logger = logging.getLogger(__name__)

# --- megatron/bridge/data/datasets/packed_sequence.py


def resolve_pad_seq_to_mult(specs: "PackedSequenceSpecs", cp_size: int, sp_size: int = 1) -> int:
    """What the runtime length of each packed sequence is a multiple of in this run; 1 if nothing is padded.

    A multiple that the user left unset becomes lcm(2 * CP, SP) with CP > 1, and is written to `specs`. It is
    derived anew when the sizes change; an explicit one is only checked.

    Args:
        cp_size: context parallel size (CP).
        sp_size: how many ranks sequence parallelism splits a sequence over (SP), 1 without it.

    Raises:
        ValueError: the explicit multiple is not positive, or not a multiple of 2 * CP with CP > 1.
    """
    derived = getattr(specs, "_derived_pad_seq_to_mult", None)
    chosen = None if specs.pad_seq_to_mult == derived else specs.pad_seq_to_mult
    needed = math.lcm(2 * cp_size, sp_size) if cp_size > 1 else 1
    specs._parallel_sizes = (cp_size, sp_size)
    if chosen is None:
        specs.pad_seq_to_mult = specs._derived_pad_seq_to_mult = needed if needed > 1 else None
        return needed
    if chosen < 1:
        raise ValueError(f"packed_sequence_specs.pad_seq_to_mult={chosen} must be at least 1")
    if cp_size > 1 and chosen % (2 * cp_size):
        raise ValueError(
            f"packed_sequence_specs.pad_seq_to_mult={chosen} is not a multiple of {2 * cp_size}, twice the "
            f"context_parallel_size: set it to {needed}, or leave it unset to have it derived"
        )
    return int(chosen)


def _resize(values: Any, length: int, fill: int) -> Any:
    """Cut a list, numpy array or torch tensor of tokens to `length`, or fill it up; its type stays."""
    kept = values[:length]
    missing = length - len(kept)
    if hasattr(kept, "new_full"):
        resized = kept.new_full((length,), fill)
        resized[: len(kept)] = kept
        return resized
    if isinstance(kept, np.ndarray):
        return np.concatenate([kept, np.full(missing, fill, dtype=kept.dtype)])
    return [*kept, *[type(kept[0])(fill) if len(kept) else fill] * missing]


def _prepad(samples: list[Any], pad_seq_to_mult: int | None, max_seq_length: int, pad_id: int) -> list[Any]:
    """The tokenized samples, each of a length that context parallelism can split.

    Input and label drop one token each, so n + 1 stored tokens run as n: n becomes a multiple of
    `pad_seq_to_mult`, the largest one within `max_seq_length` at the most. `input_ids`, `loss_mask` and
    `context_ids` change together. A pad is never a target: samples without a loss mask get one from
    `answer_start_idx`. With a multiple of 1 or None the samples are returned as they are.

    Raises:
        ValueError: not one multiple fits into `max_seq_length`, or a loss mask is not as long as its sample.
    """
    if pad_seq_to_mult is None or pad_seq_to_mult == 1:
        return samples
    if not 1 <= pad_seq_to_mult <= max_seq_length:
        raise ValueError(f"pad_seq_to_mult={pad_seq_to_mult} is not from 1 to seq_length={max_seq_length}")
    longest = max_seq_length // pad_seq_to_mult * pad_seq_to_mult
    padded = []
    truncated = 0
    for sample in samples:
        stored = len(sample["input_ids"])
        length = min(math.ceil((stored - 1) / pad_seq_to_mult) * pad_seq_to_mult, longest) + 1
        truncated += stored > length
        sample = dict(sample)
        if sample.get("loss_mask") is None and "answer_start_idx" in sample:
            sample["loss_mask"] = [index >= sample["answer_start_idx"] for index in range(stored)]
        if sample.get("loss_mask") is not None and len(sample["loss_mask"]) != stored:
            raise ValueError(f"a sample of {stored} tokens has a loss mask of {len(sample['loss_mask'])}")
        for key, fill in (("input_ids", pad_id), ("loss_mask", 0), ("context_ids", pad_id)):
            if sample.get(key) is not None:
                sample[key] = _resize(sample[key], length, fill)
        padded.append(sample)
    if truncated:
        logger.warning(
            f"{truncated} of {len(samples)} samples were truncated to {longest + 1} tokens, the longest that "
            f"seq_length={max_seq_length} and pad_seq_to_mult={pad_seq_to_mult} leave room for"
        )
    return padded


# --- megatron/bridge/data/datasets/packing_utils.py


def _label_masks(
    samples: list[dict[str, list[int]]],
    order: list[int],
    loss_mask: list[list[int]] | None,
) -> list[list[int]] | None:
    """The loss masks of samples of one length, in the given order.

    What a sample's own mask says of a token is moved to the position that predicts it. Where samples carry none,
    `loss_mask` is returned as it is.
    """
    if any(sample.get("loss_mask") is None for sample in samples):
        return loss_mask
    masks = [np.asarray(samples[index]["loss_mask"]) for index in order]
    return [[*mask[1:].tolist(), False] for mask in masks]


# --- megatron/bridge/data/datasets/sft.py


def context_parallel_size() -> int:
    """The context parallel size of this process; 0 where process groups are not set up."""
    from megatron.core import parallel_state

    try:
        return int(parallel_state.get_context_parallel_world_size())
    except AssertionError:
        return 0


def _check_packs(packs: list[dict[str, list[int]]], file_path: str, cp_size: int) -> None:
    """Refuse a pack file with a sequence that `cp_size` ranks can't split.

    Raises:
        ValueError: on every rank alike, naming the file, the first offending lengths and the knob.
    """
    if cp_size < 2:
        return
    for number, pack in enumerate(packs):
        lengths = np.diff([*pack["seq_start_id"], len(pack["input_ids"])]) - 1
        if (offending := lengths[lengths % (2 * cp_size) != 0]).size:
            raise ValueError(
                f"{file_path} does not fit context_parallel_size={cp_size}: pack {number} has sequences of "
                f"{', '.join(map(str, offending[:5]))} tokens, which are not multiples of {2 * cp_size}. Pack "
                "the data again with packed_sequence_specs.pad_seq_to_mult set to a multiple of that, or left "
                "unset to have it derived"
            )


def _is_prepadded(dataset: "GPTSFTPackedDataset") -> bool:
    """Whether sequences of a packed data set may end in pads: CP > 1 asks for it, or the metadata tells."""
    if dataset.return_cu_seqlen and dataset.context_parallel_size > 1:
        return True
    return any(pack.get("pad_seq_to_mult", 1) > 1 for pack in dataset.pack_metadata or ())


def _mask_of_whole_text(
    example: dict[str, list[int]],
    eos_id: int,
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The loss mask of a prepadded pack whose loss is on the whole text, float64 [runtime length].

    As for other packs, what follows an EOS is no target. The first EOS at the end of a sequence may be its own
    or a pad: only its own is a target in the pack's loss mask.
    """
    bounds = example["seq_boundaries"]
    masks = []
    for start, end in zip(bounds[:-1], bounds[1:], strict=True):
        tokens = np.asarray(example["input_ids"][start:end])
        mask = (tokens[:-1] != eos_id).astype(float)
        others = np.flatnonzero(tokens != eos_id)
        if len(others) and others[-1] < len(mask):
            mask[others[-1]] = bool(example["loss_mask"][start + others[-1]])
        masks.append(mask)
    return np.concatenate(masks)


# --- megatron/bridge/data/builders/finetuning_dataset.py


def _resolve_padding(specs: PackedSequenceSpecs | None, seq_length: int) -> tuple[int, int]:
    """What the length of each packed sequence, and that of a whole pack, is a multiple of in this run.

    Raises:
        ValueError: on every rank alike, naming the knob that does not fit the run's parallelism.
    """
    if specs is None or specs.packed_sequence_size <= 0:
        return 1, 1
    noted_cp_size, sp_size = getattr(specs, "_parallel_sizes", (1, 1))
    cp_size = context_parallel_size() or noted_cp_size
    multiple = resolve_pad_seq_to_mult(specs, cp_size, sp_size)
    if multiple > seq_length:
        raise ValueError(f"seq_length={seq_length} is less than pad_seq_to_mult={multiple}")
    total = math.lcm(2 * cp_size, cp_size * sp_size) if cp_size > 1 else 1
    if specs.packed_sequence_size % total:
        raise ValueError(
            f"packed_sequence_specs.packed_sequence_size={specs.packed_sequence_size} is not a multiple of "
            f"{total}: context_parallel_size={cp_size} and sequence parallelism over {sp_size} ask for that"
        )
    return multiple, total


def _pack_folder(tokenizer_model_name: str, pad_seq_to_mult: int) -> str:
    """The folder of a tokenizer's packs; those of different multiples never meet."""
    return tokenizer_model_name + (f"_pad_seq_to_mult{pad_seq_to_mult}" if pad_seq_to_mult > 1 else "")


def _collate_to_multiple(kwargs: dict[str, Any], total: int) -> dict[str, Any]:
    """Data set arguments that have packs padded to a length that the run's ranks can split."""
    return {**kwargs, "pad_seq_length_to_mult": math.lcm(kwargs.get("pad_seq_length_to_mult", 16), total)}

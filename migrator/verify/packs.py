"""Packed batches as a collate function hands them out, good and bad, made by hand."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import torch

from migrator.verify.samples import EOS
from migrator.verify.stack import Batch

# The pack of the first public report: none of the usual lengths divides by 4.
REPORTED = (
    0, 9484, 9665, 10350, 10643, 11403, 12009, 12691, 13199, 13686, 14763, 15437, 16731, 17120, 18486,
    19185, 20122, 21117, 21284, 21619, 23190, 24816, 26374, 27024, 27591, 28392, 32342, 32581, 32724, 32768,
)  # fmt: skip


def _row(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor([list(values)], dtype=torch.int64)


def pack(spans: Sequence[int], sentinels: int = 1, rows: int = 1) -> Batch:
    """A batch of `rows` equal packs with sequences of the given lengths, each token its own number.

    `sentinels` trailing -1 in cu_seqlens; keys, shapes and dtypes as upstream's collate functions have them.
    """
    bounds = [0, *accumulate(spans)]
    total = bounds[-1]
    padded = torch.tensor([[*bounds, *[-1] * sentinels]], dtype=torch.int32)
    unpadded = torch.tensor(
        [[*(max(0, bound - 1) for bound in bounds), *[-1] * sentinels]], dtype=torch.int32
    )
    batch = {
        "tokens": _row([EOS + 1 + token for token in range(total)]),
        "labels": _row([EOS + 2 + token for token in range(total)]),
        "loss_mask": _row([int(token % 3 != 0) for token in range(total)]),
        "position_ids": _row([token for span in spans for token in range(span)]),
        "cu_seqlens": padded,
        "cu_seqlens_argmin": torch.tensor([[len(bounds)]]),
        "max_seqlen": torch.tensor([[max(spans)]], dtype=torch.int32),
        "cu_seqlens_unpadded": unpadded,
        "cu_seqlens_unpadded_argmin": torch.tensor([[len(bounds)]]),
    }
    repeated: Batch = {key: value.repeat(rows, 1) for key, value in batch.items()}
    return repeated | {"attention_mask": torch.ones(rows, dtype=torch.int64), "token_count": [total] * rows}


def as_core_names(batch: Batch, padded: bool) -> Batch:
    """The same pack under the names of PackedSeqParams, which Bridge 0.6 uses, without -1.

    `padded`: with the lengths without pads as cu_seqlens_q and the padded ones beside them.
    """
    kept = {key: value for key, value in batch.items() if "seqlen" not in key}
    bounds, shorter = (
        torch.stack([row[row >= 0] for row in batch[key]]) for key in ("cu_seqlens", "cu_seqlens_unpadded")
    )
    named = {f"cu_seqlens_{side}": shorter if padded else bounds for side in ("q", "kv")}
    named |= {f"cu_seqlens_{side}_padded": bounds for side in ("q", "kv") if padded}
    return kept | named | {f"max_seqlen_{side}": batch["max_seqlen"] for side in ("q", "kv")}


def with_core_names(cases: Mapping[str, Batch]) -> dict[str, Batch]:
    """The packs, and each of them under the names of PackedSeqParams in both ways."""
    named = {
        f"{name}, cu_seqlens_q{'_padded' * padded}": as_core_names(batch, padded)
        for name, batch in cases.items()
        for padded in (False, True)
    }
    return {**cases, **named}


def good_spans(rng: random.Random, multiple: int, total: int, entries: int | None = None) -> list[int]:
    """Random lengths that are multiples of `multiple` and sum to `total`; `entries` fixes how many."""
    chunks = total // multiple
    count = entries or rng.randint(3, min(8, chunks))
    cuts = sorted(rng.sample(range(1, chunks), count - 1))
    return [(end - start) * multiple for start, end in zip([0, *cuts], [*cuts, chunks], strict=True)]


def good_packs(rng: random.Random, cp: int) -> dict[str, Batch]:
    """Packs that have to be split, by what is special about them. All have the same number of tokens."""
    multiple, total = 2 * cp, 16 * cp * 6
    first = {key: torch.tensor([[0]]) for key in ("cu_seqlens_argmin", "cu_seqlens_unpadded_argmin")}
    silent = 2 * multiple - 2  # with the leading 0 and one -1, cu_seqlens itself divides by 2 * cp
    return {
        "a pack": pack(good_spans(rng, multiple, total)),
        "another pack of the same size": pack(good_spans(rng, multiple, total)),
        "cu_seqlens of a length that divides by 2 * cp": pack(good_spans(rng, multiple, total, silent)),
        "three trailing -1": pack(good_spans(rng, multiple, total), sentinels=3),
        "64 trailing -1": pack(good_spans(rng, multiple, total), sentinels=64),
        "empty sequences at the end": pack([*good_spans(rng, multiple, total), 0, 0, 0]),
        "no -1, the least entry is the first": pack(good_spans(rng, multiple, total), sentinels=0) | first,
    }


def bad_packs(rng: random.Random, cp: int) -> dict[str, Batch]:
    """Packs that have to be refused at context parallel size `cp` > 1, by what is wrong with them."""
    multiple, total = 2 * cp, 16 * cp * 6
    spans = good_spans(rng, multiple, total)
    odd = [spans[0] + 1, spans[1] - 1, *spans[2:]]
    half = [spans[0] + cp, spans[1] - cp, *spans[2:]]  # divides by cp, not by 2 * cp
    split = pack(spans)
    for key in ("tokens", "labels", "loss_mask", "position_ids"):
        split[key] = split[key][:, : total // cp].contiguous()
    long = pack(spans)
    for key in ("tokens", "labels", "loss_mask", "position_ids"):
        long[key] = torch.cat([long[key], long[key][:, :multiple]], 1)
    return {
        "lengths that don't divide": pack(odd),
        "lengths that divide by cp only": pack(half),
        "the reported pack": pack([end - start for start, end in pairwise(REPORTED)]),
        "micro batch size 2": pack(spans, rows=2),
        "a batch that is already split": split,
        "more tokens than cu_seqlens says": long,
    }


def plain_batch(rng: random.Random, cp: int, rows: int = 2) -> Batch:
    """A batch that isn't packed, with a causal mask: bool [rows, 1, s, s]."""
    length = 2 * cp * rng.randint(3, 6)
    tokens = torch.tensor([[rng.randrange(1000) for _ in range(length)] for _ in range(rows)])
    return {
        "tokens": tokens,
        "labels": tokens + 1,
        "loss_mask": (tokens % 3 > 0).float(),
        "position_ids": torch.arange(length).repeat(rows, 1),
        "attention_mask": (torch.rand(rows, 1, length, length) < 0.5),
    }

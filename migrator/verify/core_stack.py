"""Megatron-Core by itself: its model, with the packing, split and loss of this package around it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from migrator.verify import samples
from migrator.verify.data import bounds_of
from migrator.verify.reference import lengths, partition_index
from migrator.verify.samples import EOS, LIMIT, PACK, Item, ToyTokenizer
from migrator.verify.stack import Batch, Stack, Stage

SPLIT = ("tokens", "position_ids", "labels", "loss_mask")


def _ceil(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def unpacked(folder: Path, chat: bool) -> list[Mapping[str, Any]]:
    """The samples of `training.jsonl`, prompt and answer with an EOS behind, or conversations as they are."""
    tokenizer = ToyTokenizer()
    found: list[Mapping[str, Any]] = []
    for line in (folder / "training.jsonl").read_text().splitlines():
        sample = json.loads(line)
        if chat:
            turns = tokenizer.apply_chat_template(sample["messages"])
            ids, mask = turns["input_ids"], turns["assistant_masks"]
        else:
            prompt, answer = (tokenizer.text_to_ids(sample[key]) for key in ("input", "output"))
            answer = [*answer, EOS]
            prompt = prompt[: max(0, LIMIT - len(answer))]
            ids, mask = prompt + answer, [0] * len(prompt) + [1] * len(answer)
        found.append({"input_ids": ids, "loss_mask": mask})
    return found


def _assign(items: Sequence[Item], multiple: int) -> list[list[samples.Packed]]:
    """First-fit packs of prepadded samples."""
    packs: list[list[samples.Packed]] = []
    for item in items:
        length = min(_ceil(len(item.ids) - 1, multiple), LIMIT // multiple * multiple)
        sequence = samples.packed(item, length)
        room = (p for p in packs if sum(len(s.tokens) for s in p) + length <= PACK)
        pack = next(room, None)
        if pack is None:
            packs.append([sequence])
        else:
            pack.append(sequence)
    return packs


def _collate(pack: Sequence[samples.Packed], pad_cu_seqlens: bool) -> Batch:
    spans = [len(sequence.tokens) for sequence in pack]
    if sum(spans) < PACK:
        spans.append(PACK - sum(spans))
    rest = PACK - sum(len(sequence.tokens) for sequence in pack)
    bounds = [0, *torch.tensor(spans).cumsum(0).tolist()]
    bounds += [PACK] * (32 - len(bounds)) if pad_cu_seqlens else []

    def row(values: Sequence[int], pad: int) -> Tensor:
        return torch.tensor([[*values, *[pad] * rest]])

    return {
        "tokens": row([token for sequence in pack for token in sequence.tokens], EOS),
        "labels": row([label for sequence in pack for label in sequence.labels], EOS),
        "loss_mask": row([int(target) for sequence in pack for target in sequence.target], 0),
        "position_ids": row([i for sequence in pack for i in range(len(sequence.tokens))], 0),
        "cu_seqlens": torch.tensor([[*bounds, -1]], dtype=torch.int32),
        "cu_seqlens_argmin": torch.tensor([[len(bounds)]]),
        "max_seqlen": torch.tensor([[max(spans)]], dtype=torch.int32),
    }


def batches(folder: Path, chat: bool, cp: int, pad_cu_seqlens: bool) -> list[Batch]:
    """Packs for context parallel size `cp`."""
    items = [samples.to_item(raw) for raw in unpacked(folder, chat)]
    return [_collate(pack, pad_cu_seqlens) for pack in _assign(items, 2 * cp if cp > 1 else 1)]


def params(batch: Batch) -> Any:
    """PackedSeqParams with the padded cu_seqlens in all fields that the installed version has for it."""
    kind = import_module("megatron.core.packed_seq_params").PackedSeqParams
    bounds = bounds_of(batch)
    longest = max(lengths(bounds))
    values = {
        "qkv_format": "thd",
        **{f"cu_seqlens_{side}{which}": bounds for side in ("q", "kv") for which in ("", "_padded")},
        "max_seqlen_q": longest,
        "max_seqlen_kv": longest,
    }
    return kind(**{field.name: values[field.name] for field in fields(kind) if field.name in values})


def check_pack(batch: Batch, cp: int) -> None:
    """Raise ValueError where a pack cannot be split over `cp` ranks."""
    bounds, total = bounds_of(batch), batch["tokens"].shape[1]
    if batch["tokens"].shape[0] != 1:
        raise ValueError("packs need a micro batch size of 1")
    if int(bounds[-1]) != total:
        raise ValueError(f"{total} tokens, but cu_seqlens ends with {int(bounds[-1])}")
    if cp > 1 and any(length % (2 * cp) for length in lengths(bounds)):
        raise ValueError(f"lengths that are no multiples of {2 * cp}")


def step(batch: Batch, stage: Stage) -> Batch:
    """This rank's part of a batch."""
    state = import_module("megatron.core.parallel_state")
    cp, rank = state.get_context_parallel_world_size(), state.get_context_parallel_rank()
    kept = {
        "only": SPLIT,
        "first": ("tokens", "position_ids"),
        "middle": (),
        "last": ("labels", "loss_mask"),
    }[stage]
    if batch.get("cu_seqlens") is None:
        bounds = torch.tensor([0, batch["tokens"].shape[1]], dtype=torch.int32)
        found = None
    else:
        check_pack(batch, cp)
        bounds, found = bounds_of(batch), params(batch)
    index = partition_index(bounds, int(bounds[-1]), cp, rank).long().to(batch["tokens"].device)
    share: Batch = {key: batch[key][:, index] if key in kept else None for key in SPLIT}
    return share | {"attention_mask": None, "packed_seq_params": found}


def _forward(model: nn.Module, share: Batch, labels: Tensor | None) -> Tensor:
    out: Tensor = model(
        input_ids=share["tokens"],
        position_ids=share["position_ids"],
        attention_mask=None,
        labels=labels,
        packed_seq_params=share["packed_seq_params"],
    )
    return out


def _beside(model: nn.Module, batch: Batch) -> Batch:
    """The batch, on the model's device."""
    device = next(model.parameters()).device
    return {key: value.to(device) if isinstance(value, Tensor) else value for key, value in batch.items()}


def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    """Summed loss of this rank, mean loss of the pack."""
    share = step(_beside(model, batch), "only")
    mask = share["loss_mask"].float()
    summed = (_forward(model, share, share["labels"]) * mask).sum()
    total = torch.stack([summed.detach(), mask.sum()])
    dist.all_reduce(total, group=import_module("megatron.core.parallel_state").get_context_parallel_group())
    return summed, float(total[0] / total[1])


def logits(model: nn.Module, batch: Batch) -> Tensor:
    """Logits of this rank's tokens."""
    return _forward(model, step(_beside(model, batch), "only"), None)


def load() -> Stack:
    """The installed Megatron-Core in this package's own frame. Raises ImportError where it isn't there."""
    info = import_module("megatron.core.package_info")
    return Stack(f"megatron-core {info.__version__}", unpacked, batches, params, step, loss, logits)

"""Synthetic training samples, and what a pack of them has to look like."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

EOS = 2
FIRST, VOCAB = 3, 96  # ordinary tokens are FIRST <= id < VOCAB
LIMIT = 96  # longest sample in stored tokens, as `seq_length` of a run
PACK = 96  # tokens of a pack: the longest sample fills one


@dataclass(frozen=True)
class Turn:
    """Part of a conversation; the assistant's tokens are the targets."""

    role: str  # "user" or "assistant"
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Item:
    """A sample as the unpacked data set hands it out."""

    ids: tuple[int, ...]
    target: tuple[bool, ...]  # [len(ids) - 1]: is ids[i + 1] to be learnt from ids[: i + 1]


class ToyTokenizer:
    """Words are token numbers: "17 4 2". Padding is EOS, as with most chat models."""

    eos_id = eod = eos = pad_id = EOS
    bos_id = 1
    vocab_size = VOCAB
    legacy = False
    space_sensitive = False
    chat_template = "{% generation %}"
    eos_token_id = EOS

    def __init__(self) -> None:
        self.tokenizer = self._tokenizer = SimpleNamespace(
            chat_template=self.chat_template,
            apply_chat_template=self.apply_chat_template,
            eos_token_id=EOS,
            name_or_path="toy",
        )

    def text_to_ids(self, text: str) -> list[int]:
        """Token numbers of a text."""
        return [int(word) for word in text.split()]

    tokenize = text_to_ids

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **_: object) -> dict[str, list[int]]:
        """Token numbers of a conversation and which of them the assistant wrote."""
        ids: list[int] = []
        mask: list[int] = []
        for message in messages:
            turn = self.text_to_ids(message["content"])
            ids += turn
            mask += [int(message["role"] == "assistant")] * len(turn)
        return {"input_ids": ids, "assistant_masks": mask}


def _words(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(FIRST, VOCAB) for _ in range(count))


def conversations(seed: int) -> list[list[Turn]]:
    """The shapes that packing has gone wrong on, in one data set of about ten packs' worth of sequences."""
    rng = random.Random(seed)

    def single(prompt: int, answer: int) -> list[Turn]:
        return [Turn("user", _words(rng, prompt)), Turn("assistant", _words(rng, answer))]

    inner_eos = [
        Turn("user", _words(rng, 5)),
        Turn("assistant", (*_words(rng, 6), EOS)),
        Turn("user", _words(rng, 4)),
        Turn("assistant", (*_words(rng, 7), EOS)),
    ]
    return [
        *(single(rng.randrange(1, 12), rng.randrange(1, 20)) for _ in range(10)),
        single(4, 4),  # stored length 9: divides by 2, 4, 8 as it is
        inner_eos,
        [
            Turn("user", (*_words(rng, 3), EOS, *_words(rng, 2))),
            Turn("assistant", (*_words(rng, 3), EOS, EOS)),
        ],
        [Turn("user", (EOS, *_words(rng, 4))), Turn("assistant", _words(rng, 6))],  # EOS at 0
        [Turn("user", (EOS,)), Turn("assistant", (EOS, *_words(rng, 2)))],
        single(20, LIMIT - 21),  # stored length LIMIT: the longest that fits
        single(40, LIMIT - 30),  # too long
    ]


def write_plain(path: Path, samples: Sequence[Sequence[Turn]]) -> None:
    """Prompt and answer, one JSON object a line: all turns but the last are prompt."""
    lines = []
    for turns in samples:
        prompt = " ".join(str(token) for turn in turns[:-1] for token in turn.ids)
        lines.append(json.dumps({"input": prompt, "output": " ".join(map(str, turns[-1].ids))}))
    path.write_text("\n".join(lines) + "\n")


def write_chat(path: Path, samples: Sequence[Sequence[Turn]]) -> None:
    """Conversations, one JSON object a line."""
    lines = [
        json.dumps({"messages": [{"role": t.role, "content": " ".join(map(str, t.ids))} for t in turns]})
        for turns in samples
    ]
    path.write_text("\n".join(lines) + "\n")


def to_item(raw: Mapping[str, Any]) -> Item:
    """A sample of the real unpacked data set; its tokens may be a list, an array or a tensor."""
    ids = tuple(int(token) for token in raw["input_ids"])
    if "loss_mask" in raw:
        return Item(ids, tuple(bool(value) for value in raw["loss_mask"])[1:])
    return Item(ids, tuple(index >= int(raw["answer_start_idx"]) for index in range(1, len(ids))))


@dataclass(frozen=True)
class Packed:
    """A sequence as it has to stand in a pack."""

    tokens: tuple[int, ...]
    labels: tuple[int, ...]
    target: tuple[bool, ...]


def packed(item: Item, length: int) -> Packed:
    """`item` padded with EOS, or cut, to `length` tokens; pads are no targets."""
    stored = (*item.ids, *[EOS] * (length + 1 - len(item.ids)))[: length + 1]
    target = (*item.target, *[False] * (length - len(item.target)))[:length]
    return Packed(stored[:-1], stored[1:], target)

"""`prepad`: every sequence of a pack can be split, and its targets are those of the sample."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from migrator.model import State
from tests.patches import states
from tests.patches.nemo.stack import DATA, VERSIONS, Tokenizer, datasets, packing
from tests.patches.real_code import new_code

CODE = new_code("nemo/prepad.py")
EOS = Tokenizer.eos_id
SIZE = 64
Sequences = list[tuple[list[int], ...]]  # tokens, labels and loss mask of each
MAKERS: dict[str, Any] = {"list": list, "numpy": np.array, "torch": torch.tensor}


# --- the new code by itself


@pytest.mark.parametrize("made", MAKERS)
@pytest.mark.parametrize("kind", [bool, int, float])
def test_tokens_and_masks_keep_their_type(made: str, kind: type) -> None:
    values = MAKERS[made]([kind(1), kind(0), kind(1)])
    for length in range(6):
        resized = CODE._resize_tokens(values, length, 0)
        assert type(resized) is type(values)
        assert list(resized) == [1, 0, 1, 0, 0][:length]
        if made == "list":
            assert {type(value) for value in resized} <= {kind}
        else:
            assert resized.dtype == values.dtype
    assert list(values) == [1, 0, 1]


def example(number: int, stored: int) -> dict[str, Any]:
    tokens = [1000 + number, *range(10, 9 + stored)][:stored]
    context = stored // 3
    return {
        "input_ids": tokens,
        "loss_mask": [0] * context + [1] * (stored - context),
        "context_ids": tokens[:context],
        "answer_start_idx": context,
    }


def test_examples_get_lengths_that_can_be_split(rng: random.Random, caplog: pytest.LogCaptureFixture) -> None:
    multiple, limit = rng.choice([2, 4, 6, 8, 12, 16]), rng.randint(16, 80)
    longest = limit // multiple * multiple
    examples = [
        example(i, stored) for i, stored in enumerate([0, 1, 2, limit, limit + 1, 3 * limit, longest])
    ]
    examples += [example(7 + i, rng.randint(1, limit)) for i in range(20)]
    before = json.dumps(examples)
    with caplog.at_level(logging.WARNING):
        padded = CODE._prepad_examples(examples, limit, multiple, EOS)
    assert json.dumps(examples) == before
    truncated = 0
    for old, new in zip(examples, padded, strict=True):
        length = len(new["input_ids"])
        assert [len(new[key]) for key in ("loss_mask", "context_ids")] == [length] * 2
        stored = len(old["input_ids"])
        assert length == 0 if stored == 0 else (length - 1) % multiple == 0
        assert length <= longest + 1
        assert length >= stored or length == longest + 1
        assert length - stored < multiple
        kept = min(stored, length)
        truncated += kept < stored
        assert new["input_ids"] == old["input_ids"][:kept] + [EOS] * (length - kept)
        assert new["loss_mask"] == old["loss_mask"][:kept] + [0] * (length - kept)
        assert new["context_ids"][: len(old["context_ids"])] == old["context_ids"][:kept]
    assert truncated
    assert f"{truncated} of {len(examples)} samples were truncated to {longest + 1} tokens" in caplog.text


def test_without_a_multiple_the_dataset_is_itself() -> None:
    data = [example(1, 5)]
    assert CODE._prepad_examples(data, 64, 1, EOS) is data


def test_a_multiple_that_never_fits_is_refused() -> None:
    with pytest.raises(ValueError, match=r"seq_length=7 .*PackedSequenceSpecs.pad_seq_to_mult=8"):
        CODE._prepad_examples([example(1, 5)], 7, 8, EOS)


def test_real_labels_are_all_but_pads() -> None:
    pad = 2
    tokens = [9, 8, 2, 7, 2, 2, 2, 6, 5, 4, 3, 3, 2, 2]
    targets = [
        0,
        1,
        0,
        1,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    ]  # the first sequence ends with a real EOS; the second has none
    found = CODE._mask_of_real_labels(
        {"input_ids": tokens, "loss_mask": targets, "seq_boundaries": [0, 7, 14]}, pad
    )
    assert found == [1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0]
    filler = {"input_ids": tokens, "loss_mask": [0] * 14, "seq_boundaries": [0, 7, 14]}
    assert CODE._mask_of_real_labels(filler, pad) == [0] * 12


def test_prepadded_packs_are_known_by_metadata_or_name() -> None:
    assert CODE._is_prepadded("x/training_64.npy", [{"pad_seq_to_mult": 4}, {}])
    assert CODE._is_prepadded("x/training_64_pad_seq_to_mult4.npy", None)
    assert not CODE._is_prepadded("x_pad_seq_to_mult4/training_64.npy", [{}, {"pad_seq_to_mult": 1}])
    assert not CODE._is_prepadded("training_64.npy", None)


# --- the real pipeline: tokenize, pack, collate

# input and output of samples, as token ids; the first id tells them apart
SAMPLES = {
    "single turn": ("101 11 12 13", "14 15 16"),
    "EOS within the answer": ("102 11", "12 13 2 14 15 2 16"),
    "EOS within the question": ("103 2 11 2", "12 13"),
    "EOS at 0": ("2 104 11", "12"),
    "EOS twice at the end": ("105 11 12", "13 2"),
    "EOS alone is the answer": ("106 11 12 13 14", "2"),
    "as long as the limit": (f"107 {'11 ' * 40}", "12 " * 22),
    "longer than the limit": ("108 " + "11 " * 10, "12 " * 80),
    "two tokens": ("109", ""),
}


def write(path: Path, samples: Sequence[tuple[str, str]]) -> Path:
    rows = [json.dumps({"input": question, "output": answer}) for question, answer in samples]
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def segments(batch: dict[str, Any]) -> Sequences:
    """Tokens, labels and loss mask of each sequence of the first row."""
    bounds = [value for value in batch["cu_seqlens"][0].tolist() if value >= 0]
    rows = [batch[key][0].tolist() for key in ("tokens", "labels", "loss_mask")]
    return [tuple(row[a:b] for row in rows) for a, b in pairwise(bounds)]


def packed(
    version: str,
    patched: bool,
    folder: Path,
    multiple: int,
    limit: int = SIZE,
    *,
    examples: Any = None,
    **kwargs: Any,
) -> Sequences:
    """The sequences of all packs, collated. `kwargs` reach the data sets, as the data module has it."""
    code = packing(version, patched, **({"create_sft_dataset": lambda **_: examples} if examples else {}))
    file, about = folder / "training_64.npy", folder / "metadata.jsonl"
    about.unlink(missing_ok=True)
    options: dict[str, Any] = {"pad_seq_to_mult": multiple} if patched else {}
    if version > "2.5":
        options["dataset_kwargs"] = dict(kwargs)
    code["prepare_packed_sequence_data"](
        input_path=folder / "training.jsonl",
        output_path=file,
        output_metadata_path=about,
        packed_sequence_size=SIZE,
        tokenizer=Tokenizer(),
        max_seq_length=limit,
        **options,
    )
    made = datasets(version, patched)["create_sft_dataset"](
        path=file, tokenizer=Tokenizer(), seq_length=SIZE, pack_metadata_file_path=about, **kwargs
    )
    return [segment for i in range(len(made)) for segment in segments(made.collate_fn([made[i]]))]


def unpacked(version: str, file: Path, limit: int = SIZE, **kwargs: Any) -> Sequences:
    """The same of each sample by itself, by upstream's own code."""
    made = datasets(version, False)["create_sft_dataset"](
        path=file, tokenizer=Tokenizer(), seq_length=limit, is_test=True, **kwargs
    )
    found = []
    for i in range(len(made)):
        batch = made.collate_fn([made[i]])
        runs = len(made[i]["input_ids"]) - 1
        found.append(tuple(batch[key][0].tolist()[:runs] for key in ("tokens", "labels", "loss_mask")))
    return found


def faults(packs: Any, samples: Any, multiple: int) -> list[str]:
    """What is wrong with packs, against the samples by themselves."""
    found, left = [], [s for s in samples if s[0]]
    for tokens, labels, mask in packs:
        mine = [s for s in left if s[0][: len(tokens)] == tokens[: len(s[0])]]
        if not mine:  # the padding at the end of a pack
            if set(tokens) != {EOS} or any(mask):
                found.append(f"{tokens} of no sample")
            continue
        left.remove(mine[0])
        if len(tokens) % multiple:
            found.append(f"{len(tokens)} tokens")
        runs = min(len(mine[0][0]), len(tokens))
        if labels[:runs] != mine[0][1][:runs] or set(labels[runs:]) - {EOS}:
            found.append(f"labels {labels}, not {mine[0][1]}")
        wanted = [int(bool(value)) for value in mine[0][2][:runs]] + [0] * (len(tokens) - runs)
        if mask != wanted:
            found.append(f"targets {mask}, not {wanted} in {tokens}")
    return found + [f"{s[0]} is lost" for s in left]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("multiple", [4, 8, 12])
@pytest.mark.parametrize("name", SAMPLES)
def test_each_kind_of_sample_keeps_its_targets(
    version: str, multiple: int, name: str, tmp_path: Path
) -> None:
    limit = SIZE if multiple < 12 else 62
    file = write(tmp_path / "training.jsonl", [SAMPLES[name]])
    expected = unpacked(version, file, limit)
    assert faults(packed(version, True, tmp_path, multiple, limit), expected, multiple) == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("answer_only_loss", [True, False])
def test_random_packs_keep_their_targets(
    version: str, answer_only_loss: bool, tmp_path: Path, rng: random.Random
) -> None:
    multiple = rng.choice([4, 6, 8, 16])
    samples = list(SAMPLES.values())
    for number in range(200, 240):
        words = [str(rng.choice([EOS, *range(3, 30)])) for _ in range(rng.randint(2, 40))]
        cut = rng.randint(0, len(words))
        samples.append((" ".join([str(number), *words[:cut]]), " ".join(words[cut:])))
    file = write(tmp_path / "training.jsonl", samples)
    kwargs = {} if answer_only_loss else {"answer_only_loss": False}
    expected = unpacked(version, file, **kwargs)
    assert faults(packed(version, True, tmp_path, multiple, **kwargs), expected, multiple) == []
    wrong = faults(packed(version, False, tmp_path, multiple, **kwargs), expected, multiple)
    assert [fault for fault in wrong if fault.endswith("tokens")]
    misplaced = [fault for fault in wrong if fault.startswith("targets")]
    assert bool(misplaced) is not (answer_only_loss and version in ("2.5.3", "2.7.3"))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("made", MAKERS)
@pytest.mark.parametrize("kind", [bool, int, float])
def test_masks_of_any_type_and_gaps_in_them(
    version: str, made: str, kind: type, tmp_path: Path, rng: random.Random
) -> None:
    """As chat data has them: several answers, the last token no target."""
    examples, expected = [], []
    for number in range(rng.randint(1, 12)):
        stored = rng.randint(2, SIZE)
        tokens = [100 + number, *(rng.choice([EOS, *range(3, 30)]) for _ in range(stored - 1))]
        mask = [kind(rng.randint(0, 1)) for _ in range(stored)]
        example = {"input_ids": tokens, "loss_mask": mask, "context_ids": tokens[:1], "answer_start_idx": 0}
        examples.append({k: v if isinstance(v, int) else MAKERS[made](v) for k, v in example.items()})
        expected.append((tokens[:-1], tokens[1:], mask[1:]))
    assert faults(packed(version, True, tmp_path, 4, examples=examples), expected, 4) == []


CHATS = (
    ["user 101 11 12", "assistant 13 14", "user 15", "assistant 16 17"],
    ["user 102 11 2", "assistant 13 2", "user 15 2", "assistant 16 2"],
    ["user 103 11", "assistant 2 2 2"],
    ["user 104 11", "assistant 12", "user 13 2"],
    ["user 105", "assistant " + "11 12 13 2 " * 30],
)


@pytest.mark.parametrize("version", [version for version in VERSIONS if version > "2.5"])
@pytest.mark.parametrize("multiple", [4, 16])
def test_chats_keep_their_targets(version: str, multiple: int, tmp_path: Path) -> None:
    chats = [[dict(zip(("role", "content"), turn.split(" ", 1), strict=True)) for turn in c] for c in CHATS]
    file = tmp_path / "training.jsonl"
    file.write_text("\n".join(json.dumps({"messages": chat}) for chat in chats), encoding="utf-8")
    options = {"chat": True, "use_hf_tokenizer_chat_template": True}
    expected = unpacked(version, file, **options)
    assert faults(packed(version, True, tmp_path, multiple, **options), expected, multiple) == []
    with pytest.raises(IndexError):  # upstream does not truncate chats when it packs
        packed(version, False, tmp_path, multiple, **options)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_metadata_says_what_packs_are_padded_to(version: str, tmp_path: Path) -> None:
    write(tmp_path / "training.jsonl", list(SAMPLES.values()))
    packed(version, True, tmp_path, 8)
    (entry,) = json.loads((tmp_path / "metadata.jsonl").read_text(encoding="utf-8"))
    assert entry["pad_seq_to_mult"] == 8
    assert entry["dataset_max_seqlen"] == SIZE


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("answer_only_loss", [True, False])
def test_with_a_multiple_of_one_every_byte_is_as_before(
    version: str, answer_only_loss: bool, tmp_path: Path, rng: random.Random
) -> None:
    samples = [sample for name, sample in SAMPLES.items() if name != "longer than the limit"]
    write(tmp_path / "training.jsonl", samples)
    kwargs = {} if answer_only_loss else {"answer_only_loss": False}
    made = []
    draw = rng.getrandbits(32)
    for patched in (False, True):
        np.random.seed(draw)
        sequences = packed(version, patched, tmp_path, 1, **kwargs)
        files = [(tmp_path / name).read_bytes() for name in ("training_64.npy", "metadata.jsonl")]
        made.append((sequences, files))
    assert made[0] == made[1]


# --- states


@pytest.mark.parametrize("version", VERSIONS[::2])
def test_needed_then_applied(version: str, tmp_path: Path) -> None:
    states.check_needed_then_applied("nemo/prepad", version, tmp_path)


def test_releases_beyond_the_range_are_left_alone(tmp_path: Path) -> None:
    states.check_elsewhere("nemo/prepad", "2.7.3", tmp_path)


def test_a_release_that_prepads_by_itself_is_left_alone(tmp_path: Path) -> None:
    old = "    return np.array([dataset[i] for i in range(len(dataset))])\n"
    file, new = f"{DATA}/packed_sequence.py", f"    dataset = pre_pad_dataset(dataset)\n{old}"
    found = states.replaced("nemo/prepad", "2.7.3", tmp_path, file, old, new)
    assert found.state is State.FIXED_UPSTREAM

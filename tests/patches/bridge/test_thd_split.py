"""`thd-split` before 0.3: the real steps, given the batches of the real packed data set, on every rank."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.patches.bridge.before_03 import (
    ALL,
    RELEASES,
    VERSIONS,
    Bridge,
    bridge,
    chunks,
    packed_batches,
    packing_config,
)
from tests.patches.bridge.real_code import thd_get_partitioned_indices

METADATA = ("cu_seqlens", "cu_seqlens_argmin", "max_seqlen")
NAMES = ("tokens", "labels", "loss_mask", "attention_mask", "position_ids", *METADATA)
PER_TOKEN = ("tokens", "labels", "loss_mask", "position_ids")


def step(found: Bridge, batch: dict[str, Any], cfg: Any = None) -> dict[str, Any]:
    """What the real get_batch of gpt_step makes of a batch."""
    values = found.gpt_step.get_batch(iter([batch]), cfg or packing_config(found))
    return dict(zip(NAMES, values, strict=True))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("cp", [2, 3, 4])
@pytest.mark.parametrize("pad_cu_seqlens", [False, True])
def test_every_token_goes_to_one_rank(
    version: str, cp: int, pad_cu_seqlens: bool, tmp_path: Path, draw: random.Random
) -> None:
    with bridge(version, ALL, cp=cp) as found:
        for batch in packed_batches(found, tmp_path, draw, 12 * cp * 4, pad_cu_seqlens):
            bounds = batch["cu_seqlens"][0][: int(batch["cu_seqlens_argmin"])].tolist()
            lengths = [end - start for start, end in pairwise(bounds)]
            for rank in range(cp):
                found.parallel.rank = rank
                before = found.index_calls
                mine = step(found, batch)
                assert found.index_calls == before + 1
                for key in PER_TOKEN:
                    assert mine[key].tolist() == batch[key][:, chunks(lengths, cp, rank)].tolist()
                for key in METADATA:
                    assert mine[key].tolist() == batch[key].tolist()


@pytest.mark.parametrize("version", VERSIONS)
def test_unpatched_it_crashes_or_permutes(version: str, tmp_path: Path, draw: random.Random) -> None:
    with bridge(version, ("prepad",), cp=2) as found:
        batch = packed_batches(found, tmp_path, draw, 96)[0]
        batch.pop("attention_mask")
        # a length of cu_seqlens that happens to be divisible
        batch["cu_seqlens"] = torch.tensor([[0, 4, 12, 24, 40, 60, 96, -1]], dtype=torch.int32)
        batch["cu_seqlens_argmin"] = batch["max_seqlen"] = None
        batch["attention_mask"] = None
        wrong = step(found, batch)
        assert wrong["cu_seqlens"].tolist() == [[0, 4, 96, -1]]
        batch["cu_seqlens"] = batch["cu_seqlens"][:, 1:]
        with pytest.raises(RuntimeError, match="is invalid for input of size 7"):
            step(found, batch)


@pytest.mark.parametrize("version", VERSIONS)
def test_other_batches_are_sliced_as_before(version: str, draw: random.Random) -> None:
    plain = {key: torch.tensor([[draw.randint(10, 99) for _ in range(48)]]) for key in PER_TOKEN}
    plain["attention_mask"] = torch.rand(1, 1, 48, 48)
    results = []
    for patches in (ALL, ()):
        for cp, rank in ((1, 0), (2, 0), (2, 1), (4, 3)):
            with bridge(version, patches, cp=cp, rank=rank) as found:
                for metadata in ({}, {"cu_seqlens": None, "cu_seqlens_argmin": None, "max_seqlen": None}):
                    made = step(found, {**plain, **metadata})
                    results.append({k: v if v is None else v.tolist() for k, v in made.items()})
    half = len(results) // 2
    assert results[:half] == results[half:]


@pytest.mark.parametrize("version", VERSIONS)
def test_without_context_parallelism_packs_go_whole(
    version: str, tmp_path: Path, draw: random.Random
) -> None:
    results = []
    number = draw.randint(0, 1 << 30)
    for patches in (ALL, ()):
        with bridge(version, patches) as found:
            found.packing_utils.np.random.seed(number % (1 << 32))
            for batch in packed_batches(found, tmp_path, random.Random(number), 96):
                batch["cu_seqlens"][0, 1] += 1  # whatever the lengths
                made = step(found, batch)
                results.append({k: v if v is None else v.tolist() for k, v in made.items()})
    half = len(results) // 2
    assert results[:half] == results[half:]
    assert results[0]["cu_seqlens"] is not None


def broken(batch: dict[str, Any]) -> dict[str, tuple[dict[str, Any], str]]:
    """Batches that can't be split over two ranks, and what is to be said of them."""
    end = batch["tokens"].shape[1]
    several = {key: batch[key].repeat(2, 1) for key in (*PER_TOKEN, *METADATA)}

    def entries(*bounds: int, **others: Any) -> dict[str, Any]:
        cu_seqlens = torch.tensor([bounds], dtype=torch.int32)
        argmin = torch.tensor([[list(bounds).index(-1)]]) if -1 in bounds else None
        return {**batch, "cu_seqlens": cu_seqlens, "cu_seqlens_argmin": argmin, **others}

    half = {key: batch[key][:, : end // 2] for key in PER_TOKEN}
    return {
        "not divisible": (entries(0, 6, 12, end, -1), r"pad_seq_to_mult.*packed_sequence_size"),
        "which": (entries(0, 6, 12, end, -1), r"2 of 3 packed sequences, the first ones \[6, 6\]"),
        "two packs": (several, "micro_batch_size=1"),
        "rows of tokens": ({**batch, "tokens": batch["tokens"].repeat(2, 1)}, "micro_batch_size=1"),
        "split already": ({**batch, **half}, "already split"),
        "tokens left over": (
            entries(0, 8, end - 4, -1),
            f"tokens has {end} tokens, but cu_seqlens ends at {end - 4}",
        ),
        "falling": (entries(0, 12, 8, end, -1), "must rise from 0"),
        "no start": (entries(4, 12, end, -1), "must rise from 0"),
        "empty": (entries(0, -1), "must rise from 0"),
        "argmin": (entries(0, 8, end, -1, cu_seqlens_argmin=torch.tensor([[2]])), "cu_seqlens_argmin=2"),
        "-1 kept": (entries(0, 8, end, -1, -1, cu_seqlens_argmin=torch.tensor([[4]])), "cu_seqlens_argmin=4"),
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_every_rank_refuses_what_cannot_be_split(version: str, tmp_path: Path, draw: random.Random) -> None:
    with bridge(version, ALL, cp=2) as found:
        good = packed_batches(found, tmp_path, draw, 96)[0]
        for batch, message in broken(good).values():
            for found.parallel.stage in ("first", "middle", "last", "only"):
                for found.parallel.rank in (0, 1):
                    with pytest.raises(ValueError, match=message):
                        step(found, batch)
                    step(found, good)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_sequence_parallelism_asks_for(version: str, draw: random.Random) -> None:
    bounds = torch.tensor([[0, 8, 20, -1]], dtype=torch.int32)
    batch = {key: torch.zeros(1, 20, dtype=torch.long) for key in PER_TOKEN}
    batch |= {"attention_mask": torch.ones(1), "cu_seqlens": bounds, "max_seqlen": torch.tensor([[12]])}
    batch["cu_seqlens_argmin"] = torch.tensor([[3]])
    for sequence_parallel in (True, False):
        model = SimpleNamespace(sequence_parallel=sequence_parallel, tensor_model_parallel_size=4)
        with bridge(version, ALL, cp=2) as found:
            cfg = packing_config(found, model=model)
            if sequence_parallel:
                with pytest.raises(
                    ValueError, match=r"10 tokens on each .* packed_sequence_size to a multiple of 8"
                ):
                    step(found, batch, cfg)
            else:
                assert step(found, batch, cfg)["tokens"].shape == (1, 10)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("sentinels", [0, 1, 2, 64])
@pytest.mark.parametrize("has_argmin", [True, False])
def test_no_end_marker_reaches_the_kernel(
    version: str, sentinels: int, has_argmin: bool, draw: random.Random
) -> None:
    lengths = [4 * draw.randint(1, 9) for _ in range(draw.randint(1, 9))]
    ends = torch.tensor([0, *lengths]).cumsum(0)
    cu_seqlens = torch.cat([ends, torch.full((sentinels,), -1)]).int()
    batch = {key: torch.arange(sum(lengths))[None] for key in PER_TOKEN}
    batch |= {"attention_mask": torch.ones(1), "max_seqlen": torch.tensor([[max(lengths)]])}
    batch["cu_seqlens"] = cu_seqlens[None]
    if has_argmin:
        batch["cu_seqlens_argmin"] = torch.argmin(batch["cu_seqlens"], dim=1, keepdim=True)
    with bridge(version, ALL, cp=2) as found:
        for rank in (0, 1):
            found.parallel.rank = rank
            made = step(found, dict(batch))
            assert made["tokens"][0].tolist() == chunks(lengths, 2, rank)
            params = found.gpt_step.get_packed_seq_params({key: made[key] for key in METADATA})
            assert params.cu_seqlens_q.tolist() == ends.tolist()
    assert ("cu_seqlens_argmin" in batch) == has_argmin  # the caller's stays as it was


@pytest.mark.parametrize("version", VERSIONS)
def test_two_packs_of_one_size(version: str, draw: random.Random) -> None:
    """An index that is kept from one batch to the next is wrong for the second."""
    with bridge(version, ALL, cp=2, rank=1) as found:
        for lengths in ([8, 16, 40], [40, 16, 8], [64], [4] * 16):
            bounds = torch.tensor([[*torch.tensor([0, *lengths]).cumsum(0).tolist(), -1]], dtype=torch.int32)
            batch = {key: torch.arange(64)[None] for key in PER_TOKEN}
            batch |= {
                "attention_mask": torch.ones(1),
                "cu_seqlens": bounds,
                "max_seqlen": torch.tensor([[64]]),
            }
            batch["cu_seqlens_argmin"] = torch.tensor([[len(lengths) + 1]])
            assert step(found, batch)["tokens"][0].tolist() == chunks(lengths, 2, 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_without_transformer_engine(version: str, tmp_path: Path, draw: random.Random) -> None:
    with bridge(version, ALL, cp=2) as found:
        batch = packed_batches(found, tmp_path, draw, 96)[0]
        found.has_transformer_engine = False
        with pytest.raises(RuntimeError, match="need Transformer Engine"):
            step(found, batch)


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("cp", [2, 4])
def test_vlm_step(version: str, cp: int, tmp_path: Path, draw: random.Random) -> None:
    size = 16 * cp * 3  # no multiple of 128: the step would fill it up
    with bridge(version, ALL, cp=cp) as found:
        cfg = packing_config(found, model=SimpleNamespace(seq_length=size, pipeline_model_parallel_size=1))
        for batch in packed_batches(found, tmp_path, draw, size):
            bounds = batch["cu_seqlens"][0][: int(batch["cu_seqlens_argmin"])].tolist()
            lengths = [end - start for start, end in pairwise(bounds)]
            for rank in range(cp):
                found.parallel.rank = rank
                *values, visual = found.vlm_step.get_batch(iter([{**batch, "visual_inputs": None}]), cfg)
                made = dict(zip(NAMES, values, strict=True))
                for key in PER_TOKEN:
                    assert made[key].tolist() == batch[key][:, chunks(lengths, cp, rank)].tolist()
                assert [made[key].tolist() for key in METADATA] == [batch[key].tolist() for key in METADATA]
                assert visual is None
        bad = {key: torch.zeros(1, size, dtype=torch.long) for key in PER_TOKEN}
        bad |= {"cu_seqlens": torch.tensor([[0, 6, size, -1]]), "max_seqlen": torch.tensor([[size]])}
        with pytest.raises(ValueError, match="pad_seq_to_mult"):
            found.vlm_step.get_batch(iter([bad]), cfg)
    with bridge(version, ("prepad",), cp=cp) as found:  # silently: filled up, longer than cu_seqlens says
        values = found.vlm_step.get_batch(iter([{**batch, "visual_inputs": None}]), cfg)
        assert values[0].shape[1] * cp > bounds[-1]


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("cp", [2, 4])
def test_llava_step(version: str, cp: int, tmp_path: Path, draw: random.Random) -> None:
    with bridge(version, ALL, cp=cp) as found:
        batch = packed_batches(found, tmp_path, draw, 96 * cp)[0]
        batch["input_ids"] = batch.pop("tokens")
        batch |= {"pixel_values": torch.rand(3, 3, 4, 4), "num_patches": torch.tensor([1, 2])}
        bounds = batch["cu_seqlens"][0][: int(batch["cu_seqlens_argmin"])].tolist()
        lengths = [end - start for start, end in pairwise(bounds)]
        for rank in range(cp):
            found.parallel.rank = rank
            images, patches, *values = found.llava_step.get_batch(iter([dict(batch)]), packing_config(found))
            assert images.tolist() == batch["pixel_values"].tolist()
            assert patches.tolist() == [1, 2]
            made = dict(zip(NAMES, values, strict=True))
            for key in PER_TOKEN:
                source = batch["input_ids" if key == "tokens" else key]
                assert made[key].tolist() == source[:, chunks(lengths, cp, rank)].tolist()
            assert [made[key].tolist() for key in METADATA] == [batch[key].tolist() for key in METADATA]
    with bridge(version, ("prepad",), cp=cp) as found, pytest.raises((RuntimeError, IndexError)):
        found.llava_step.get_batch(iter([dict(batch)]), packing_config(found))


def test_the_stand_in_for_the_index_kernel(draw: random.Random) -> None:
    """It agrees with the plain statement of the rule."""
    for cp in (2, 3, 4, 8):
        lengths = [2 * cp * draw.randint(0, 5) for _ in range(draw.randint(1, 9))] + [2 * cp]
        ends = torch.tensor([0, *lengths]).cumsum(0)
        for rank in range(cp):
            found = thd_get_partitioned_indices(ends, sum(lengths), cp, rank).tolist()
            assert found == chunks(lengths, cp, rank)

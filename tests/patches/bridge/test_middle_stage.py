"""`pipeline-metadata` from 0.3 on: the real `get_batch` of gpt_step and llava_step on every stage."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.patches.bridge.conftest import Index
from tests.patches.bridge.real_code import GPT_STEP, LLAVA_STEP, groups, load, step_stand_ins

PATCH = ("pipeline-metadata",)
PACKED = SimpleNamespace(packed_sequence_specs=SimpleNamespace(packed_sequence_size=64))
LLAVA = ("0.3.0", "0.4.2", "0.5.0", "0.5.1")


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self, **_: self)


def pack(draw: random.Random, tokens: str = "tokens") -> dict[str, Any]:
    lengths = [4 * draw.randint(1, 9) for _ in range(draw.randint(1, 5))]
    ends = torch.tensor([0, *lengths]).cumsum(0).tolist()
    batch = {key: torch.arange(ends[-1])[None] for key in (tokens, "labels", "loss_mask", "position_ids")}
    return batch | {
        "attention_mask": torch.LongTensor([1]),
        "cu_seqlens": torch.tensor([[*ends, -1]]).int(),
        "cu_seqlens_argmin": torch.tensor([[len(ends)]]),
        "max_seqlen": torch.tensor([[max(lengths)]]),
    }


def run(
    version: str, file: str, patches: tuple[str, ...], dataset: Any, batches: Iterator[Any], **of: Any
) -> Any:
    step = load(version, file, patches, **step_stand_ins())
    cfg = SimpleNamespace(dataset=dataset, model=None)
    return step.get_batch(batches, cfg, pg_collection=groups(**of))


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "0.4.0", "0.4.1", "0.4.2"])
@pytest.mark.parametrize("cp", [1, 2])
def test_gpt_stages(version: str, cp: int, index: Index, draw: random.Random) -> None:
    batch = pack(draw)
    for stage in ("first", "middle", "last", "only"):
        found = run(version, GPT_STEP, PATCH, PACKED, iter([batch]), cp=cp, stage=stage)
        tokens, labels, loss_mask, _, position_ids, *metadata = found
        assert (tokens is None) == (position_ids is None) == (stage in ("middle", "last"))
        assert (labels is None) == (loss_mask is None) == (stage in ("middle", "first"))
        expected = [batch[key] for key in ("cu_seqlens", "cu_seqlens_argmin", "max_seqlen")]
        assert all(torch.equal(given, want) for given, want in zip(metadata, expected, strict=False))
    middle = run(version, GPT_STEP, (), PACKED, iter([batch]), cp=cp, stage="middle")
    assert middle == (None,) * 10


@pytest.mark.parametrize("version", ["0.3.0", "0.4.2"])
@pytest.mark.parametrize(
    "dataset",
    [
        SimpleNamespace(),
        SimpleNamespace(packed_sequence_specs=None),
        SimpleNamespace(packed_sequence_specs=SimpleNamespace(packed_sequence_size=-1)),
        SimpleNamespace(pack_sequences_in_batch=False),
    ],
)
def test_a_middle_stage_without_packing_reads_nothing(version: str, dataset: Any) -> None:
    batches = iter([{"tokens": None}])
    assert run(version, GPT_STEP, PATCH, dataset, batches, stage="middle") == (None,) * 10
    assert len(list(batches)) == 1


@pytest.mark.parametrize("version", ["0.3.0", "0.4.2"])
def test_packs_made_in_the_batch_count(version: str, draw: random.Random) -> None:
    dataset = SimpleNamespace(packed_sequence_specs=None, pack_sequences_in_batch=True)
    assert run(version, GPT_STEP, PATCH, dataset, iter([pack(draw)]), stage="middle")[5] is not None


@pytest.mark.parametrize("version", ["0.3.0", "0.4.2"])
def test_a_data_set_with_a_loader_of_its_own_may_be_packed(version: str, draw: random.Random) -> None:
    dataset = SimpleNamespace(build_datasets=None)
    assert run(version, GPT_STEP, PATCH, dataset, iter([pack(draw)]), stage="middle")[5] is not None
    step = load(version, GPT_STEP, PATCH, **step_stand_ins())
    cfg = SimpleNamespace(dataset=dataset)
    assert step.get_batch(None, cfg, pg_collection=groups(stage="middle")) == (None,) * 10


@pytest.mark.parametrize("version", ["0.5.0", "0.5.1"])
def test_upstream_reads_metadata_in_gpt_step_from_0_5(version: str, draw: random.Random) -> None:
    assert run(version, GPT_STEP, (), PACKED, iter([pack(draw)]), stage="middle")[5] is not None


@pytest.mark.parametrize("version", LLAVA)
def test_llava_stages(version: str, draw: random.Random) -> None:
    batch = pack(draw, "input_ids") | {"pixel_values": torch.ones(1), "num_patches": torch.ones(1)}
    metadata = [batch[key] for key in ("cu_seqlens", "cu_seqlens_argmin", "max_seqlen")]
    for stage in ("first", "middle", "last", "only"):
        found = run(version, LLAVA_STEP, PATCH, PACKED, iter([batch | {"tokens": None}]), stage=stage)
        assert all(torch.equal(given, want) for given, want in zip(found[7:], metadata, strict=True))
        assert (found[2] is not None) == (stage in ("first", "only"))
        assert (found[3] is not None) == (stage in ("last", "only"))
    assert run(version, LLAVA_STEP, (), PACKED, iter([batch]), stage="middle") == (None,) * 10
    with pytest.raises(AssertionError, match="must be present"):
        run(version, LLAVA_STEP, (), PACKED, iter([batch]), stage="last")
    del batch["input_ids"]
    with pytest.raises(AssertionError, match="must be present"):
        run(version, LLAVA_STEP, PATCH, PACKED, iter([batch]), stage="first")


@pytest.mark.parametrize("version", ["0.5.0", "0.5.1"])
def test_llava_middle_stage_of_a_hybrid_model(version: str, draw: random.Random) -> None:
    batch = pack(draw, "input_ids")
    given: list[dict[str, Any]] = []

    class Timer:
        def start(self) -> None: ...
        def stop(self) -> None: ...

    class Straggler:
        def __call__(self, **_: Any) -> Straggler:
            return self

        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    config = SimpleNamespace(is_hybrid_model=True, seq_length=64)
    run_state = SimpleNamespace(check_for_nan_in_loss=False, check_for_spiky_loss=False)
    state = SimpleNamespace(
        timers=lambda *_, **__: Timer(),
        straggler_timer=Straggler(),
        cfg=SimpleNamespace(dataset=PACKED, rerun_state_machine=run_state),
    )

    def forward(patches: tuple[str, ...]) -> None:
        step = load(
            version,
            LLAVA_STEP,
            patches,
            **step_stand_ins(),
            get_model_config=lambda _: config,
            get_pg_collection=lambda _: groups(stage="middle"),
            get_packed_seq_params=given.append,
        )
        step.forward_step(state, iter([batch]), lambda **_: None)

    forward(PATCH)
    assert given[0]["total_tokens"] == 64
    forward(())
    assert len(given) == 1  # no parameters at all: the documents of a pack attend to each other


def test_llava_refuses_packs_on_several_stages_from_0_6() -> None:
    step = load("0.6.2", LLAVA_STEP, **step_stand_ins(), get_pg_size=lambda group: group.size())
    collection = groups(stage="first")
    collection.pp._size = 2
    batch = {"tokens": torch.ones(1, 8), "cu_seqlens": torch.tensor([0, 8]), "cu_seqlens_argmin": None}
    with pytest.raises(ValueError, match="pipeline_model_parallel_size=1"):
        step.get_batch(
            iter([batch | {"max_seqlen": None}]), SimpleNamespace(dataset=None), pg_collection=collection
        )

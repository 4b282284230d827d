"""`check-multiple`: the real step and loaders refuse packs that context parallelism cannot split."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.patches.bridge.conftest import Index
from tests.patches.bridge.real_code import (
    BEFORE_06,
    GPT_STEP,
    LLAVA_STEP,
    LOADERS,
    SHAPES,
    groups,
    is_06,
    load,
    pack,
    packed_dataset,
    step_stand_ins,
)

CHECK = "check-multiple"


def patches_of(version: str) -> tuple[str, ...]:
    """With what it requires."""
    return (CHECK, "pipeline-metadata") if version < "0.5" else (CHECK,)


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self, **_: self)


def config(version: str, multiple: int | None = 1, cp: int = 2, **model: Any) -> SimpleNamespace:
    specs = SimpleNamespace(packed_sequence_size=256, pad_seq_to_mult=multiple)
    specs.packed_train_data_path, specs.packed_val_data_path = "mine/train.npy", None
    name = "offline_packing_specs" if is_06(version) else "packed_sequence_specs"
    dataset = SimpleNamespace(**{name: specs}, enable_offline_packing=True)
    return SimpleNamespace(dataset=dataset, model=SimpleNamespace(context_parallel_size=cp, **model))


def cp_index(cu_seqlens: torch.Tensor, *, total_tokens: int, **_: Any) -> torch.Tensor:
    """Of 0.6: which part it is doesn't matter here."""
    return torch.arange(total_tokens // 2)


def get_batch(version: str, patches: tuple[str, ...], batch: Any, cfg: Any, **of: Any) -> Any:
    step = load(version, GPT_STEP, patches, **step_stand_ins(), get_thd_cp_partition_indices=cp_index)
    return step.get_batch(iter([dict(batch)]), cfg, pg_collection=groups(**of))


def collated(version: str, patches: tuple[str, ...], path: Path, rows: list[Any], **options: Any) -> Any:
    dataset = packed_dataset(version, patches, path, rows, 256, **options)
    return dataset.collate_fn([dataset[at] for at in range(len(rows))])


@pytest.mark.parametrize("version", SHAPES)
@pytest.mark.parametrize("stage", ["first", "middle", "last", "only"])
def test_every_stage_refuses_the_pack(version: str, stage: str, index: Index, tmp_path: Path) -> None:
    rows = [pack([[7] * 9, [7] * 6, [7] * 13, [7] * 8])]  # 8, 5, 12 and 7 tokens
    patches = patches_of(version)
    batch = collated(version, patches, tmp_path / "mine.npy", rows)
    with pytest.raises(ValueError, match="multiple of 4") as error:
        get_batch(version, patches, batch, config(version), cp=2, stage=stage)
    message = str(error.value)
    assert str(tmp_path / "mine.npy") in message
    assert "5 (sequence 1), 7 (sequence 3)" in message
    assert "pad_seq_to_mult (now 1)" in message
    assert "context_parallel_size=2" in message
    get_batch(version, (), batch, config(version), cp=2, stage="first")  # silently wrong


@pytest.mark.parametrize("version", SHAPES)
@pytest.mark.parametrize("stage", ["first", "middle", "last", "only"])
def test_without_context_parallelism_every_pack_is_valid(version: str, stage: str, tmp_path: Path) -> None:
    rows = [pack([[7] * 9, [7] * 6, [7] * 3])]
    batch = collated(version, (), tmp_path / "p.npy", rows)
    ours = get_batch(version, patches_of(version), batch, config(version), stage=stage)
    needed = () if version >= "0.5" else ("pipeline-metadata",)
    theirs = get_batch(version, needed, batch, config(version), stage=stage)
    for mine, other in zip(ours[:5], theirs[:5], strict=True):
        assert (mine is None) == (other is None)
        assert mine is None or torch.equal(mine, other)


@pytest.mark.parametrize("version", SHAPES)
@pytest.mark.parametrize("cp", [2, 3])
def test_packs_that_fit_pass_with_sentinels_and_empty_sequences(
    version: str, cp: int, index: Index, tmp_path: Path, draw: random.Random
) -> None:
    """Rows of one batch differ in their number of sequences: the shorter ones end in -1 or in empty ones."""
    rows = [
        pack([[7] * (2 * cp * draw.randint(1, 4) + 1) for _ in range(draw.randint(1, 9))]) for _ in range(4)
    ]
    batch = collated(version, patches_of(version), tmp_path / "p.npy", rows, pad_to_max_length=True)
    if 256 % (2 * cp):
        with pytest.raises(ValueError, match="packed_sequence_size must be a multiple of 6"):
            get_batch(version, patches_of(version), first(batch), config(version), cp=cp)
    else:
        get_batch(version, patches_of(version), first(batch), config(version), cp=cp)


def first(batch: dict[str, Any]) -> dict[str, Any]:
    return {key: value[:1] if isinstance(value, torch.Tensor) else value for key, value in batch.items()}


@pytest.mark.parametrize("version", SHAPES)
def test_batches_of_other_data_sets(version: str, index: Index) -> None:
    """They name no file: the configured ones are named. From 0.6 on both spellings are read."""
    names = [("cu_seqlens", "cu_seqlens")]
    names += (
        [("cu_seqlens_q", "cu_seqlens_q"), ("cu_seqlens_q_padded", "cu_seqlens_q")] if is_06(version) else []
    )
    for name, other in names:
        for ends in ([0, 4, 9, 12], [[0, 4, 9, 12, -1, -1]], [[0, 8, 4, 12]]):
            batch = {
                "tokens": torch.ones(1, 12),
                other: torch.tensor([[0, 4, 8, 12]]),
                name: torch.tensor(ends),
            }
            with pytest.raises(ValueError, match=r"mine/train\.npy"):
                get_batch(version, patches_of(version), batch, config(version), cp=2)
    short = {"tokens": torch.ones(1, 16), "cu_seqlens": torch.tensor([[0, 4, 12, -1]])}
    with pytest.raises(ValueError, match=r"\[12\], but the pack holds 16 tokens"):
        get_batch(version, patches_of(version), short, config(version), cp=2)
    late = {"tokens": torch.ones(1, 12), "cu_seqlens": torch.tensor([[4, 8, 12, -1]])}
    with pytest.raises(ValueError, match=r"from \[4\] to \[12\]"):
        get_batch(version, patches_of(version), late, config(version), cp=2)
    whole = {"tokens": torch.ones(1, 16), "labels": None, "loss_mask": None, "position_ids": None}
    assert get_batch(version, patches_of(version), whole, config(version), cp=2)[0].shape == (1, 16)


@pytest.mark.parametrize("version", SHAPES)
def test_sequence_parallel_ranks_share_the_pack_too(version: str, index: Index) -> None:
    batch: dict[str, Any] = {"tokens": torch.ones(1, 12), "cu_seqlens": torch.tensor([[0, 4, 12, -1]])}
    batch |= {"labels": None, "loss_mask": None, "position_ids": None}
    cfg = config(version, tensor_model_parallel_size=4, sequence_parallel=True)
    with pytest.raises(ValueError, match="packed_sequence_size a multiple of 8"):
        get_batch(version, patches_of(version), batch, cfg, cp=2)
    cfg.model.sequence_parallel = False
    index_given = {**batch, "cu_seqlens_argmin": torch.tensor([[3]])}
    assert get_batch(version, patches_of(version), index_given, cfg, cp=2)[0].shape == (1, 6)


@pytest.mark.parametrize("version", BEFORE_06)
@pytest.mark.parametrize("stage", ["first", "middle", "last"])
def test_llava_refuses_packs_with_context_parallelism(version: str, stage: str) -> None:
    cfg = SimpleNamespace(dataset=SimpleNamespace(pack_sequences_in_batch=True))
    both = (CHECK, "pipeline-metadata")
    step = load(version, LLAVA_STEP, both, **step_stand_ins())
    sizes = {
        key: torch.ones(1, 8) for key in ("input_ids", "labels", "loss_mask", "pixel_values", "num_patches")
    }
    batch = {**sizes, "cu_seqlens": torch.tensor([[0, 4, 8, -1]]), "tokens": None, "position_ids": None}
    batch |= {"attention_mask": None, "cu_seqlens_argmin": None, "max_seqlen": None}
    with pytest.raises(ValueError, match="over 2 context parallel ranks"):
        step.get_batch(iter([batch]), cfg, pg_collection=groups(cp=2, stage=stage))
    assert step.get_batch(iter([batch]), cfg, pg_collection=groups(stage=stage))[7] is not None
    unpacked = {**batch, "cu_seqlens": None}
    assert step.get_batch(iter([unpacked]), cfg, pg_collection=groups(cp=2, stage=stage))[7] is None


class Reached(Exception):
    """The loaders go on."""


class Train:
    """Training settings; the first one that is asked for behind the check says that it was passed."""

    num_epochs = train_samples = None
    train_iters = global_batch_size = eval_interval = eval_iters = 1

    @property
    def exit_signal(self) -> int:
        raise Reached


@pytest.fixture
def multimodal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Providers that the loaders of 0.4 on ask for and that are none of ours."""
    for name, provider in (
        ("models.mimo.mimo_provider", "MimoModelProvider"),
        ("data.megatron_mimo.base_provider", "MegatronMIMODatasetProvider"),
        ("models.megatron_mimo.megatron_mimo_provider", "MegatronMIMOProvider"),
    ):
        module = ModuleType(name)
        setattr(module, provider, type(provider, (), {}))
        monkeypatch.setitem(sys.modules, f"megatron.bridge.{name}", module)


def build(version: str, patches: tuple[str, ...], cfg: Any, datasets: tuple[Any, ...]) -> None:
    module = load(version, LOADERS, patches, print_rank_0=lambda _: None)
    module.build_train_valid_test_datasets = lambda **_: datasets
    cfg.train = cfg.validation = Train()
    cfg.dataset.dataloader_type, cfg.dataset.drop_last = "single", True
    module.build_train_valid_test_data_loaders(cfg, None, None, None)


@pytest.mark.usefixtures("multimodal")
@pytest.mark.parametrize("version", SHAPES)
@pytest.mark.parametrize("which", [0, 1])
def test_files_are_refused_before_training(version: str, which: int, tmp_path: Path) -> None:
    good = [pack([[7] * 9, [7] * 5])]
    bad = [*good, pack([[7] * 5, [7] * 4, [7] * 5])]
    files = [
        packed_dataset(version, (), tmp_path / f"{at}.npy", bad if at == which else good, 256)
        for at in (0, 1)
    ]
    with pytest.raises(ValueError, match=rf"{which}\.npy, pack 1: .* 3 \(sequence 1\)\. Set"):
        build(version, patches_of(version), config(version), (*files, None))
    with pytest.raises(Reached):
        build(version, (), config(version), (*files, None))
    with pytest.raises(Reached):
        build(version, patches_of(version), config(version, cp=1), (*files, None))
    files[which] = files[1 - which]
    with pytest.raises(Reached):
        build(version, patches_of(version), config(version), (*files, None))


@pytest.mark.parametrize("version", SHAPES)
def test_files_for_contiguous_parts_need_no_multiple(version: str, tmp_path: Path) -> None:
    module = load(version, LOADERS, patches_of(version))
    bad = packed_dataset(version, (), tmp_path / "p.npy", [pack([[7] * 9, [7] * 4])], 256)
    module._refuse_unfit_files(config(version, cp_partition_mode="contiguous"), (bad, None, None))
    with pytest.raises(ValueError, match=r"p\.npy, pack 0: .* 3 \(sequence 1\)"):
        module._refuse_unfit_files(config(version, cp_partition_mode="zigzag"), (bad, None, None))


@pytest.mark.parametrize("version", SHAPES)
def test_models_and_data_sets_without_the_usual_attributes(version: str, tmp_path: Path) -> None:
    """Upstream's own tests have them: a model without parallel sizes, a data set that was not loaded."""
    module = load(version, LOADERS, patches_of(version))
    bad = packed_dataset(version, patches_of(version), tmp_path / "p.npy", [pack([[7] * 9, [7] * 4])], 256)
    module._refuse_unfit_files(SimpleNamespace(model=object()), (bad, None, None))
    row = bad[0]
    del bad.file_path
    assert bad.collate_fn([row])["packed_data_file"] is None


class Column:
    """A column of lists in a Parquet file, as far as pyarrow's is used."""

    def __init__(self, lists: Any) -> None:
        self.lists = lists

    def to_pylist(self) -> Any:
        return self.lists

    def value_lengths(self) -> Column:
        return Column([len(values) for values in self.lists])


class Parquet:
    """A packed Parquet data set of two files with one row group each."""

    return_cu_seqlen, file_path = True, "shards/*.parquet"

    def __init__(self, *rows: dict[str, list[int]]) -> None:
        self._parquet_paths = [str(at) for at in range(len(rows))]
        self.rows, self.closed = rows, False

    def _ensure_reader(self, index: int) -> SimpleNamespace:
        row = self.rows[index]

        def iter_batches(columns: list[str]) -> list[SimpleNamespace]:
            return [SimpleNamespace(column={name: Column([row[name]]) for name in columns}.__getitem__)]

        return SimpleNamespace(iter_batches=iter_batches)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("version", ["0.4.2", "0.6.2"])
def test_parquet_files(version: str) -> None:
    module = load(version, LOADERS, patches_of(version))
    good, bad = pack([[7] * 9, [7] * 5]), pack([[7] * 9, [7] * 7])
    dataset = Parquet(good, bad)
    with pytest.raises(ValueError, match=r"shards/\*\.parquet, pack 1: .* 6 \(sequence 1\)"):
        module._refuse_unfit_files(config(version), (None, dataset))
    fine = Parquet(good, good)
    module._refuse_unfit_files(config(version), (fine,))
    assert fine.closed

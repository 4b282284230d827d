"""What stands between the gpu level and CUDA: as far as that goes without a GPU."""

from __future__ import annotations

import ast
import dataclasses
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from migrator.verify import accelerator
from migrator.verify.accelerator import Unready, count_syncs, cuda, enough_memory, parallel, pinned, unready
from migrator.verify.ranks import RankFailed, run_forked
from migrator.verify.stack import Batch
from migrator.verify.tiny_gpt import Layout
from tests.verify.emulated import emulated

pytestmark = pytest.mark.torch
RELEASES = ("0.12.0", "0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.2")


def test_asking_for_the_gpus_starts_none_and_can_be_sent_to_a_new_process() -> None:
    device = cuda()
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert pickle.loads(pickle.dumps(device)) == device


def test_a_device_that_does_not_start_is_unready(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nmore of it")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", refuse)
    with pytest.raises(Unready, match=r"^cuda:1: CUDA error: .* unavailable$"):
        cuda().start(3)


class Debug:
    """Torch's debug mode for synchronizations, and a device that two kinds of calls wait for."""

    mode: int | str = 0

    def set(self, mode: int | str) -> None:
        self.mode = mode
        if mode == "warn":
            warnings.warn("The mode does not yet detect all synchronizing operations", stacklevel=1)

    def get(self) -> int:
        return int(self.mode)

    def item(self) -> None:
        if self.mode == "warn":
            warnings.warn("called a synchronizing CUDA operation (Triggered internally at ...)", stacklevel=1)

    def call(self) -> None:
        self.item()
        self.item()
        warnings.warn("something else", stacklevel=1)


def test_every_synchronization_is_counted_even_from_one_place() -> None:
    debug = Debug()
    assert count_syncs(debug.call, debug.set, debug.get) == 2
    assert debug.mode == 0
    assert count_syncs(lambda: None, debug.set, debug.get) == 0


def test_the_debug_mode_is_set_back_after_an_error() -> None:
    debug = Debug()
    with pytest.raises(ZeroDivisionError):
        count_syncs(lambda: 1 / 0, debug.set, debug.get)
    assert debug.mode == 0


def test_a_pinned_batch_is_a_copy_and_all_of_its_tensors_are_pinned() -> None:
    seen: list[Tensor] = []

    def pin(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        return tensor

    batch: Batch = {"tokens": torch.arange(3), "cu_seqlens": torch.tensor([0, 3]), "token_count": [3]}
    copy = pinned(dataclasses.replace(emulated(), pin=pin), batch)
    assert copy["token_count"] == [3]
    assert [tensor.tolist() for tensor in seen] == [[0, 1, 2], [0, 3]]
    assert all(copy[key].data_ptr() != batch[key].data_ptr() for key in ("tokens", "cu_seqlens"))


def test_the_index_kernel_comes_with_the_libraries_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformer_engine_torch is an extension that only transformer_engine.pytorch finds and loads."""
    package = tmp_path / "transformer_engine" / "pytorch"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text(
        "import sys, types\nmodule = types.ModuleType('transformer_engine_torch')\n"
        "module.thd_get_partitioned_indices = lambda *arguments: arguments\n"
        "sys.modules['transformer_engine_torch'] = module\n"
    )
    for name in [name for name in sys.modules if name.startswith("transformer_engine")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ModuleNotFoundError, match="transformer_engine"):
        cuda().kernel()
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert cuda().kernel()(torch.zeros(1), 1, 2, 0) == (torch.zeros(1), 1, 2, 0)
    finally:
        for name in [name for name in sys.modules if name.startswith("transformer_engine")]:
            del sys.modules[name]


@pytest.mark.parametrize("version", RELEASES)
def test_each_release_has_the_attention_where_it_is_looked_for(
    upstream: Callable[[str, str], Path], version: str
) -> None:
    file = upstream("megatron-core", version) / "megatron/core/extensions/transformer_engine.py"
    classes = {
        node.name: node
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef) and node.name == "TEDotProductAttention"
    }
    methods = {
        node.name: {argument.arg for argument in node.args.args}
        for node in classes["TEDotProductAttention"].body
        if isinstance(node, ast.FunctionDef)
    }
    assert {"config", "layer_number", "attn_mask_type", "softmax_scale", "cp_comm_type"} <= methods[
        "__init__"
    ]
    assert {"query", "key", "value", "attention_mask", "packed_seq_params"} <= methods["forward"]


def joins_alone(store: Path, _: int) -> None:
    with parallel("no such backend", store, 0, Layout()):
        pass


def raises(error: Exception, _: int) -> None:
    raise error


def failure(work: Callable[[int], None]) -> RankFailed:
    with pytest.raises(RankFailed) as found:
        run_forked(1, work, 60)
    return found.value


def test_ranks_that_do_not_meet_are_unready(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("NCCL error: unhandled system error\nmore of it")

    monkeypatch.setattr(accelerator, "join", refuse)
    error = failure(lambda rank: joins_alone(Path("store"), rank))
    assert unready(error) == "no such backend over 1 ranks: NCCL error: unhandled system error"


def runs_out(_: int) -> None:
    with enough_memory():
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore of it")


def test_memory_that_is_taken_is_no_fault_of_the_stack() -> None:
    assert unready(failure(runs_out)) == "CUDA out of memory. Tried to allocate 2 GiB."


def test_any_other_error_is_the_stacks_own() -> None:
    assert unready(failure(lambda rank: raises(RuntimeError("CUDA error"), rank))) is None
    assert (
        unready(failure(lambda rank: raises(Unready("cuda:0: busy: retry"), rank))) == "cuda:0: busy: retry"
    )
    assert unready(RankFailed("2 ranks took longer than 1 s")) is None

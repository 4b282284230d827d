"""What the gpu level runs on: its devices, their collectives, clock, index kernel and attention.

All that needs CUDA, NCCL or Transformer Engine stands here, behind one dataclass: the tests put a CPU in its
place and run everything else.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from migrator.verify.fresh import run_fresh
from migrator.verify.ranks import RankFailed, join, last_line
from migrator.verify.stack import Batch
from migrator.verify.tiny_gpt import Layout, initialize

TIMEOUT_S = 120.0  # of a collective: the first rank to come may wait for another one's imports and packing
KERNEL = "transformer_engine_torch"
Call = Callable[[], object]
# (cu_seqlens, total, cp size, cp rank) -> positions, see `reference.partition_index`
Kernel = Callable[[Tensor, int, int, int], Tensor]


class Unready(Exception):
    """The device or its libraries don't serve: nothing was tried, so nothing can be said of the stack."""


@dataclass(frozen=True)
class Accelerator:
    """Functions that fresh ranks can be given, so each is a module's own."""

    count: int  # devices
    backend: str  # of collectives between ranks that have a device each
    dtype: torch.dtype  # that the attention takes
    start: Callable[[int], torch.device]  # make the device that rank `n` gets the current one
    put: Callable[[Tensor, torch.device], Tensor]  # a copy on the device
    holds: Callable[[Tensor], bool]  # does a tensor lie on a device?
    pin: Callable[[Tensor], Tensor]  # as data loaders hand out
    kernel: Callable[[], Kernel]  # raises where there is none
    attention: Callable[[], type[nn.Module]]  # what stands as core_attention
    milliseconds: Callable[[Call], float]  # that a call takes, on the device too
    syncs: Callable[[Call], int]  # how often a call waits for the device
    # (number of ranks, what each does, limit in seconds) -> results by rank
    run: Callable[[int, Callable[[int], Any], float], list[Any]]


def cuda() -> Accelerator:
    """The GPUs that torch sees; asking for them starts none."""
    return Accelerator(
        torch.cuda.device_count(),
        "nccl",
        torch.bfloat16,
        _cuda_device,
        Tensor.to,
        _on_cuda,
        Tensor.pin_memory,
        _index_kernel,
        _attention,
        _cuda_milliseconds,
        _cuda_syncs,
        run_fresh,
    )


def _cuda_device(rank: int) -> torch.device:
    device = torch.device("cuda", rank % torch.cuda.device_count())
    try:
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
    except RuntimeError as error:
        raise Unready(f"{device}: {error}".splitlines()[0]) from error
    return device


def _on_cuda(tensor: Tensor) -> bool:
    return tensor.is_cuda


def _index_kernel() -> Kernel:
    import_module("transformer_engine.pytorch")  # loads the libraries that the next one needs
    kernel: Kernel = import_module(KERNEL).thd_get_partitioned_indices
    return kernel


def _attention() -> type[nn.Module]:
    extension = import_module("megatron.core.extensions.transformer_engine")
    attention: type[nn.Module] = extension.TEDotProductAttention
    return attention


def _cuda_milliseconds(call: Call) -> float:
    make: Callable[..., Any] = torch.cuda.Event  # torch leaves it untyped
    start, end = make(enable_timing=True), make(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def _cuda_syncs(call: Call) -> int:
    return count_syncs(call, torch.cuda.set_sync_debug_mode, torch.cuda.get_sync_debug_mode)


def count_syncs(call: Call, set_mode: Callable[[int | str], None], get_mode: Callable[[], int]) -> int:
    """How often torch warns of a synchronization during `call`; the debug mode is as before afterwards."""
    before = get_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        set_mode("warn")
        try:
            call()
        finally:
            set_mode(before)
    # not "does not yet detect all synchronizing operations", which torch says once of the mode itself
    return sum("called a synchronizing" in str(warning.message) for warning in caught)


@contextmanager
def enough_memory() -> Iterator[None]:
    """Memory that others hold on the device is no fault of the stack. Raises Unready."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise Unready(f"{error}".splitlines()[0]) from error


def pinned(accelerator: Accelerator, batch: Batch) -> Batch:
    """A copy of a batch on the host, as a data loader with pinned memory hands it out."""
    return {
        key: accelerator.pin(value.clone()) if isinstance(value, Tensor) else value
        for key, value in batch.items()
    }


@contextmanager
def parallel(
    backend: str, store: Path, rank: int, layout: Layout, device: torch.device | None = None
) -> Iterator[Any]:
    """Megatron's `parallel_state` for `layout` on as many ranks; all is taken down at the end.

    store: the file in which they meet, another one each time. device: that this rank's collectives run on,
    None for the host. An error ends the rank, so nothing is taken down then: that might wait for the peers.
    """
    try:
        join(backend, store, rank, layout.world, TIMEOUT_S)
        dist.all_reduce(torch.zeros(1, device=device))  # connections are made by the first one
    except RuntimeError as error:  # torch's own errors of collectives are such
        raise Unready(f"{backend} over {layout.world} ranks: {error}".splitlines()[0]) from error
    state = initialize(layout, TIMEOUT_S)
    yield state
    state.destroy_model_parallel()
    dist.destroy_process_group()


def unready(error: RankFailed) -> str | None:
    """Why nothing was tried, None where something was."""
    name, _, why = last_line(error).partition(": ")
    return why if name.endswith(f".{Unready.__name__}") else None

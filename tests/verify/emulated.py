"""A CPU in a GPU's place: the gpu level's own functions, without CUDA, NCCL and Transformer Engine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from migrator.verify import stubs
from migrator.verify.accelerator import KERNEL, Accelerator, Call, Kernel
from migrator.verify.fresh import run_fresh
from migrator.verify.reference import kernel_index, partition_index
from migrator.verify.tiny_gpt import ReferenceAttention


class OnDevice(Tensor):
    """Lies in the same memory, but counts as a tensor on the device, and so does what is made of it."""

    def cpu(self, *_: object, **__: object) -> Tensor:
        """A copy on the host."""
        return self.as_subclass(Tensor).clone()


def to_device(tensor: Tensor, *_: object, **__: object) -> Tensor:
    """A copy on the device."""
    return tensor.as_subclass(Tensor).clone().as_subclass(OnDevice)


def on_device(tensor: Tensor) -> bool:
    """Was it moved there?"""
    return isinstance(tensor, OnDevice)


def start(_: int) -> torch.device:
    """Let code that names CUDA run on this device."""
    torch.set_num_threads(1)
    stubs.cpu_torch()
    stubs.cpu_kernel()
    setattr(torch.Tensor, "cuda", to_device)  # noqa: B010  # mypy
    setattr(sys.modules[KERNEL], "thd_get_partitioned_indices", kernel_on_device)  # noqa: B010
    return torch.device("cpu")


def same(tensor: Tensor) -> Tensor:
    """Memory that isn't pinned."""
    return tensor


def kernel_on_device(cu_seqlens: Tensor, total: int, cp_size: int, cp_rank: int) -> Tensor:
    """What Transformer Engine's kernel gives, for bad packs too; for good ones quickly."""
    try:
        return to_device(partition_index(cu_seqlens, total, cp_size, cp_rank))
    except ValueError:
        return to_device(kernel_index(cu_seqlens, total, cp_size, cp_rank))


def kernel() -> Kernel:
    """In the place of Transformer Engine's."""
    return kernel_on_device


class FlashLike(ReferenceAttention):
    """Rounds as fused kernels do: bf16 in and out, fp32 between."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        packed_seq_params: Any = None,
        **kwargs: object,
    ) -> Tensor:
        out = super().forward(
            query.float(), key.float(), value.float(), attention_mask, packed_seq_params, **kwargs
        )
        return out.to(query.dtype)


def attention() -> type[nn.Module]:
    """In the place of Transformer Engine's."""
    return FlashLike


def milliseconds(call: Call) -> float:
    """Of wall time."""
    begin = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - begin)


def no_syncs(call: Call) -> int:
    """A CPU waits for nothing."""
    call()
    return 0


def emulated(
    count: int = 2, run: Callable[[int, Callable[[int], Any], float], list[Any]] = run_fresh
) -> Accelerator:
    """As many devices as it is told."""
    return Accelerator(
        count,
        "gloo",
        torch.bfloat16,
        start,
        to_device,
        on_device,
        same,
        kernel,
        attention,
        milliseconds,
        no_syncs,
        run,
    )

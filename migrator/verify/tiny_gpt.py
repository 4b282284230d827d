"""The installed Megatron-Core's own GPTModel, small: in fp32 on the CPU, with the reference attention inside,
unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from migrator.verify import reference
from migrator.verify.ranks import COLLECTIVE_TIMEOUT_S

VOCAB = 96
MAX_LENGTH = 512


@dataclass(frozen=True)
class Layout:
    """How many ranks share a tensor and a sequence."""

    cp: int = 1
    tp: int = 1
    sequence_parallel: bool = False

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.cp * self.tp


@dataclass(frozen=True)
class Width:
    """Sizes of a layer."""

    hidden: int = 32
    heads: int = 8
    groups: int = 4  # of queries that share a key
    head: int = 8
    ffn: int = 64


class ReferenceAttention(nn.Module):
    """Stands where Transformer Engine's attention would: packed (thd) or not (sbhd), at any context parallel
    size.
    """

    def __init__(self, config: Any, *_: object, softmax_scale: float | None = None, **__: object) -> None:
        super().__init__()
        self.scale = softmax_scale or config.kv_channels**-0.5
        self.group: dist.ProcessGroup = import_module(
            "megatron.core.parallel_state"
        ).get_context_parallel_group()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        packed_seq_params: Any = None,
        **_: object,
    ) -> Tensor:
        """[t, h, d] to [t, h, d] where packed, else [s, b, h, d] to [s, b, h * d]; causal either way."""
        if packed_seq_params is not None:
            bounds, valid = packed_bounds(packed_seq_params)
            return reference.packed_attention(query, key, value, bounds, valid, self.scale, self.group)
        length = query.shape[0] * self.group.size()
        bounds = torch.tensor([0, length], dtype=torch.int32)
        rows = [
            reference.packed_attention(
                query[:, b], key[:, b], value[:, b], bounds, [length], self.scale, self.group
            )
            for b in range(query.shape[1])
        ]
        return torch.stack(rows, 1).flatten(2)


class ReferenceNorm(nn.Module):
    """RMS norm that may stand in the sequence parallel region; Megatron-Core's own CPU norm refuses to."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: object) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]  # Megatron's mark

    def forward(self, rows: Tensor) -> Tensor:
        """[..., hidden] to [..., hidden]."""
        wide = rows.float()  # squares of bf16 would be too coarse
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(
            rows.dtype
        ) * self.weight


def packed_bounds(params: Any) -> tuple[Tensor, list[int]]:
    """Interval bounds, int32 [n + 1], and the n lengths that count, from a PackedSeqParams.

    Raises ValueError where the parameters would mislead a kernel: sentinels, wrong dtype, lengths above
    max_seqlen.
    """
    actual = params.cu_seqlens_q
    padded = actual if params.cu_seqlens_q_padded is None else params.cu_seqlens_q_padded
    if params.qkv_format != "thd":
        raise ValueError(f"qkv_format is {params.qkv_format!r}, not 'thd'")
    for name, bounds in (("cu_seqlens_q", actual), ("cu_seqlens_q_padded", padded)):
        if bounds.dtype != torch.int32 or bounds.dim() != 1:
            raise ValueError(f"{name} is {bounds.dtype} of shape {list(bounds.shape)}, not one row of int32")
        if (
            bounds.numel() < 2
            or bounds.shape != padded.shape
            or min(reference.lengths(bounds), default=0) < 0
            or int(bounds[0]) != 0
        ):
            raise ValueError(f"{name} does not rise from 0 over the whole pack: {bounds.tolist()}")
    longest = max(reference.lengths(padded))
    for name in ("max_seqlen_q", "max_seqlen_kv"):
        if int(getattr(params, name)) < longest:
            raise ValueError(f"{name} is {int(getattr(params, name))}, the longest padded sequence {longest}")
    return padded, reference.lengths(actual)


def initialize(layout: Layout, timeout_s: float = COLLECTIVE_TIMEOUT_S) -> Any:
    """Megatron's process groups for `layout` on the ranks that run; returns `parallel_state`."""
    state = import_module("megatron.core.parallel_state")
    state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tp,
        context_parallel_size=layout.cp,
        distributed_timeout_minutes=timeout_s / 60,
    )
    # Forked CUDA generators are for dropout, and there is none.
    import_module("megatron.core.tensor_parallel").get_cuda_rng_tracker().fork = lambda *_: nullcontext()
    return state


def _layer_spec(attention: type[nn.Module]) -> Any:
    specs = import_module("megatron.core.models.gpt.gpt_layer_specs")
    layer = specs.get_gpt_layer_local_spec()
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = ReferenceNorm
    layer.submodules.self_attention.submodules.core_attention = attention
    return layer


def build(
    layout: Layout,
    width: Width = Width(),  # frozen
    attention: type[nn.Module] = ReferenceAttention,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """A two-layer GPTModel (grouped queries, RoPE, SwiGLU, RMSNorm) on the CPU, with the weights of `fill`.

    attention: what stands as `core_attention` in Megatron-Core's local layer. dtype: of all parameters.
    """
    config = import_module("megatron.core.transformer.transformer_config").TransformerConfig(
        num_layers=2,
        hidden_size=width.hidden,
        num_attention_heads=width.heads,
        num_query_groups=width.groups,
        kv_channels=width.head,
        ffn_hidden_size=width.ffn,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        tensor_model_parallel_size=layout.tp,
        context_parallel_size=layout.cp,
        sequence_parallel=layout.sequence_parallel,
        pipeline_dtype=dtype,
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
    )
    layer = _layer_spec(attention)
    block = import_module("megatron.core.transformer.transformer_block").TransformerBlockSubmodules
    model: nn.Module = import_module("megatron.core.models.gpt.gpt_model").GPTModel(
        config=config,
        transformer_layer_spec=block(layer_specs=[layer] * config.num_layers, layer_norm=ReferenceNorm),
        vocab_size=VOCAB,
        max_sequence_length=MAX_LENGTH,
        position_embedding_type="rope",
        parallel_output=True,
        share_embeddings_and_output_weights=False,
    )
    fill(model.to(dtype), layout, 0.2 * (Width.hidden / width.hidden) ** 0.5)
    return model


def _gated(name: str) -> bool:
    return name.endswith("linear_fc1.weight")  # gate and up projection, one above the other


def _shard(name: str, whole: Tensor, dim: int, layout: Layout, rank: int) -> Tensor:
    """Tensor parallel rank `rank`'s part of a parameter."""
    halves = whole.chunk(2, dim) if _gated(name) else (whole,)
    return torch.cat([half.chunk(layout.tp, dim)[rank] for half in halves], dim)


def fill(model: nn.Module, layout: Layout, scale: float = 0.2) -> None:
    """Set every parameter from its name and whole shape alone, so that all layouts hold the same model.

    scale: standard deviation of what is no norm.
    """
    rank = import_module("megatron.core.parallel_state").get_tensor_model_parallel_rank()
    for name, parameter in model.named_parameters():
        split = layout.tp > 1 and bool(getattr(parameter, "tensor_model_parallel", False))
        dim = int(getattr(parameter, "partition_dim", 0)) if split else 0
        shape = list(parameter.shape)
        shape[dim] *= layout.tp if split else 1
        generator = torch.Generator().manual_seed(sum(ord(c) * (i + 1) for i, c in enumerate(name)))
        noise = torch.randn(shape, generator=generator)
        whole = 1.0 + 0.2 * noise if len(shape) == 1 else scale * noise
        with torch.no_grad():
            parameter.copy_(_shard(name, whole, dim, layout, rank) if split else whole)


def whole_gradients(model: nn.Module, layout: Layout, state: Any) -> dict[str, Tensor]:
    """The gradient of every parameter, summed over context parallel ranks and put together over tensor
    parallel ones, in fp32.

    A parameter without a gradient counts as zero.
    """
    grads: dict[str, Tensor] = {}
    tensor_group = state.get_tensor_model_parallel_group()
    for name, parameter in model.named_parameters():
        own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        grad = own.float().contiguous().clone()
        dist.all_reduce(grad, group=state.get_context_parallel_group())
        if layout.tp > 1 and getattr(parameter, "tensor_model_parallel", False):
            parts = [torch.empty_like(grad) for _ in range(layout.tp)]
            dist.all_gather(parts, grad, group=tensor_group)
            dim = int(getattr(parameter, "partition_dim", 0))
            halves = (
                zip(*(part.chunk(2, dim) for part in parts), strict=True) if _gated(name) else [tuple(parts)]
            )
            grad = torch.cat([torch.cat(half, dim) for half in halves], dim)
        elif layout.tp > 1 and getattr(parameter, "sequence_parallel", False):
            dist.all_reduce(grad, group=tensor_group)
        grads[name] = grad
    return grads


def relative_error(got: Mapping[str, Tensor], want: Mapping[str, Tensor]) -> tuple[float, str]:
    """The largest `|got - want| / |want|` over all parameters, and the parameter that has it; NaN counts as
    infinite.
    """
    if got.keys() != want.keys():
        return float("inf"), "the parameters differ"
    worst, where = 0.0, ""
    for name, expected in want.items():
        error = float(
            (got[name].double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-30)
        )
        error = float("inf") if error != error else error
        if error >= worst:
            worst, where = error, name
    return worst, where

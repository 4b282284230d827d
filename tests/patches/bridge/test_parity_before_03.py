"""Before 0.3, all four patches: packed training has the loss and gradients of the samples one by one."""

from __future__ import annotations

import random
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.patches.bridge.before_03 import (
    ALL,
    VERSIONS,
    Bridge,
    Sample,
    bridge,
    builder,
    chunks,
    draw_samples,
    packing_config,
    write_samples,
)

WORDS = 120  # of them 20 are the samples' first ones
WIDTH = 6


def weights(seed: int) -> list[torch.Tensor]:
    """Embedding, query, key, value and head of a model with one attention layer, float64."""
    draw = torch.Generator().manual_seed(seed)
    shapes = [(WORDS, WIDTH), *[(WIDTH, WIDTH)] * 3, (WIDTH, WORDS)]
    return [torch.randn(s, generator=draw, dtype=torch.float64).requires_grad_() for s in shapes]


def losses(
    model: list[torch.Tensor], tokens: torch.Tensor, labels: torch.Tensor, bounds: list[int]
) -> torch.Tensor:
    """The loss of each token [n]; causal attention within the bounds, and a rotation by the place there."""
    embedding, query, key, value, head = model
    found = []
    for start, end in pairwise(bounds):
        angles = torch.arange(end - start, dtype=torch.float64)[:, None] * torch.tensor([0.5, 0.25, 0.125])
        turn = torch.polar(torch.ones_like(angles), angles)

        def turned(vectors: torch.Tensor, turn: torch.Tensor = turn) -> torch.Tensor:
            pairs = torch.view_as_complex(vectors.reshape(-1, WIDTH // 2, 2))
            return torch.view_as_real(pairs * turn).reshape(-1, WIDTH)

        hidden = embedding[tokens[start:end]]
        scores = turned(hidden @ query) @ turned(hidden @ key).T
        mask = torch.ones_like(scores).tril().bool()
        hidden = hidden + scores.masked_fill(~mask, -torch.inf).softmax(-1) @ (hidden @ value)
        found.append(torch.nn.functional.cross_entropy(hidden @ head, labels[start:end], reduction="none"))
    return torch.cat(found)


def one_by_one(model: list[torch.Tensor], samples: list[Sample]) -> torch.Tensor:
    """The summed loss of the samples, each by itself."""
    total = torch.zeros((), dtype=torch.float64)
    for sample in samples:
        tokens = torch.tensor(sample.tokens)
        each = losses(model, tokens[:-1], tokens[1:], [0, len(tokens) - 1])
        total = total + each[len(sample.context) - 1 :].sum()
    return total


def packed(found: Bridge, model: list[torch.Tensor], dataset: Any, cp: int) -> torch.Tensor:
    """The summed loss of the data set as `cp` ranks train on it, what attention joins being joined here."""
    cfg = packing_config(found)
    total = torch.zeros((), dtype=torch.float64)
    for at in range(len(dataset.indexed_dataset)):
        parts = []
        for found.parallel.rank in range(cp):
            batch = iter([dataset.collate_fn([dataset[at]])])
            tokens, labels, mask, _, places, cu_seqlens, argmin, longest = found.gpt_step.get_batch(
                batch, cfg
            )
            given = {"cu_seqlens": cu_seqlens, "cu_seqlens_argmin": argmin, "max_seqlen": longest}
            params = found.gpt_step.get_packed_seq_params(given)
            parts.append((tokens[0], labels[0], mask[0], places[0]))
        bounds = params.cu_seqlens_q_padded.tolist() if cp > 1 else params.cu_seqlens_q.tolist()
        lengths = [end - start for start, end in pairwise(bounds)]
        assert max(lengths) == int(params.max_seqlen_q)
        order = (
            [token for rank in range(cp) for token in chunks(lengths, cp, rank)]
            if cp > 1
            else range(bounds[-1])
        )
        back = torch.tensor(order).argsort()
        tokens, labels, mask, places = (torch.cat(part)[back] for part in zip(*parts, strict=True))
        each = losses(model, tokens, labels, bounds)
        total = total + (each * mask).sum()
        for start, end in pairwise(bounds[: len(dataset[at]["seq_boundaries"])]):
            assert places[start:end].tolist() == list(range(end - start))
    return total


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("cp", "pad_cu_seqlens"), [(1, False), (2, False), (2, True), (3, False), (4, True)])
def test_loss_and_gradients(
    version: str, cp: int, pad_cu_seqlens: bool, tmp_path: Path, draw: random.Random
) -> None:
    size = 48 * cp
    # to 0.2.0rc6 an inner EOS takes the target after it away, at CP=1
    samples = draw_samples(draw, 8, 40, inner_eos=cp > 1)
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    write_samples(folder, training=samples, validation=samples[:2])
    model, reference = weights(3), weights(3)
    expected = one_by_one(reference, samples)
    with bridge(version, ALL, cp=cp) as found:
        options = {"pad_to_max_length": True} if pad_cu_seqlens else None
        made = builder(found, folder, size, seq_length=48, options=options, pad_cu_seqlens=pad_cu_seqlens)
        dataset = made.build()[0]
        if pad_cu_seqlens:  # it is that of all packs
            found.gpt_step.get_packed_seq_params = _with_own_longest(found.gpt_step.get_packed_seq_params)
        loss = packed(found, model, dataset, cp)
    assert torch.allclose(loss, expected, rtol=1e-9)
    grads = torch.autograd.grad(loss, model), torch.autograd.grad(expected, reference)
    for ours, theirs in zip(*grads, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-7, atol=1e-9)


def _with_own_longest(build: Any) -> Any:
    def built(batch: dict[str, torch.Tensor]) -> Any:
        params = build(batch)
        own = int(params.cu_seqlens_q.diff().max())
        assert int(params.max_seqlen_q) >= own
        params.max_seqlen_q = own
        return params

    return built


@pytest.mark.parametrize("version", VERSIONS)
def test_a_pack_at_its_natural_lengths_is_no_such_thing(
    version: str, tmp_path: Path, draw: random.Random
) -> None:
    """Without `prepad` the others refuse; with the check taken out they would train on something else."""
    samples = draw_samples(draw, 12, 40)
    write_samples(tmp_path, training=samples, validation=samples[:2])
    with bridge(version, [p for p in ALL if p != "prepad"], cp=2) as found:
        dataset = builder(found, tmp_path, 96, seq_length=48).build()[0]
        packs = [at for at, pack in enumerate(dataset.indexed_dataset) if len(pack["seq_start_id"]) > 1]
        unfit = [
            at
            for at in packs
            if any((end - start - 1) % 4 for start, end in pairwise(dataset[at]["seq_boundaries"]))
        ]
        assert unfit
        for at in unfit:
            batch = dataset.collate_fn([dataset[at]])
            with pytest.raises(ValueError, match="pad_seq_to_mult"):
                found.gpt_step.get_batch(iter([batch]), packing_config(found))

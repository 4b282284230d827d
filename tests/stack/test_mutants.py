"""One wrong line in the patched source of a real stack: the cpu level catches it by the right name."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.stack.stacks import BRIDGE_03, NEMO_23, NEMO_25, RealStack, apply, failures, tree, verified

pytestmark = [pytest.mark.torch, pytest.mark.upstream]
NEMO_STEP = "nemo/nemo/collections/llm/gpt/model/base.py"
NEMO_PACKING = "nemo/nemo/collections/llm/gpt/data/packed_sequence.py"
NEMO_TUNING = "nemo/nemo/collections/llm/gpt/data/fine_tuning.py"
NEMO_DATA = "nemo/nemo/collections/llm/gpt/data/core.py"
CORE = "megatron-core/megatron/core/utils.py"
BRIDGE = "megatron-bridge/megatron/bridge/"


@dataclass(frozen=True)
class Mutant:
    """A line of a patched file that says something else, and the check that has to fail."""

    stack: RealStack
    what: str
    file: str
    old: str
    new: str
    check: str

    def __str__(self) -> str:
        return f"{self.stack}: {self.what}"


INDEX = 'cu_seqlens = batch["cu_seqlens"].flatten()[: lengths.index(total) + 1].int().contiguous()'
TRIM = "cu_seqlens = cu_seqlens[: cu_seqlens_argmin.item() or None]"
FILLS = '(("input_ids", pad_id), ("loss_mask", 0), ("context_ids", pad_id))'
TOKENS = "step: every token exactly once at CP=2"
METADATA = "step: metadata on every stage at CP=2"
REFUSED = "step: bad packs are refused on every rank at CP=2"
LENGTHS = "data: lengths divide by 2 * cp at CP=2"
GRADIENTS = "parity: gradients at CP=2"

MUTANTS = (
    Mutant(
        NEMO_25,
        "zigzag over the whole pack",
        NEMO_STEP,
        INDEX,
        "cu_seqlens = torch.tensor([0, total], dtype=torch.int32)",
        TOKENS,
    ),
    Mutant(
        NEMO_25,
        "samples are not prepadded",
        NEMO_PACKING,
        "if pad_seq_to_mult == 1:",
        "if pad_seq_to_mult:",
        "data: packing runs at CP=2",  # the data module refuses its own pack
    ),
    Mutant(
        NEMO_25,
        "all trailing -1 go into the index call",
        NEMO_STEP,
        INDEX,
        'cu_seqlens = batch["cu_seqlens"].flatten().int().contiguous()',
        TOKENS,
    ),
    Mutant(NEMO_25, "-1 is left in PackedSeqParams", NEMO_STEP, TRIM, "pass", METADATA),
    Mutant(
        NEMO_25,
        "unpadded cu_seqlens only",
        NEMO_STEP,
        TRIM,
        'cu_seqlens = batch["cu_seqlens_unpadded"].squeeze()[: cu_seqlens_argmin.item()]',
        "data: metadata at CP=2",
    ),
    Mutant(
        NEMO_25,
        "loss mask 1 on pads",
        NEMO_PACKING,
        FILLS,
        FILLS.replace('"loss_mask", 0', '"loss_mask", 1'),
        "data: no pad is a target at CP=2",
    ),
    Mutant(
        NEMO_25,
        "the loss mask is not padded",
        NEMO_PACKING,
        FILLS,
        FILLS.replace('("loss_mask", 0), ', ""),
        "data: packing runs at CP=2",
    ),
    Mutant(
        NEMO_25,
        "middle pipeline stage without metadata",
        NEMO_STEP,
        '    if "cu_seqlens" in batch:',
        '    if "cu_seqlens" in batch and batch["position_ids"] is not None:',
        METADATA,
    ),
    Mutant(
        NEMO_25,
        "the index is kept for the next pack",
        NEMO_STEP,
        "    return {key: value.index_select(1, index)",
        "    index = _partition_packed_batch_for_cp.__dict__.setdefault(str(total), index)\n"
        "    return {key: value.index_select(1, index)",
        TOKENS,
    ),
    Mutant(
        NEMO_25,
        "lengths are not checked",
        NEMO_STEP,
        "if offending := [length for length in intervals if length % (2 * cp_size)]:",
        "if offending := [length for length in intervals if length % cp_size]:",
        REFUSED,
    ),
    Mutant(
        NEMO_25,
        "labels stay whole",
        NEMO_STEP,
        '    keys = [key for key in ("tokens", "labels", "loss_mask", "position_ids")',
        '    keys = [key for key in ("tokens", "loss_mask", "position_ids")',
        TOKENS,
    ),
    Mutant(
        NEMO_25,
        "files for CP=1 are picked up at CP=2",
        NEMO_TUNING,
        'return f"_pad_seq_to_mult{pad_seq_to_mult}" if pad_seq_to_mult > 1 else ""',
        'return ""',
        "data: packing runs at CP=2",
    ),
    Mutant(
        NEMO_25,
        "max_seqlen is one too small",
        NEMO_STEP,
        'max_seqlen = batch["max_seqlen"].squeeze()',
        'max_seqlen = batch["max_seqlen"].squeeze() - 1',
        "data: metadata at CP=2",
    ),
    Mutant(
        NEMO_25,
        "whole packs pass the generic slicer",
        CORE,
        "        _check_packed_batch_is_split(batch, cp_size)\n",
        "",
        "core slicer: whole packs are never cut across at CP=2",
    ),
    Mutant(
        NEMO_25,
        "a name is not imported",
        NEMO_TUNING,
        "import math\n",
        "",
        "static: every name is defined at CP=None",
    ),
    Mutant(
        NEMO_23,
        "max_seqlen leaves out the rest of a pack",
        NEMO_DATA,
        "max_seqlen = torch.full_like(max_seqlen, max_length)",
        "pass",
        "data: metadata at CP=2",
    ),
    Mutant(
        NEMO_23,
        "the global token count is missing",
        NEMO_STEP,
        'split["num_valid_tokens_in_ub"] = None if loss_mask is None else loss_mask.sum()',
        "pass",
        "parity: loss at CP=2",
    ),
    Mutant(
        NEMO_23,
        "the token count is this rank's",
        NEMO_STEP,
        'loss_mask = batch.get("loss_mask")\n        split["num',
        'loss_mask = split.get("loss_mask")\n        split["num',
        "parity: loss at CP=2",
    ),
    Mutant(
        BRIDGE_03,
        "lengths inferred from EOS",
        BRIDGE + "training/utils/packed_seq_utils.py",
        "    cu_seqlens_unpadded = cu_seqlens_padded\n",
        "    cu_seqlens_unpadded = (cu_seqlens_padded - 1).clamp(min=0)\n",
        GRADIENTS,
    ),
    Mutant(
        BRIDGE_03,
        "bad packs are not checked",
        BRIDGE + "training/gpt_step.py",
        "        _refuse_unfit_batch(batch, pg_collection.cp.size(), cfg)\n",
        "",
        REFUSED,
    ),
    Mutant(
        BRIDGE_03,
        "middle pipeline stage without metadata",
        BRIDGE + "training/gpt_step.py",
        " and not _may_bring_packs(cfg, data_iterator)",
        "",
        METADATA,
    ),
    Mutant(
        BRIDGE_03,
        "schedule plan without metadata",
        BRIDGE + "training/gpt_step.py",
        'packed_seq_params=forward_args.get("packed_seq_params")',
        "packed_seq_params=None",
        "step: schedule plans have the metadata at CP=2",
    ),
    Mutant(
        BRIDGE_03,
        "the cap leaves a length that does not divide",
        BRIDGE + "data/datasets/packed_sequence.py",
        "val = val[: max_length_to_pad + 1]",
        "val = val[:max_seq_length]",
        LENGTHS,
    ),
)


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """The patched trees of each stack, made once; to be copied."""
    made = {}
    for stack in (NEMO_25, NEMO_23, BRIDGE_03):
        made[stack.name] = tree(stack, tmp_path_factory.mktemp(stack.name))
        apply(made[stack.name])
    return made


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_no_mutant_survives(
    mutant: Mutant, patched: dict[str, list[Path]], tmp_path: Path, seed: int
) -> None:
    roots = [shutil.copytree(root, tmp_path / root.name) for root in patched[mutant.stack.name]]
    file = tmp_path / mutant.file
    text = file.read_text()
    assert text.count(mutant.old) == 1, "the patched source has changed: adapt the mutant"
    file.write_text(text.replace(mutant.old, mutant.new))
    said = failures(verified(mutant.stack, roots, (2,), seed))
    assert mutant.check in said

# Copyright (c) 2026, the cpfix contributors. Licensed under the Apache License, Version 2.0.

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from megatron.bridge.data.packing.gpt_sft import GPTSFTPackedDataset


EOS = 2


def targets(folder: Path, tokens: list[int], mask: list[int], answer_only: bool = True) -> list[tuple[int, int]]:
    """Each input token of a stored sequence with the label that the loss counts for it, in order."""
    pack = {"input_ids": tokens, "loss_mask": mask, "seq_start_id": [0]}
    np.save(folder / "packed.npy", np.array([pack], dtype=object), allow_pickle=True)
    tokenizer: Any = SimpleNamespace(eos_id=EOS, eod=EOS)
    options: Any = {"prompt_template": "{input} {output}", "label_key": "output", "truncation_field": "input"}
    options |= {"max_seq_length": 16, "answer_only_loss": answer_only}
    data = GPTSFTPackedDataset(str(folder / "packed.npy"), tokenizer, **options)
    batch = data.collate_fn([data[0]])
    counted = batch["loss_mask"].bool()
    return list(zip(batch["tokens"][counted].tolist(), batch["labels"][counted].tolist()))


def test_the_first_token_of_a_turn_is_a_target_behind_eos(tmp_path: Path) -> None:
    found = targets(tmp_path, [5, EOS, 6, EOS, 7, EOS], [1, 1, 1, 1, 1, 0])
    assert found == [(5, EOS), (EOS, 6), (6, EOS), (EOS, 7), (7, EOS)]


@pytest.mark.parametrize("answer_only", [True, False])
def test_pads_are_no_targets(tmp_path: Path, answer_only: bool) -> None:
    found = targets(tmp_path, [5, EOS, 6, EOS, EOS, EOS], [1, 1, 1, 0, 0, 0], answer_only)
    assert found == [(5, EOS), (EOS, 6), (6, EOS)]


def test_pads_of_a_file_that_calls_them_targets_are_none_either(tmp_path: Path) -> None:
    found = targets(tmp_path, [5, EOS, 6, EOS, EOS, EOS], [1, 1, 1, 1, 1, 1])
    assert found == [(5, EOS), (EOS, 6), (6, EOS)]

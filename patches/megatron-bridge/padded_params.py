"""New code of the patch `padded-params`: a max_seqlen that no metadata can make too small.

Inserted by name into megatron/bridge/data/datasets/sft.py.
"""

import numpy as np
from megatron.bridge.data.datasets.sft import GPTSFTPackedDataset


def _longest_packed_sequence(dataset: "GPTSFTPackedDataset", max_length: int) -> int:
    """The longest sequence in any pack of the data set, as the model gets it.

    The padding behind the last sequence, up to `max_length`, counts as one. Found once: the same for all batches,
    as CUDA graphs ask for.
    """
    if "_longest_sequence" not in dataset.__dict__:
        dataset._longest_sequence = 0
        for pack in dataset.__dict__.get("indexed_dataset", ()):
            lengths = np.diff([*pack["seq_start_id"], len(pack["input_ids"])]) - 1
            longest = max(int(lengths.max()), max_length - int(lengths.sum()))
            dataset._longest_sequence = max(dataset._longest_sequence, longest)
    return int(dataset._longest_sequence)

"""New code of the patch `prepad-cap`: the longest length that a padded sample may have."""

from __future__ import annotations


def _longest_divisible(max_seq_length: int, multiple: int) -> int:
    """The longest runtime length (stored tokens less one) that `multiple` divides, at most `max_seq_length`.

    Raises:
        ValueError: If not even one multiple fits.
    """
    longest = max_seq_length // multiple * multiple
    if longest == 0:
        raise ValueError(
            f"pad_seq_to_mult={multiple} does not fit into the sequence length of {max_seq_length} tokens: "
            "raise seq_length or lower packed_sequence_specs.pad_seq_to_mult"
        )
    return longest

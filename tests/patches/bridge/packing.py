"""Pack samples by the real code of Megatron-Bridge."""

from __future__ import annotations

from typing import Any

from tests.patches.bridge.real_code import EOS, Tokenizer, is_06, load, packing_file, tokenize_file


class Samples(list[dict[str, Any]]):
    """A data set before it is packed."""

    tokenizer = Tokenizer()

    def __init__(self, samples: list[dict[str, Any]], multiple: int, size: int) -> None:
        super().__init__(samples)
        self.pad_seq_length_to_mult, self.max_seq_length = multiple, size


def tokenized(
    version: str,
    patches: tuple[str, ...],
    samples: list[dict[str, Any]],
    multiple: int | None,
    size: int = 64,
) -> Any:
    """The samples as `tokenize_dataset` leaves them, padded to the multiple."""

    def create(*_: Any, **options: Any) -> Samples:
        options |= options.get("dataset_kwargs", {})
        return Samples(samples, options["pad_seq_length_to_mult"], options["seq_length"])

    module = load(version, tokenize_file(version), patches, create_sft_dataset=create)
    more: dict[str, Any] = {"num_tokenizer_workers": 1} if version >= "0.4" else {}
    if is_06(version):
        more["dataset_builder"] = create
    return module.tokenize_dataset("x.jsonl", Tokenizer(), size, 1, pad_seq_to_mult=multiple, **more)


def packed(version: str, patches: tuple[str, ...], dataset: Any, size: int = 64) -> list[dict[str, Any]]:
    """The rows of the packed file that upstream makes of them."""
    module = load(version, packing_file(version), patches)
    sequences, histogram = module.create_hist(dataset, size)
    assignments, _ = module.create_packing_strategy(histogram, size, "first_fit_shuffle")
    rows: list[dict[str, Any]] = module.fill_packing_strategy(assignments, sequences, size, EOS)
    return rows


def targets(rows: list[dict[str, Any]]) -> list[tuple[int, ...]]:
    """For each packed sequence the labels that the loss counts, sorted."""
    found = []
    for row in rows:
        bounds = [*row["seq_start_id"], len(row["input_ids"])]
        assert len(row["loss_mask"]) == len(row["input_ids"])
        for at, start in enumerate(bounds[:-1]):
            labels = row["input_ids"][start + 1 : bounds[at + 1]]
            mask = row["loss_mask"][start : bounds[at + 1] - 1]
            found.append(tuple(label for label, value in zip(labels, mask, strict=True) if value))
    return sorted(found)

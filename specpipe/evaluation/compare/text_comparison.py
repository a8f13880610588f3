"""Comparison of two runs' outputs row by row: equal outputs, and first differing tokens of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from specpipe.errors import OutputError
from specpipe.evaluation.compare.rounding import same_up_to_rounding
from specpipe.evaluation.run_outputs import RunOutputs

_COLUMNS = ("request_id", "prompt", "generated_text", "generated_token_ids", "finish_reason", "scores")
MAX_DIVERGENCES = 100
"""Largest number of divergences that are stored with their texts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Divergence:
    """A row whose outputs differ."""

    row: int
    """Position in the dataset."""
    request_id: str
    position: int
    """Length of the common beginning, in generated tokens."""
    token_a: int | None
    """First differing token; None if A's output ended."""
    token_b: int | None
    prompt: str
    text_a: str
    text_b: str
    common: tuple[int, ...]
    """Token ids of the common beginning, without the prompt."""


@dataclass(kw_only=True, slots=True)
class TextComparison:
    """Counts over the rows of two runs."""

    rows: int = 0
    """Rows that generated text in both runs."""
    scores: int = 0
    """Continuations that both runs scored."""
    same_scores: int = 0
    """Those of them with the same log-probability up to rounding."""
    greedy_changed: int = 0
    """Those of them that greedy decoding generates in one run alone."""
    largest_difference: float = 0.0
    """Largest difference of two log-probabilities."""
    failed: int = 0
    """Rows that failed in at least one run."""
    same_text: int = 0
    same_tokens: int = 0
    positions: list[int] = field(default_factory=list)
    """First differing position of each row with different tokens."""
    divergences: list[Divergence] = field(default_factory=list)
    """The first MAX_DIVERGENCES rows with different tokens."""

    @property
    def exact_match_rate(self) -> float:
        """Share of rows with equal texts."""
        return self.same_text / self.rows if self.rows else 1.0

    @property
    def identical(self) -> bool:
        """True if no row failed, all texts are the same, and all log-probabilities up to rounding."""
        return (self.same_tokens, self.same_scores, self.failed) == (self.rows, self.scores, 0)

    def add_scores(self, a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]], dtype: str) -> None:
        """Adds the scores of a row in both runs. dtype: number format of the runs."""
        for x, y in zip(a, b, strict=False):
            difference = abs(x["logprob"] - y["logprob"])
            self.scores += 1
            self.same_scores += same_up_to_rounding([x["logprob"]], [y["logprob"]], dtype)
            self.greedy_changed += x["is_greedy"] != y["is_greedy"]
            self.largest_difference = max(self.largest_difference, difference)


def compare_outputs(a: RunOutputs, b: RunOutputs, dtype: str = "float32") -> TextComparison:
    """Compares rows by position. dtype: number format of the runs. Ignores rows that only one run has (data.limit).

    Raises OutputError if rows at one position are different requests.
    """
    found = TextComparison()
    for row, (left, right) in enumerate(zip_longest(a.records(_COLUMNS), b.records(_COLUMNS))):
        if left is None or right is None:
            break
        if (left["request_id"], left["prompt"]) != (right["request_id"], right["prompt"]):
            raise OutputError(
                f"row {row} is request {left['request_id']} in {a.folder.path} and {right['request_id']} in "
                f"{b.folder.path}, or its prompt differs; expected two runs over the same dataset"
            )
        if "error" in (left["finish_reason"], right["finish_reason"]):
            found.failed += 1
            continue
        if left["scores"] and right["scores"]:
            found.add_scores(left["scores"], right["scores"], dtype)
            continue
        found.rows += 1
        found.same_text += left["generated_text"] == right["generated_text"]
        if left["generated_token_ids"] == right["generated_token_ids"]:
            found.same_tokens += 1
            continue
        position = first_difference(left["generated_token_ids"], right["generated_token_ids"])
        found.positions.append(position)
        if len(found.divergences) < MAX_DIVERGENCES:
            found.divergences.append(
                Divergence(
                    row=row,
                    request_id=left["request_id"],
                    position=position,
                    token_a=_at(left["generated_token_ids"], position),
                    token_b=_at(right["generated_token_ids"], position),
                    prompt=left["prompt"],
                    text_a=left["generated_text"],
                    text_b=right["generated_text"],
                    common=tuple(left["generated_token_ids"][:position]),
                )
            )
    return found


def first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    """Returns the length of the common beginning of two lists of token ids."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _at(ids: Sequence[int], position: int) -> int | None:
    return ids[position] if position < len(ids) else None

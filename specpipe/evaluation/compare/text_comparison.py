"""Two runs' outputs row by row: how many are the same, and where the others part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from specpipe.errors import OutputError
from specpipe.evaluation.run_outputs import RunOutputs

_COLUMNS = ("request_id", "prompt", "generated_text", "generated_token_ids", "finish_reason")
MAX_DIVERGENCES = 100
"""Divergences that are kept with their texts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Divergence:
    """A row whose outputs differ."""

    row: int
    """Position in the dataset."""
    request_id: str
    position: int
    """Generated tokens that both have in common."""
    token_a: int | None
    """The first one that differs; None where the output ended."""
    token_b: int | None
    text_a: str
    text_b: str
    common: tuple[int, ...]
    """Token ids before it, without the prompt."""


@dataclass(kw_only=True, slots=True)
class TextComparison:
    """Counts over all rows of two runs."""

    rows: int = 0
    """Rows that both runs have and that failed in neither."""
    failed: int = 0
    """Rows that failed in one or both."""
    same_text: int = 0
    same_tokens: int = 0
    positions: list[int] = field(default_factory=list)
    """First diverging position of each row that differs."""
    divergences: list[Divergence] = field(default_factory=list)
    """The first MAX_DIVERGENCES of them."""

    @property
    def exact_match_rate(self) -> float:
        """Share of rows whose texts are the same."""
        return self.same_text / self.rows if self.rows else 1.0


def compare_outputs(a: RunOutputs, b: RunOutputs) -> TextComparison:
    """Rows are paired by position; where one run has fewer (data.limit), the rest is left out.

    Raises OutputError where the rows are not the same requests.
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
                    text_a=left["generated_text"],
                    text_b=right["generated_text"],
                    common=tuple(left["generated_token_ids"][:position]),
                )
            )
    return found


def first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _at(ids: Sequence[int], position: int) -> int | None:
    return ids[position] if position < len(ids) else None

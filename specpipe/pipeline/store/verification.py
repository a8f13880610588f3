"""What `specpipe verify` found out about a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specpipe.errors import EXIT_COMPLETE, EXIT_FAILED, EXIT_INCOMPLETE

MOST_ROWS = 5  # findings about single rows of one shard; the rest is counted


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    kind: Literal["wrong", "missing"]
    """`missing`: not there yet, another start makes it. `wrong`: there, and not to be trusted."""
    text: str
    shard: int | None = None
    row: int | None = None
    """Within the shard, from 0."""

    def __str__(self) -> str:
        place = "" if self.shard is None else f"shard {self.shard}"
        place += "" if self.row is None else f", row {self.row}"
        return f"{place}: {self.text}" if place else self.text


def few(findings: Iterator[Finding]) -> list[Finding]:
    """The first findings about a shard's rows, and how many more there are."""
    kept: list[Finding] = []
    more = 0
    for finding in findings:
        if len(kept) < MOST_ROWS:
            kept.append(finding)
        else:
            more += 1
    if more:
        kept.append(Finding(kind="wrong", shard=kept[0].shard, text=f"and {more} more of its rows"))
    return kept


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """The outcome. A run is proven complete when nothing was found."""

    folder: str
    run_id: str
    fast: bool
    """Inputs were not read again."""
    shards: int
    rows: int
    """Of the dataset."""
    verified_shards: int
    verified_rows: int
    """In parts about which nothing was found."""
    failed_rows: int
    """Rows with an error in those parts."""
    max_failed_rows: int
    findings: Sequence[Finding]

    @property
    def complete(self) -> bool:
        return not self.findings

    @property
    def exit_code(self) -> int:
        """0 proven complete; 1 something is wrong; 3 rows are missing, or more failed than the job allows."""
        if any(finding.kind == "wrong" for finding in self.findings):
            return EXIT_FAILED
        return EXIT_INCOMPLETE if self.findings or self.failed_rows > self.max_failed_rows else EXIT_COMPLETE

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            "complete": self.complete,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
        }

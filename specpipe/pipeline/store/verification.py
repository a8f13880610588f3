"""Result of `specpipe verify`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specpipe.errors import EXIT_COMPLETE, EXIT_FAILED, EXIT_INCOMPLETE

MAX_ROW_FINDINGS = 5  # findings about single rows of one shard; more are only counted


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One defect of a run."""

    kind: Literal["wrong", "missing"]
    """`missing`: not written yet; another start writes it. `wrong`: exists and is invalid."""
    text: str
    shard: int | None = None
    row: int | None = None
    """Output row within the shard, from 0."""

    def __str__(self) -> str:
        place = "" if self.shard is None else f"shard {self.shard}"
        place += "" if self.row is None else f", row {self.row}"
        return f"{place}: {self.text}" if place else self.text


def limit_row_findings(findings: Iterator[Finding]) -> list[Finding]:
    """Returns the first findings about a shard's rows, and one with the number of the others."""
    kept: list[Finding] = []
    more = 0
    for finding in findings:
        if len(kept) < MAX_ROW_FINDINGS:
            kept.append(finding)
        else:
            more += 1
    if more:
        kept.append(Finding(kind="wrong", shard=kept[0].shard, text=f"and {more} more rows"))
    return kept


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """Result of a verification. Without findings the run is proven complete."""

    folder: str
    run_id: str
    fast: bool
    """True where inputs were compared by size and modification time only."""
    shards: int
    rows: int
    """Output rows of the run."""
    verified_shards: int
    """Parts without findings."""
    verified_rows: int
    """Rows of parts without findings."""
    failed_rows: int
    """Rows with an error in those parts."""
    max_failed_rows: int
    findings: Sequence[Finding]

    @property
    def complete(self) -> bool:
        """True without findings."""
        return not self.findings

    @property
    def exit_code(self) -> int:
        """0: proven complete; 1: something is wrong; 3: rows are missing, or more failed than the job allows."""
        if any(finding.kind == "wrong" for finding in self.findings):
            return EXIT_FAILED
        return EXIT_INCOMPLETE if self.findings or self.failed_rows > self.max_failed_rows else EXIT_COMPLETE

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        return {
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            "complete": self.complete,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
        }

"""Contents of a run that its report is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from specpipe.report.elements import Marked
from specpipe.speculation.estimates.round_costs import RoundCosts


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorExample:
    """A row that failed. All fields are untrusted text."""

    request_id: str
    prompt: str
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerExample:
    """A row that was generated. Its texts are untrusted."""

    request_id: str
    prompt: str
    answer: Marked
    """Pieces of the text; those of accepted draft tokens are marked."""
    draft_tokens: int
    accepted_tokens: int

    @property
    def acceptance(self) -> float:
        """Share of the row's draft tokens that was accepted; 0 without any."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RowGroup:
    """Sums over the rows with one value of a kept column."""

    value: str
    """Untrusted text."""
    rows: int
    draft_tokens: int
    accepted_tokens: int
    output_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFigures:
    """Lengths and acceptance of the generated rows of some parts."""

    parts: int
    rows: int
    prompt_tokens: Mapping[int, int]
    """Rows by the power of 2 that bounds their tokens: the key 5 counts rows of 17 to 32 tokens."""
    output_tokens: Mapping[int, int]
    by_column: Mapping[str, Sequence[RowGroup]]
    """Sums by the values of each kept column that has few."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSource:
    """Contents of the folder of a live or finished run."""

    folder: str
    state: str
    """complete, incomplete, interrupted, failed or running."""
    summary: Mapping[str, Any]
    """Contents of summary.json; computed from the published shards while the run goes on."""
    identity: Mapping[str, Any]
    """Fields of the manifest that determine the outputs, by dotted name."""
    tuning: Mapping[str, Any]
    """Fields of the manifest that may change between starts, by dotted name."""
    created_at: str
    shards: pa.Table
    """telemetry/shards.parquet: one row for each published shard."""
    timelines: Sequence[pa.Table]
    """telemetry/timeline-*.parquet: one table for each start, in order."""
    costs: RoundCosts | None = None
    """Seconds of rounds on the hardware that ran most of them; None without telemetry/costs.json."""
    errors: Sequence[ErrorExample] = ()
    """Some of the failed rows."""
    answers: Sequence[AnswerExample] = ()
    """Some of the generated rows, by acceptance."""
    rows: RowFigures | None = None

    @property
    def name(self) -> str:
        """Name of the job."""
        return str(self.summary["name"])

    @property
    def device_noun(self) -> str:
        """Unit of cost: "GPU" if all devices are GPUs, otherwise "worker"."""
        devices = self.summary["devices"]
        return "GPU" if devices and not any(str(device).startswith("cpu") for device in devices) else "worker"

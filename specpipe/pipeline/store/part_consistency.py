"""Consistency of one part in itself: columns of each row, and telemetry against the sums of the rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pyarrow.compute as pc

from specpipe.core import Shard
from specpipe.data import output_schema, output_totals
from specpipe.data.columns import ACCEPTED_PER_ROUND, LOGPROB_COLUMNS, SCORE_COLUMNS
from specpipe.pipeline.store.verification import Finding
from specpipe.telemetry.shard_record import ShardRecord


def wrong(shard: Shard, text: str, row: int | None = None) -> Finding:
    """Returns a finding about a shard or one of its rows."""
    return Finding(kind="wrong", shard=shard.index, row=row, text=text)


def inconsistent_rows(table: Any, shard: Shard) -> Iterator[Finding]:
    """Yields rows whose columns contradict each other."""
    lengths = pc.list_value_length(table["generated_token_ids"]).to_pylist()
    counts, errors = table["num_generated_tokens"].to_pylist(), table["error"].to_pylist()
    accepted, reasons = table["accepted_tokens"].to_pylist(), table["finish_reason"].to_pylist()
    followed = table["followed_tokens"].to_pylist()
    rounds = table[ACCEPTED_PER_ROUND].to_pylist()
    cached, inputs = table["cached_tokens"].to_pylist(), table["num_input_tokens"].to_pylist()
    logprob_lengths = [pc.list_value_length(table[name]).to_pylist() for name in LOGPROB_COLUMNS]
    scored, by_token = (pc.list_value_length(table[name]).to_pylist() for name in SCORE_COLUMNS)
    for i, reason in enumerate(reasons):
        if reason not in ("stop", "length", "scored", "error") or (reason == "error") != bool(errors[i]):
            expected = "expected stop, length or scored, or error with a text"
            yield wrong(shard, f"finish_reason is {reason!r:.40}, error is {errors[i]!r:.80}; {expected}", row=i)
        elif (reason == "scored") != bool(scored[i]):
            yield wrong(shard, f"{scored[i]} scores; expected some if and only if finish_reason is scored", row=i)
        elif by_token[i] not in (None, scored[i]):
            yield wrong(shard, f"score_logprobs of {by_token[i]} continuations; expected {scored[i]}", row=i)
        elif lengths[i] != counts[i]:
            yield wrong(
                shard, f"num_generated_tokens is {counts[i]}; expected {lengths[i]}, the number of token ids", row=i
            )
        elif not 0 <= cached[i] < max(inputs[i], 1):
            yield wrong(
                shard,
                f"cached_tokens is {cached[i]}; expected less than num_input_tokens, {inputs[i]}",
                row=i,
            )
        elif not 0 <= accepted[i] <= counts[i]:
            yield wrong(
                shard,
                f"accepted_tokens is {accepted[i]}; expected 0 to {counts[i]}, the number of generated tokens",
                row=i,
            )
        elif not 0 <= followed[i] <= accepted[i]:
            yield wrong(shard, f"followed_tokens is {followed[i]}; expected 0 to accepted_tokens, {accepted[i]}", row=i)
        elif rounds[i] is not None and sum(rounds[i]) != accepted[i]:
            yield wrong(
                shard, f"accepted_per_round adds up to {sum(rounds[i])}; expected {accepted[i]}, accepted_tokens", row=i
            )
        elif {lengths[i] for lengths in logprob_lengths} not in ({None}, {counts[i]}):
            yield wrong(
                shard,
                f"log-probabilities of {logprob_lengths[0][i]} tokens; expected {counts[i]}, one per generated token",
                row=i,
            )


def inconsistent_telemetry(table: Any, record: ShardRecord, shard: Shard) -> Iterator[Finding]:
    """Checks the record against the sums of the rows and of its own positions and phases."""
    if not set(output_schema().names) <= set(table.schema.names):
        return  # reported by _table
    counts = record.verified
    pairs = [
        *((name, getattr(record, name), summed) for name, summed in output_totals(table).items()),
        ("drafts", counts.drafts, counts.recovered_tokens + counts.bonus_tokens),
        ("draft_tokens", counts.draft_tokens, sum(counts.proposed_per_position)),
        ("accepted_tokens", counts.accepted_tokens, sum(counts.accepted_per_position)),
    ]
    for name, recorded, summed in pairs:
        if recorded != summed:
            yield wrong(shard, f"telemetry does not add up: {name} is {recorded}; expected the sum {summed}")
    phases = record.prefill_s + record.draft_s + record.verify_s + record.sample_s + record.host_s
    if not math.isclose(record.busy_s, phases, rel_tol=1e-6, abs_tol=1e-6):
        yield wrong(
            shard, f"telemetry does not add up: busy_s is {record.busy_s}; expected the sum of its phases {phases}"
        )

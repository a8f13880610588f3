"""Reads the results of rounds, one round behind the device: tokens to rows, rows to completions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from specpipe.core import Completion, FinishReason
from specpipe.engine.accounting import ShardTally
from specpipe.engine.proposers.corpus import Answer, Corpus
from specpipe.engine.proposers.proposer import source_code
from specpipe.engine.state.in_flight import StepInFlight, StepLaunch
from specpipe.engine.state.logprobs import RoundLogprobs
from specpipe.engine.state.row_state import RowState
from specpipe.engine.state.scheduler import Scheduler
from specpipe.engine.state.slot_state import SlotState
from specpipe.engine.state.text_decoder import TextDecoder

STATUS_ERRORS = {
    1: "the model's logits hold NaN or infinity for this row",
    2: "no token has a probability above zero for this row",
}
"""Messages by the status of a row in a round's result."""
FOLLOWED = (source_code("reference"), source_code("corpus"))
"""Sources that are earlier answers."""


class Collector:
    """Appends the tokens of rounds to the rows that still run, and frees what finished rows held."""

    def __init__(
        self, scheduler: Scheduler, state: SlotState, decoder: TextDecoder, corpus: Corpus | None = None
    ) -> None:
        """corpus: gets the answers of rows that end."""
        self._scheduler, self._state, self._decoder, self._corpus = scheduler, state, decoder, corpus

    def collect(self, step: StepInFlight, tally: Mapping[int, ShardTally]) -> list[Completion]:
        """Waits for the step, reads its round and returns the completions of rows that ended.

        tally: counts by shard, filled here; creates missing entries (a defaultdict).
        """
        if step.done is not None:
            step.done.synchronize()
        now, launch = time.perf_counter(), step.launch
        finished: list[tuple[RowState, Completion]] = []
        packed = step.packed[: len(launch.rows)]
        columns = launch.k + 7
        logprobs = RoundLogprobs.unpack(packed[:, columns:], launch.k) if packed.shape[1] > columns else None
        ended, completions = self._collect_scores(step, now, tally)
        for i, (row, values) in enumerate(zip(launch.rows, packed[:, :columns].tolist(), strict=True)):
            if self._scheduler.rows.get(row.slot) is not row:
                continue  # finished by the host while this round ran
            if logprobs is not None:
                row.store_logprobs(logprobs, i)
            completion = self._extend_row(row, values, launch, now, tally[row.request.shard])
            if completion is not None:
                finished.append((row, completion))
        self._release([*ended, *(row for row, _ in finished)])
        if self._corpus is not None:
            self._corpus.add(_new_answers(finished))
        return [*completions, *(completion for _, completion in finished)]

    def _collect_scores(
        self, step: StepInFlight, now: float, tally: Mapping[int, ShardTally]
    ) -> tuple[list[RowState], list[Completion]]:
        """Reads the scores of the step's prefill. Returns the rows that ended, and completions of whole requests."""
        ended: list[RowState] = []
        completions: list[Completion] = []
        logprobs, greedy = step.scores.T.tolist()
        at = 0
        for row, count in step.launch.scored:
            begin, at = at, at + count
            window = row.window
            if window is None or self._scheduler.rows.get(row.slot) is not row:
                continue  # preempted while this prefill ran
            tally[row.request.shard].scored += count
            if not window.add(logprobs[begin:at], greedy[begin:at]):
                continue
            ended.append(row)
            assert row.admitted_at is not None
            request = window.request
            if request.finish_window(window, started_at=row.admitted_at, cached_tokens=row.cached_tokens, now=now):
                completions.append(request.complete())
        return ended, completions

    def _release(self, rows: Sequence[RowState]) -> None:
        if rows:
            self._state.release([row.slot for row in rows])
        for row in rows:
            self._scheduler.release(row)

    def _extend_row(
        self, row: RowState, values: list[int], launch: StepLaunch, now: float, tally: ShardTally
    ) -> Completion | None:
        """Applies one row's result of a round, K + 7 values (see `Round`); returns its completion if it ended."""
        emitted, accepted, proposed, status, source, draft_valid = values[launch.k + 1 :]
        if status:
            return row.complete("error", error=STATUS_ERRORS[status])
        row.draft_valid = max(row.draft_valid, draft_valid)  # a later prefill may have been launched
        before, last_token_at = row.length, row.last_token_at
        text = row.extend(values[:emitted], now)
        kept = row.length - before
        row.proposed += proposed
        row.accepted += min(accepted, kept)
        followed = source in FOLLOWED
        row.followed += min(accepted, kept) if followed else 0
        if launch.k:
            row.following = followed
        row.accepted_per_round.append(min(accepted, kept))
        is_first = before == len(row.request.prompt_token_ids)
        gap = None if is_first else now - last_token_at
        tally.add_row(
            source=source, proposed=proposed, accepted=accepted, kept=kept, gap=gap, speculates=row.speculates
        )
        if text is not None:
            return row.complete("stop", text=text)
        return self._complete_if_ended(row)

    def _complete_if_ended(self, row: RowState) -> Completion | None:
        """Returns the row's completion if its last token is a stop token or its limit is reached."""
        sampling, last = row.request.sampling, row.generated[-1]
        reason: FinishReason
        if last in sampling.stop_token_ids or (last in self._state.eos_ids and not sampling.ignore_eos):
            reason = "stop"
        elif row.length >= row.limit:
            reason = "length"
        else:
            return None
        return row.complete(reason, text=self._decoder.decode(row.generated))


def _new_answers(finished: Sequence[tuple[RowState, Completion]]) -> list[Answer]:
    """Returns prompts and answers of rows that ended without an error and do not only repeat an earlier answer."""
    return [
        (row.request.prompt_token_ids, row.generated)
        for row, completion in finished
        if completion.finish_reason != "error" and tuple(row.generated) != row.reference and not row.request.warm_up
    ]

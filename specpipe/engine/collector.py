"""Reading what a round did, one round behind the device: tokens to rows, rows to completions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from specpipe.core import Completion, FinishReason
from specpipe.engine.accounting import ShardTally
from specpipe.engine.state.in_flight import Flight, Launch
from specpipe.engine.state.logprobs import RoundLogprobs
from specpipe.engine.state.row_state import RowState
from specpipe.engine.state.scheduler import Scheduler
from specpipe.engine.state.slot_state import SlotState
from specpipe.engine.state.text_decoder import TextDecoder

STATUS_ERRORS = {
    1: "the model's logits hold NaN or infinity for this row",
    2: "no token has a probability above zero for this row",
}


class Collector:
    """Takes the results of rounds for the rows that still run, and frees what finished rows held."""

    def __init__(self, scheduler: Scheduler, state: SlotState, decoder: TextDecoder) -> None:
        self._scheduler, self._state, self._decoder = scheduler, state, decoder

    def collect(self, flight: Flight, tally: Mapping[int, ShardTally]) -> list[Completion]:
        """Waits for the round; tally: by shard, makes what it lacks."""
        if flight.done is not None:
            flight.done.synchronize()
        now, rows = time.perf_counter(), flight.launch.rows
        finished: list[tuple[RowState, Completion]] = []
        launch, packed = flight.launch, flight.packed[: len(rows)]
        columns = launch.k + 5
        told = RoundLogprobs.unpack(packed[:, columns:], launch.k) if packed.shape[1] > columns else None
        for i, (row, values) in enumerate(zip(rows, packed[:, :columns].tolist(), strict=True)):
            if self._scheduler.rows.get(row.slot) is not row:
                continue  # finished by the host while this round ran
            if told is not None:
                row.tell(told, i)
            completion = self._take(row, values, launch, now, tally[row.request.shard])
            if completion is not None:
                finished.append((row, completion))
        self._release([row for row, _ in finished])
        return [completion for _, completion in finished]

    def _release(self, rows: Sequence[RowState]) -> None:
        if rows:
            self._state.release([row.slot for row in rows])
        for row in rows:
            self._scheduler.release(row)

    def _take(
        self, row: RowState, values: list[int], launch: Launch, now: float, tally: ShardTally
    ) -> Completion | None:
        """Books one row's part of a round; → its completion if it ended."""
        emitted, accepted, proposed, status = values[launch.k + 1 :]
        if status:
            return row.complete("error", error=STATUS_ERRORS[status])
        if proposed and launch.proposer == "draft":  # how far the draft's KV is valid
            row.draft_done = row.length + min(accepted, launch.k - 1)
        before, last_token_at = row.length, row.last_token_at
        text = row.extend(values[:emitted], now)
        kept = row.length - before
        row.proposed += proposed
        row.accepted += min(accepted, kept)
        first = before == len(row.request.prompt_token_ids)
        tally.add_row(proposed=proposed, accepted=accepted, kept=kept, gap=None if first else now - last_token_at)
        if text is not None:
            return row.complete("stop", text=text)
        return self._ended(row)

    def _ended(self, row: RowState) -> Completion | None:
        sampling, last = row.request.sampling, row.generated[-1]
        reason: FinishReason
        if last in sampling.stop_token_ids or (last in self._state.eos_ids and not sampling.ignore_eos):
            reason = "stop"
        elif row.length >= row.limit:
            reason = "length"
        else:
            return None
        return row.complete(reason, text=self._decoder.decode(row.generated))

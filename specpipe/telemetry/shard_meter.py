"""Meter of one shard: sums of engine steps and completions, from which the shard record is made."""

from __future__ import annotations

from specpipe.core import AcceptanceCounts, Completion, DraftSource, ShardRound, SpeculationPlan, StepReport
from specpipe.telemetry.log_histogram import LogHistogram
from specpipe.telemetry.shard_record import FOLLOWED_SHARES, ShardRecord, source_fields
from specpipe.telemetry.step_shares import StepShare

_NO_COUNTS = AcceptanceCounts()
_ENGINE_PHASES = ("prefill", "draft", "verify", "sample", "host")


class ShardMeter:
    """Sums of one shard. Owned by the engine thread while the shard runs, and by the shard's own thread afterwards."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(_ENGINE_PHASES, 0.0)
        self._emitted_accepted = 0
        self._preemptions = self._uncompiled = 0
        self._by_source: dict[DraftSource, AcceptanceCounts] = {}
        self._ngram_rows = self._replay_rows = 0
        self._followed = 0
        self._rows_by_followed: list[int] = []
        self._k_rows: dict[int, int] = {}
        self._rounds = 0
        self._round_s = 0.0
        self._row_seconds = self._expected = 0.0
        self._last_plan: SpeculationPlan | None = None
        self._slots = 0
        self._rows = 0
        self._failed = self._scored = 0
        self._input_tokens = self._cached_tokens = 0
        self._output_tokens = self._scored_tokens = 0
        self._ttft = LogHistogram()
        self._tpot = LogHistogram()
        self._itl = LogHistogram()

    def add_step(self, step: StepReport, share: StepShare) -> None:
        """Adds this shard's share of a step's seconds."""
        for phase, seconds in step.phases.items():
            if phase != "load":
                self._seconds[phase] += seconds * (share.prefill if phase == "prefill" else share.round)
        self._slots = step.slots

    def add_round(self, step: StepReport, part: ShardRound, plan: SpeculationPlan | None = None) -> None:
        """Adds the work of a round on this shard's rows. `plan`: the plan in force during the round."""
        for source, counts in part.by_source.items():
            self._by_source[source] = self._by_source.get(source, _NO_COUNTS) + counts
        self._ngram_rows += (part.rows - part.plain_rows) * (step.proposer == "ngram")
        self._replay_rows += (part.rows - part.plain_rows) * (step.proposer in ("replay", "joined"))
        self._emitted_accepted += part.emitted_accepted_tokens
        self._preemptions += part.preemptions
        self._uncompiled += part.uncompiled_forwards
        for gap in part.gaps_s:
            self._itl.add(gap)
        if not part.rows:
            return
        seconds = max(0.0, step.seconds - step.phases.get("prefill", 0.0))
        for k, rows in ((step.k, part.rows - part.plain_rows), (0, part.plain_rows)):
            if rows:
                self._k_rows[k] = self._k_rows.get(k, 0) + rows
        self._rounds += 1
        self._round_s += seconds
        self._row_seconds += seconds * step.running
        if plan is not None:
            self._expected += seconds * plan.expected_tokens_per_s(step.running)
            self._last_plan = plan

    def add_completion(self, completion: Completion) -> None:
        """Adds the tokens and latencies of a finished row."""
        tokens = len(completion.token_ids)
        self._rows += 1
        self._failed += completion.finish_reason == "error"
        self._scored += completion.finish_reason == "scored"
        self._input_tokens += len(completion.request.prompt_token_ids)
        self._cached_tokens += completion.cached_tokens
        self._output_tokens += tokens
        self._scored_tokens += sum(score.num_tokens for score in completion.scores)
        self._followed += completion.followed_tokens
        if completion.request.reference and tokens:
            self._rows_by_followed = self._rows_by_followed or [0] * FOLLOWED_SHARES
            share = FOLLOWED_SHARES * completion.followed_tokens // tokens
            self._rows_by_followed[min(share, FOLLOWED_SHARES - 1)] += 1
        timing = completion.timing
        if tokens:
            self._ttft.add(timing.first_token_s)
        if tokens > 1:
            self._tpot.add(max(0.0, timing.last_token_s - timing.first_token_s) / (tokens - 1))

    def record(
        self,
        *,
        run_id: str,
        shard: int,
        attempt: int,
        epoch: int,
        worker: str,
        plan: SpeculationPlan,
        synthetic: bool,
        started_at: float,
        finished_at: float,
        load_s: float,
    ) -> ShardRecord:
        """Returns the finished record. `load_s`: seconds of reading and tokenizing this shard."""
        counts = sum(self._by_source.values(), AcceptanceCounts())
        busy = sum(self._seconds.values())
        widest = max(self._k_rows, default=-1)
        last = self._last_plan or plan
        return ShardRecord(
            run_id=run_id,
            shard=shard,
            attempt=attempt,
            epoch=epoch,
            worker=worker,
            started_at=started_at,
            finished_at=finished_at,
            rows=self._rows,
            failed_rows=self._failed,
            input_tokens=self._input_tokens,
            cached_tokens=self._cached_tokens,
            output_tokens=self._output_tokens,
            scored_rows=self._scored,
            scored_tokens=self._scored_tokens,
            drafts=counts.drafts,
            draft_tokens=counts.draft_tokens,
            accepted_tokens=counts.accepted_tokens,
            recovered_tokens=counts.recovered_tokens,
            bonus_tokens=counts.bonus_tokens,
            proposed_per_position=counts.proposed_per_position,
            reached_per_position=counts.reached_per_position,
            accepted_per_position=counts.accepted_per_position,
            emitted_accepted_tokens=self._emitted_accepted,
            ngram_row_rounds=self._ngram_rows,
            replay_row_rounds=self._replay_rows,
            **source_fields(self._by_source),
            followed_tokens=self._followed,
            rows_by_followed_share=tuple(self._rows_by_followed),
            k_histogram=tuple(self._k_rows.get(k, 0) for k in range(widest + 1)),
            queue_depth=plan.queue_depth,
            plan_proposer=plan.proposer,
            plan_reason=plan.reason,
            last_plan_reason=last.reason,
            last_plan_k=max(last.ks),
            expected_tokens_per_s=self._expected / self._round_s if self._round_s else 0.0,
            synthetic=synthetic,
            slots=self._slots,
            mean_occupancy=self._row_seconds / self._round_s if self._round_s else 0.0,
            preemptions=self._preemptions,
            uncompiled_forwards=self._uncompiled,
            rounds=self._rounds,
            round_ms=1e3 * self._round_s / self._rounds if self._rounds else 0.0,
            busy_s=busy,
            load_s=load_s,
            prefill_s=self._seconds["prefill"],
            draft_s=self._seconds["draft"],
            verify_s=self._seconds["verify"],
            sample_s=self._seconds["sample"],
            host_s=self._seconds["host"],
            tokens_per_s=self._output_tokens / busy if busy else 0.0,
            ttft=self._ttft,
            tpot=self._tpot,
            itl=self._itl,
        )

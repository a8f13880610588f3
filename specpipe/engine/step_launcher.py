"""Queues the device work of one step: prefill chunks, then a round."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specpipe.engine.accounting import ShardTally
from specpipe.engine.device.device_clock import DeviceClock, Mark
from specpipe.engine.device.graph_capture import GraphCapture
from specpipe.engine.forward.graphed_prefill import Prefills
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.rounds.graphed_rounds import Rounds
from specpipe.engine.state.chunks import Chunk, total_tokens
from specpipe.engine.state.in_flight import StepInFlight, StepLaunch, copy_to_host
from specpipe.engine.state.row_state import RowState
from specpipe.engine.state.scheduler import Scheduler
from specpipe.engine.state.slot_state import SlotState
from specpipe.engine.step_chooser import StepChooser


class StepLauncher:
    """Launches what the `StepChooser` decides, and keeps rows and slots up to date with it. Never waits."""

    def __init__(
        self,
        target: ModelRunner,
        draft: ModelRunner | None,
        *,
        scheduler: Scheduler,
        chooser: StepChooser,
        state: SlotState,
        clock: DeviceClock,
        rounds: Rounds,
        prefills: Prefills,
        graph_capture: GraphCapture | None,
    ) -> None:
        """graph_capture: None on a CPU."""
        self._target, self._draft = target, draft
        self._scheduler, self._chooser, self._state, self._clock = scheduler, chooser, state, clock
        self.rounds, self.prefills, self._graph_capture = rounds, prefills, graph_capture

    @property
    def graphs_captured(self) -> int:
        """Graphs captured so far, by `prepare` or on first use."""
        return 0 if self._graph_capture is None else self._graph_capture.captures

    def launch(self, tally: dict[int, ShardTally]) -> StepInFlight | None:
        """Queues the step's prefill and round; returns None where there is neither. tally: a defaultdict by shard."""
        prefill, scores = self._prefill(tally)
        rows = self._chooser.rows()
        if rows:
            return self._launch_round(rows, prefill, scores)
        if not prefill.prefilled:
            return None
        return copy_to_host(prefill, self._clock.stamps.new_empty(0, 5), scores, self._clock.stamps)

    def activate(self, rows: Sequence[RowState]) -> None:
        """Makes prefilled rows that generate take part in rounds."""
        slots = [row.slot for row in rows if row.window is None]
        if slots:
            self._state.activate(slots)

    def _prefill(self, tally: dict[int, ShardTally]) -> tuple[StepLaunch, Tensor]:
        """Prefills at most a budget's tokens for each model. Returns the scores of `prefill` beside the launch."""
        scores = torch.empty(0, 2)
        scored: list[tuple[RowState, int]] = []
        rows = self._scheduler.rows
        chunks = self._target_chunks()
        draft_chunks = self._chooser.draft_chunks()
        if not chunks and not draft_chunks and self._copy_tails():
            chunks = self._target_chunks()  # of score rows that have their prompt now
        if not chunks and not draft_chunks:
            return StepLaunch(), scores
        self._clock.mark(Mark.PREFILL_BEGIN)
        if chunks:
            counts = [rows[c.slot].scored_before(c.stop) - rows[c.slot].scored_before(c.start) for c in chunks]
            scored = [(rows[chunk.slot], count) for chunk, count in zip(chunks, counts, strict=True) if count]
            scores = self.prefills.run(self._target, chunks, self._chooser.prefill_groups(chunks), counts)
            self._scheduler.prefills.target_prefilled(chunks)
            for chunk in chunks:
                tally[rows[chunk.slot].request.shard].prefill_tokens += chunk.stop - chunk.start
            self.activate([rows[c.slot] for c in chunks if rows[c.slot].prefilled])
        self._clock.mark(Mark.TARGET_PREFILLED)
        if self._draft is not None and draft_chunks:
            self._prefill_draft(self._draft, draft_chunks)
        self._copy_tails()
        self._clock.mark(Mark.PREFILLED)
        return StepLaunch(prefilled=True, draft_prefill_tokens=total_tokens(draft_chunks), scored=scored), scores

    def _prefill_draft(self, draft: ModelRunner, chunks: list[Chunk]) -> None:
        self.prefills.run(draft, chunks, self._chooser.prefill_groups(chunks))
        slots = self._state.upload([c.slot for c in chunks])
        self._state.draft_valid[slots] = self._state.upload([c.stop for c in chunks])
        self._scheduler.prefills.draft_prefilled(chunks)

    def _target_chunks(self) -> list[Chunk]:
        """Returns what the target prefills in this step, less the beginnings of pages that it copies first."""
        copies = self._scheduler.prefills.copy_beginnings()
        if copies:
            self._target.copy_pages(*self._state.upload(copies).unbind(1))
        return self._scheduler.prefills.target_chunks(self._scheduler.config.prefill_budget)

    def _copy_tails(self) -> bool:
        """Copies prompts' last pages to rows with equal prompts, which then take part in rounds or are scored.

        Returns True if there were any.
        """
        copies = self._scheduler.prefills.copy_tails()
        if not copies.rows:
            return False
        for runner, pages in ((self._target, copies.target), (self._draft, copies.draft)):
            if runner is not None and pages:
                runner.copy_pages(*self._state.upload(pages).unbind(1))
        slots = self._state.upload([row.slot for row in copies.rows])
        self._state.draft_valid[slots] = self._state.upload([row.draft_valid for row in copies.rows])
        self.activate(copies.rows)
        return True

    def _launch_round(self, rows: list[RowState], prefill: StepLaunch, scores: Tensor) -> StepInFlight:
        captures, groups = self.graphs_captured, self._chooser.groups(rows)
        key = self._chooser.key(rows, shared=groups is not None)
        packed = self.rounds.run([row.slot for row in rows], key, groups)
        self._chooser.rounds += 1
        launch = prefill._replace(
            rows=rows,
            k=key.k,
            proposer=key.proposer,
            saved_pages=0 if groups is None else groups.saved_pages,
            captured_graph=self.graphs_captured != captures,
            draft_behind=self._scheduler.prefills.draft_behind(rows) / len(rows),
        )
        return copy_to_host(launch, packed, scores, self._clock.stamps)

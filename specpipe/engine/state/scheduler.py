"""Queue of rows, slots and KV pages. Host only; touches no device memory."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from specpipe.core import Completion, EngineConfig, Request, SpeculationPlan, admission_batch
from specpipe.engine.state.page_allocator import PageAllocator
from specpipe.engine.state.prefill_planner import PrefillPlanner
from specpipe.engine.state.prefix_sharing import PrefixSharing
from specpipe.engine.state.prefix_tree import PrefixKeys
from specpipe.engine.state.row_state import RowState
from specpipe.engine.state.scored_rows import ScoredRequest
from specpipe.engine.state.siblings import Siblings
from specpipe.engine.state.slot_state import MAX_STOP_TOKENS, Admission, PageGrants
from specpipe.engine.state.submission_order import submission_order
from specpipe.engine.state.text_decoder import TextDecoder


class PageChanges(NamedTuple):
    """Changes of page ownership before a round."""

    grants: PageGrants
    preempted: list[RowState]
    """Rows that lost slot and pages and wait again, youngest first."""


class Scheduler:
    """Assigns slots and KV pages to rows, first come, first served.

    Of rows submitted together those that may grow longest come first, so that the last ones to run are short and slots
    do not stand empty beside a few long rows (longest processing time first: Graham, "Bounds on Multiprocessing Timing
    Anomalies", 1969), and rows with a common prefix are neighbours. No later submission overtakes an earlier one.

    Rows whose tokens begin with the same pages share them (`PrefixSharing`, `PrefillPlanner`). `submit` may run on
    another thread: it only queues rows. Everything else belongs to the engine's thread.

    A row gets a slot with pages for its tokens and the rounds ahead, and more as it grows. When pages run out, the
    youngest row gives its own back and is recomputed later. Rows that wait are younger than all that run, and `rows` is
    in order of age: so the oldest row always continues, and it fits alone (`_refusal`).
    """

    def __init__(self, config: EngineConfig, pages: PageAllocator, decoder: TextDecoder, *, lookahead: int) -> None:
        """lookahead: tokens beyond a row's known length that rounds may write before `assign_pages` runs again."""
        self.config = config
        self.pages = pages
        self._lookahead = lookahead
        self.plan: SpeculationPlan | None = None
        self.rows: dict[int, RowState] = {}
        """Rows that hold a slot, by slot, oldest first."""
        self._decoder = decoder
        self._free_slots = list(range(config.slots - 1, -1, -1))
        self._prefixes = PrefixSharing(config, pages)
        self._siblings = Siblings()
        self.prefills = PrefillPlanner(config, self.rows, pages)
        self._waiting: deque[RowState] = deque()
        self._submitted: list[tuple[RowState, PrefixKeys]] = []
        """Rows that `admit` has not seen yet."""
        self._refused: list[Completion] = []
        self._lock = threading.Lock()
        """Guards what `submit` changes: plan, submitted and refused rows."""

    @property
    def waiting(self) -> int:
        """Number of rows without a slot."""
        return len(self._waiting) + len(self._submitted)

    def submit(self, requests: Sequence[Request], plan: SpeculationPlan) -> None:
        """Queues rows; may be called from any thread. The newest plan is valid for every row."""
        now = time.perf_counter()
        refused: list[Completion] = []
        accepted: list[Request] = []
        for request in requests:
            reason = self._refusal(request)
            if reason:
                refused.append(Completion(request=request, finish_reason="error", error=reason))
            else:
                accepted.append(request)
        states = [row for request in accepted for row in self._rows_of(request, now)]
        keys = [self._prefixes.keys(row) for row in states]
        rows = [(states[i], keys[i]) for i in submission_order([row.request for row in states], keys)]
        with self._lock:
            self.plan = plan
            self._refused += refused
            self._submitted += rows

    def _rows_of(self, request: Request, now: float) -> Iterator[RowState]:
        """Yields the row of a request that generates, or one for each window of a score row."""
        if not request.continuations:
            yield RowState(request, submitted_at=now, decoder=self._decoder)
            return
        for window in ScoredRequest(request, self.config.max_model_len, now).windows:
            part = dataclasses.replace(request, prompt_token_ids=window.window.context)
            yield RowState(part, submitted_at=now, decoder=self._decoder, window=window)

    def _refusal(self, request: Request) -> str:
        """Returns why the row can never run, as an error message, or ""."""
        prompt, sampling, config = len(request.prompt_token_ids), request.sampling, self.config
        if prompt == 0:
            return "the prompt has no tokens; expected at least one"
        if request.continuations:
            return self._score_refusal(request)
        if prompt + sampling.max_new_tokens > config.max_model_len:
            return (
                f"prompt of {prompt} tokens + max_new_tokens {sampling.max_new_tokens} is over the limit of "
                f"{config.max_model_len}; shorten the prompt or lower max_new_tokens"
            )
        needed, total = self._pages_for(prompt + sampling.max_new_tokens), self.pages.num_pages - 1
        if needed > total:
            max_tokens = total * config.page_size
            remedy = (
                f"lower max_new_tokens to {max_tokens - prompt} or less"
                if max_tokens > prompt
                else "the prompt alone is too long"
            )
            return (
                f"prompt of {prompt} tokens + max_new_tokens {sampling.max_new_tokens} needs {needed} KV pages of "
                f"{config.page_size} tokens; this worker has memory for {total}: {remedy}"
            )
        if len(sampling.stop_token_ids) > MAX_STOP_TOKENS:
            return f"{len(sampling.stop_token_ids)} stop_token_ids given; expected at most {MAX_STOP_TOKENS}"
        return ""

    def _score_refusal(self, request: Request) -> str:
        """Returns why a score row can never run, as an error message, or ""."""
        longest = len(request.prompt_token_ids) + max(map(len, request.continuations))
        tokens, total = min(longest, self.config.max_model_len + 1), self.pages.num_pages - 1
        if min(map(len, request.continuations)) == 0:
            return "a continuation has no tokens; expected at least one"
        if self._pages_for(tokens) > total:
            return (
                f"prompt and continuation of {tokens} tokens need {self._pages_for(tokens)} KV pages of "
                f"{self.config.page_size} tokens; this worker has memory for {total}: lower model.max_model_len"
            )
        return ""

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.config.page_size)

    def _required_capacity(self, row: RowState) -> int:
        """Returns the tokens that the row's pages have to hold before the next round is launched."""
        # Drafts past the limit need no page: their table entries point at the trash page.
        return min(row.length + self._lookahead, row.limit)

    def take_refused(self) -> list[Completion]:
        """Returns the completions of rows that can never run, each once."""
        with self._lock:
            refused, self._refused = self._refused, []
        return refused

    def admit(self) -> list[Admission]:
        """Assigns slots and pages to waiting rows, in order, while both last.

        Rows are admitted several at once where there are many slots (`admission_batch`). One page stays free for every
        running row that may still need one: a row that is preempted soon after its prefill costs more than it gains.
        """
        self._queue_submitted()
        min_slots = min(len(self._waiting), admission_batch(self.config.slots)) if self.rows else 1
        if not self._waiting or len(self._free_slots) < min_slots:
            return []
        now = time.perf_counter()
        admitted: list[Admission] = []
        growing = sum(row.capacity < row.limit for row in self.rows.values())
        while self._waiting and self._free_slots:
            row = self._waiting[0]
            in_use = sum(node.refs > 0 for node in row.prefix)
            if not self.pages.can_allocate(self._pages_for(self._required_capacity(row)) - in_use + growing):
                break
            self._waiting.popleft()
            speculates = self.plan is None or self.plan.speculates(len(self.rows) + 1)
            if row.admitted_at is None and self.config.replay_k:
                self._siblings.start(row)
            row.start(self._free_slots.pop(), now, speculates=speculates)
            self.rows[row.slot] = row
            self._prefixes.start(row)
            _, pages = self._grow(row)
            growing += row.capacity < row.limit
            shared = tuple(node.page for node in row.prefix)
            admitted.append(
                Admission(
                    slot=row.slot,
                    request=row.request,
                    pages=shared + pages,
                    speculates=speculates,
                    generated=row.scored or tuple(row.generated),
                    reference=row.reference,
                    limit=row.limit,
                )
            )
        return admitted

    def _queue_submitted(self) -> None:
        """Moves submitted rows to the end of the queue."""
        with self._lock:
            submitted, self._submitted = self._submitted, []
        for row, keys in submitted:
            self._prefixes.wait(row, keys)
            if self.config.replay_k:
                self._siblings.wait(row)
            self._waiting.append(row)

    def _grow(self, row: RowState) -> tuple[int, tuple[int, ...]]:
        """Allocates the pages that the row lacks.

        Returns the index of the first new entry of its block table, and the new pages.
        """
        first = len(row.prefix) + len(self.pages.held(row.slot))
        pages = self.pages.allocate(row.slot, self._pages_for(self._required_capacity(row)) - first)
        row.capacity = (first + len(pages)) * self.config.page_size
        return first, pages

    def assign_pages(self) -> PageChanges:
        """Allocates the pages that the next round may write, oldest row first; preempts rows where there are none."""
        changes = PageChanges(PageGrants([], [], []), [])
        for row in list(self.rows.values()):
            required = self._required_capacity(row)
            if required <= row.capacity or self.rows.get(row.slot) is not row:
                continue
            missing = self._pages_for(required - row.capacity)
            while self.rows.get(row.slot) is row and not self.pages.can_allocate(missing):
                changes.preempted.append(self._preempt_youngest())
            if self.rows.get(row.slot) is row:
                first, pages = self._grow(row)
                changes.grants.slots.extend([row.slot] * len(pages))
                changes.grants.columns.extend(range(first, first + len(pages)))
                changes.grants.pages.extend(pages)
        return changes

    def _preempt_youngest(self) -> RowState:
        """Takes slot and pages from the youngest row, which waits again; the pages that it computed stay cached."""
        row = next(reversed(self.rows.values()))
        waiting = row.restarted()
        self._prefixes.preempt(row, waiting)
        self._free_slot(row)
        self._waiting.appendleft(waiting)
        return row

    def release(self, row: RowState) -> None:
        """Frees the row's slot and pages. Rounds in flight may still write them, but no round launched from now on."""
        self._prefixes.leave(row)
        if self.config.replay_k:
            self._siblings.finish(row)
        self._free_slot(row)

    def _free_slot(self, row: RowState) -> None:
        del self.rows[row.slot]
        self._free_slots.append(row.slot)

    def check_integrity(self) -> None:
        """Raises AssertionError unless slots, pages, prefixes and the order of rows are consistent."""
        self.pages.check_integrity()
        slots = sorted([*self.rows, *self._free_slots])
        assert slots == list(range(self.config.slots)), "a slot is lost, held twice or free while held"
        assert all(slot == row.slot for slot, row in self.rows.items())
        for row in self.rows.values():
            pages = len(row.prefix) + len(self.pages.held(row.slot))
            assert row.capacity == pages * self.config.page_size
        ages = [row.submitted_at for row in (*self.rows.values(), *self._waiting)]
        assert ages == sorted(ages), "a younger row came before an older one"
        self._prefixes.check_integrity(self.rows.values(), self._waiting)

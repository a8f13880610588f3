"""Who waits, who holds a slot, and what is prefilled next. Host only; touches no device memory."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from specpipe.core import Completion, EngineConfig, Request, SpeculationPlan, admission_batch
from specpipe.engine.state.chunks import Chunk
from specpipe.engine.state.page_allocator import PageAllocator
from specpipe.engine.state.row_state import RowState
from specpipe.engine.state.slot_state import MAX_STOP_TOKENS, Admission, PageGrants
from specpipe.engine.state.text_decoder import TextDecoder


class Room(NamedTuple):
    """How pages changed hands before a round."""

    grants: PageGrants
    preempted: list[RowState]
    """Rows that lost slot and pages and wait again, youngest first."""


class Scheduler:
    """First come, first served; of rows submitted together those that may grow longest come first, so that the last
    ones to run are short and slots do not stand empty beside a few long rows (longest processing time first: Graham,
    "Bounds on Multiprocessing Timing Anomalies", 1969). No later submission overtakes an earlier one.

    A row gets a slot with pages for its tokens and the rounds ahead, and more as it grows. When pages run out the
    youngest row gives its own back and is recomputed later. Rows that wait are younger than all that run, and `rows` is
    in order of age: so the oldest row always goes on, and it fits alone (`_problem`).
    """

    def __init__(self, config: EngineConfig, pages: PageAllocator, decoder: TextDecoder, *, reach: int) -> None:
        """reach: tokens beyond a row's known length that rounds may write before the host asks for pages again."""
        self.config = config
        self.pages = pages
        self._reach = reach
        self.plan: SpeculationPlan | None = None
        self.rows: dict[int, RowState] = {}
        self._decoder = decoder
        self._free_slots = list(range(config.slots - 1, -1, -1))
        self._waiting: deque[RowState] = deque()
        self._refused: list[Completion] = []
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(self, requests: Sequence[Request], plan: SpeculationPlan) -> None:
        """From any thread. The newest plan rules every row."""
        now = time.perf_counter()
        with self._lock:
            self.plan = plan
            for request in sorted(requests, key=lambda r: -r.sampling.max_new_tokens):
                problem = self._problem(request)
                if problem:
                    self._refused.append(Completion(request=request, finish_reason="error", error=problem))
                else:
                    self._waiting.append(RowState(request, submitted_at=now, decoder=self._decoder))

    def _problem(self, request: Request) -> str:
        prompt, sampling, config = len(request.prompt_token_ids), request.sampling, self.config
        if prompt == 0:
            return "the prompt has no tokens; expected at least one"
        if prompt + sampling.max_new_tokens > config.max_model_len:
            return (
                f"prompt of {prompt} tokens + max_new_tokens {sampling.max_new_tokens} is over the limit of "
                f"{config.max_model_len}; shorten the prompt or lower max_new_tokens"
            )
        wanted, there = self._pages_for(prompt + sampling.max_new_tokens), self.pages.num_pages - 1
        if wanted > there:
            most = there * config.page_size
            mend = (
                f"lower max_new_tokens to {most - prompt} or less" if most > prompt else "the prompt alone is too long"
            )
            return (
                f"prompt of {prompt} tokens + max_new_tokens {sampling.max_new_tokens} needs {wanted} KV pages of "
                f"{config.page_size} tokens; this worker has memory for {there}: {mend}"
            )
        if len(sampling.stop_token_ids) > MAX_STOP_TOKENS:
            return f"{len(sampling.stop_token_ids)} stop_token_ids given; expected at most {MAX_STOP_TOKENS}"
        return ""

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.config.page_size)

    def _wanted(self, row: RowState) -> int:
        """Tokens that the row's pages have to hold before the next round is launched."""
        # Drafts past the limit need no page: their table entries point at the trash page.
        return min(row.length + self._reach, row.limit)

    def take_refused(self) -> list[Completion]:
        with self._lock:
            refused, self._refused = self._refused, []
        return refused

    def admit(self) -> list[Admission]:
        """Gives slots and pages to waiting rows, in order, while both last.

        Rows are admitted by several at once where there are many slots. One page stays free for every running row that
        may still need one: a row that is preempted soon after its prefill has cost more than it gained.
        """
        now = time.perf_counter()
        admitted: list[Admission] = []
        with self._lock:
            fewest = min(len(self._waiting), admission_batch(self.config.slots)) if self.rows else 1
            if not self._waiting or len(self._free_slots) < fewest:
                return []
            growing = sum(row.capacity < row.limit for row in self.rows.values())
            while self._waiting and self._free_slots:
                row = self._waiting[0]
                if not self.pages.can_allocate(self._pages_for(self._wanted(row)) + growing):
                    break
                self._waiting.popleft()
                row.start(self._free_slots.pop(), now)
                self.rows[row.slot] = row
                _, pages = self._grow(row)
                growing += row.capacity < row.limit
                admitted.append(
                    Admission(slot=row.slot, request=row.request, pages=pages, generated=tuple(row.generated))
                )
        return admitted

    def _grow(self, row: RowState) -> tuple[int, tuple[int, ...]]:
        """→ the pages that the row lacks, and which entry of its block table the first of them is."""
        first = len(self.pages.held(row.slot))
        pages = self.pages.allocate(row.slot, self._pages_for(self._wanted(row)) - first)
        row.capacity = (first + len(pages)) * self.config.page_size
        return first, pages

    def make_room(self) -> Room:
        """Gives running rows the pages that the next round may write, oldest first; preempts where there are none."""
        room = Room(PageGrants([], [], []), [])
        for row in list(self.rows.values()):
            wanted = self._wanted(row)
            if wanted <= row.capacity or self.rows.get(row.slot) is not row:
                continue
            missing = self._pages_for(wanted) - len(self.pages.held(row.slot))
            while self.rows.get(row.slot) is row and not self.pages.can_allocate(missing):
                room.preempted.append(self._preempt_youngest())
            if self.rows.get(row.slot) is row:
                first, pages = self._grow(row)
                room.grants.slots.extend([row.slot] * len(pages))
                room.grants.columns.extend(range(first, first + len(pages)))
                room.grants.pages.extend(pages)
        return room

    def _preempt_youngest(self) -> RowState:
        row = next(reversed(self.rows.values()))
        self.release(row)
        with self._lock:
            self._waiting.appendleft(row.again())
        return row

    def release(self, row: RowState) -> None:
        """The row loses its slot and pages; rounds in flight may still write them, before any that is launched now."""
        del self.rows[row.slot]
        self.pages.release(row.slot)
        self._free_slots.append(row.slot)

    def target_chunks(self) -> list[Chunk]:
        """Tokens that the target has not seen; the last one is fed by the row's first round."""
        return [Chunk(row.slot, row.target_done, row.context - 1) for row in self.rows.values() if not row.prefilled]

    def draft_chunks(self, plain_in_flight: int) -> list[Chunk]:
        """Tokens that the draft is behind by, for rows that have drafts to gain. plain_in_flight: rounds without drafts
        that were launched and not read, each of which puts every row a token further behind.

        A round in flight may commit one more token, which a speculating row's first draft step feeds itself. Rows that
        the target is prefilled for come first and in its order: under a fixed K they draft from their first round on,
        whatever runs beside them, which `standard` and `block` need to draw the same tokens again. Behind them those
        that fell behind while K was 0, the ones nearest to drafting first.
        """
        chunks = [
            (row.prefilled, Chunk(row.slot, row.draft_done, row.length - 1))
            for row in self.rows.values()
            if not row.draft_ready(plain_in_flight) and row.limit - row.length > 1
        ]
        behind = sorted((c for prefilled, c in chunks if prefilled), key=lambda chunk: chunk.stop - chunk.start)
        return [c for prefilled, c in chunks if not prefilled] + behind

    def check_integrity(self) -> None:
        self.pages.check_integrity()
        slots = sorted([*self.rows, *self._free_slots])
        assert slots == list(range(self.config.slots)), "a slot is lost, held twice or free while held"
        assert all(slot == row.slot for slot, row in self.rows.items())
        for row in self.rows.values():
            assert row.capacity == len(self.pages.held(row.slot)) * self.config.page_size
        ages = [row.submitted_at for row in (*self.rows.values(), *self._waiting)]
        assert ages == sorted(ages), "a younger row came before an older one"

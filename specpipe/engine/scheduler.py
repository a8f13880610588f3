"""Who waits, who holds a slot, and what is prefilled next. Host only; touches no device memory."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from specpipe.core import Completion, EngineConfig, Request, SpeculationPlan
from specpipe.engine.pages import PageAllocator
from specpipe.engine.prefill import Chunk
from specpipe.engine.rows import Row, TextDecoder
from specpipe.engine.slots import MAX_STOP_TOKENS, Admission


class Scheduler:
    """First come, first served. A row gets a slot together with every page that it can ever need."""

    def __init__(self, config: EngineConfig, pages: PageAllocator, decoder: TextDecoder) -> None:
        self.config = config
        self.pages = pages
        self.plan: SpeculationPlan | None = None
        self.rows: dict[int, Row] = {}
        self._decoder = decoder
        self._free_slots = list(range(config.slots - 1, -1, -1))
        self._waiting: deque[tuple[Request, float]] = deque()
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
            for request in requests:
                problem = self._problem(request)
                if problem:
                    self._refused.append(Completion(request=request, finish_reason="error", error=problem))
                else:
                    self._waiting.append((request, now))

    def _problem(self, request: Request) -> str:
        prompt, sampling, config = len(request.prompt_token_ids), request.sampling, self.config
        if prompt == 0:
            return "the prompt has no tokens; expected at least one"
        if prompt + sampling.max_new_tokens > config.max_model_len:
            return (
                f"prompt of {prompt} tokens + max_new_tokens {sampling.max_new_tokens} is over the limit of "
                f"{config.max_model_len}; shorten the prompt or lower max_new_tokens"
            )
        wanted, there = self._pages_for(request), self.pages.num_pages - 1
        if wanted > there:
            return (
                f"prompt of {prompt} tokens + max_new_tokens {sampling.max_new_tokens} needs {wanted} KV pages of "
                f"{config.page_size} tokens; this worker has {there}; lower max_new_tokens"
            )
        if len(sampling.stop_token_ids) > MAX_STOP_TOKENS:
            return f"{len(sampling.stop_token_ids)} stop_token_ids given; expected at most {MAX_STOP_TOKENS}"
        return ""

    def _pages_for(self, request: Request) -> int:
        # Drafts past the limit need no page: their table entries point at the trash page.
        return -(-(len(request.prompt_token_ids) + request.sampling.max_new_tokens) // self.config.page_size)

    def take_refused(self) -> list[Completion]:
        with self._lock:
            refused, self._refused = self._refused, []
        return refused

    def admit(self) -> list[Admission]:
        """Gives slots and pages to waiting rows, in order, while both last.

        Rows are admitted by several at once where there are many slots: a prefill of one row costs a pass over all
        weights, as one of ten rows does.
        """
        now = time.perf_counter()
        admitted: list[Admission] = []
        with self._lock:
            if self.rows and len(self._free_slots) < min(len(self._waiting), self.config.slots // 32):
                return []
            while self._waiting and self._free_slots:
                request, submitted_at = self._waiting[0]
                if not self.pages.can_allocate(self._pages_for(request)):
                    break
                self._waiting.popleft()
                slot = self._free_slots.pop()
                pages = self.pages.allocate(slot, self._pages_for(request))
                self.rows[slot] = Row(request, slot, submitted_at=submitted_at, now=now, decoder=self._decoder)
                admitted.append(Admission(slot=slot, request=request, pages=pages))
        return admitted

    def release(self, row: Row) -> None:
        del self.rows[row.slot]
        self.pages.release(row.slot)
        self._free_slots.append(row.slot)

    def target_chunks(self) -> list[Chunk]:
        """Prompt tokens that the target has not seen; the last one is fed by the row's first round."""
        return [
            Chunk(row.slot, row.target_done, len(row.request.prompt_token_ids) - 1)
            for row in self.rows.values()
            if not row.prefilled
        ]

    def draft_chunks(self) -> list[Chunk]:
        """Tokens that the draft is behind by, for rows that have drafts to gain.

        A round in flight may commit one more token, which a speculating row's first draft step feeds itself.
        """
        return [
            Chunk(row.slot, row.draft_done, row.length - 1)
            for row in self.rows.values()
            if row.draft_done < row.length - 2 and row.limit - row.length > 1
        ]

    def check_integrity(self) -> None:
        self.pages.check_integrity()
        slots = sorted([*self.rows, *self._free_slots])
        assert slots == list(range(self.config.slots)), "a slot is lost, held twice or free while held"
        assert all(slot == row.slot for slot, row in self.rows.items())

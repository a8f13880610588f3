"""Queue of rows, slots and KV pages, and what is prefilled next. Host only; touches no device memory."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from specpipe.core import Completion, EngineConfig, Request, SpeculationPlan, admission_batch
from specpipe.engine.state.chunks import Chunk, MissingTokens, Validity, plan_chunks
from specpipe.engine.state.page_allocator import PageAllocator
from specpipe.engine.state.prefix_tree import PrefixKeys, PrefixTail, PrefixTree, prefix_keys
from specpipe.engine.state.row_state import RowState
from specpipe.engine.state.slot_state import MAX_STOP_TOKENS, Admission, PageGrants
from specpipe.engine.state.submission_order import submission_order
from specpipe.engine.state.text_decoder import TextDecoder


class PageChanges(NamedTuple):
    """Changes of page ownership before a round."""

    grants: PageGrants
    preempted: list[RowState]
    """Rows that lost slot and pages and wait again, youngest first."""


class TailCopies(NamedTuple):
    """Pages to copy so that rows have the rest of a prompt that another row has computed."""

    rows: list[RowState]
    target: list[tuple[int, int]]
    """Source and destination in the target's KV, one pair a row."""
    draft: list[tuple[int, int]]
    """Source and destination in the draft model's KV, for rows whose source has it."""


class Scheduler:
    """Assigns slots and KV pages to rows, first come, first served.

    Of rows submitted together those that may grow longest come first, so that the last ones to run are short and slots
    do not stand empty beside a few long rows (longest processing time first: Graham, "Bounds on Multiprocessing Timing
    Anomalies", 1969), and rows with a common prefix are neighbours. No later submission overtakes an earlier one.

    Rows whose tokens begin with the same pages share them (`PrefixTree`). Pages of a prompt are computed once: by the
    oldest row that needs them, and rows behind it leave them out (`plan_chunks`). `submit` may run on another thread;
    it only queues rows, and everything else, the tree among it, belongs to the engine's thread.

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
        self._prefixes = PrefixTree()
        self._waiting: deque[RowState] = deque()
        self._prefilling: list[RowState] = []
        """Rows that lacked KV of the target when `target_chunks` was called."""
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
        keys = [self._keys(request.prompt_token_ids) for request in accepted]
        rows = [
            (RowState(accepted[i], submitted_at=now, decoder=self._decoder), keys[i])
            for i in submission_order(accepted, keys)
        ]
        with self._lock:
            self.plan = plan
            self._refused += refused
            self._submitted += rows

    def _keys(self, tokens: Sequence[int]) -> PrefixKeys:
        """Returns what a row with these tokens can share."""
        return prefix_keys(tokens, self.config.page_size) if self.config.share_prefixes else PrefixKeys()

    def _refusal(self, request: Request) -> str:
        """Returns why the row can never run, as an error message, or ""."""
        prompt, sampling, config = len(request.prompt_token_ids), request.sampling, self.config
        if prompt == 0:
            return "the prompt has no tokens; expected at least one"
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
            row.start(self._free_slots.pop(), now, speculates=speculates)
            self.rows[row.slot] = row
            self._share_prefix(row)
            _, pages = self._grow(row)
            growing += row.capacity < row.limit
            shared = tuple(node.page for node in row.prefix)
            admitted.append(
                Admission(
                    slot=row.slot,
                    request=row.request,
                    pages=shared + pages,
                    speculates=speculates,
                    generated=tuple(row.generated),
                )
            )
        return admitted

    def _queue_submitted(self) -> None:
        """Moves submitted rows to the end of the queue."""
        with self._lock:
            submitted, self._submitted = self._submitted, []
        for row, keys in submitted:
            row.prefix = self._prefixes.chain(keys.pages)
            row.tail = self._prefixes.tail(row.prefix, keys.tail, row.length)
            self._await_prefix(row)
            self._waiting.append(row)

    def _await_prefix(self, row: RowState) -> None:
        """Records that a waiting row needs its prefix and tail."""
        self.pages.await_chain(row.prefix)
        if row.tail is not None:
            row.tail.pending += 1
            if row.tail.page:
                self.pages.touch(row.tail)

    def _share_prefix(self, row: RowState) -> None:
        """Gives a row that waited its part in prefix and tail."""
        self.pages.share(row.prefix)
        if row.tail is not None:
            row.tail.pending -= 1
            row.tail.running += 1
            if row.tail.page:
                self.pages.touch(row.tail)

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
        waiting.prefix = self._prefixes.chain(self._keys([*row.request.prompt_token_ids, *row.generated]).pages)
        if row.prefilled:
            self._hand_over(row, waiting)
        self._await_prefix(waiting)
        self.release(row)
        self._waiting.appendleft(waiting)
        return row

    def _hand_over(self, row: RowState, waiting: RowState) -> None:
        """Makes pages of generated tokens the pages of the nodes that the row will need again.

        Rounds in flight do not write them: nodes end two tokens before the row's known length.
        """
        own, size = len(row.prefix), self.config.page_size
        adopted = []
        target_valid = True  # up to the page before; a row that runs may be about to compute it
        draft_valid = not own or row.prefix[-1].draft_valid
        for i, node in enumerate(waiting.prefix[own:], start=own):
            if not node.page and target_valid:
                adopted.append(i)
                node.target_valid, node.draft_valid = True, draft_valid and row.draft_valid >= (i + 1) * size
            target_valid, draft_valid = node.target_valid, node.draft_valid
        for i in reversed(adopted):
            self.pages.adopt(waiting.prefix[i], row.slot, i - own)

    def release(self, row: RowState) -> None:
        """Frees the row's slot and pages. Rounds in flight may still write them, but no round launched from now on.

        Those rounds write no page of the row's prefix, which other rows may read, and nothing below the prompt's last
        token but what is there already: the first draft step feeds the token before it again.
        """
        del self.rows[row.slot]
        if row.tail is not None:
            self._leave_tail(row, row.tail)
        self.pages.release(row.slot)
        self.pages.unshare(row.prefix)
        self._free_slots.append(row.slot)

    def _leave_tail(self, row: RowState, tail: PrefixTail) -> None:
        """Ends the row's part in its tail. The last row that has it leaves its page to those that wait."""
        tail.running -= 1
        if row in tail.sources:
            tail.sources.remove(row)
            own = row.capacity // self.config.page_size - len(row.prefix)
            handed_over = len(self.pages.held(row.slot)) < own
            if tail.pending and not tail.sources and not tail.page and not handed_over:
                self.pages.adopt(tail, row.slot, 0)
                tail.draft_valid = row.draft_valid
        tail.remove_unused()

    def target_chunks(self, budget: int) -> list[Chunk]:
        """Returns at most `budget` tokens that the target's KV lacks, of the oldest rows first.

        A row's last token is fed by its first round.
        """
        self._prefilling = [row for row in self.rows.values() if not row.prefilled]
        missing = (MissingTokens(row, row.target_valid, row.prefill_length - 1) for row in self._prefilling)
        valid = Validity(attrgetter("target_valid"), lambda tail: bool(tail.sources or tail.page))
        return plan_chunks(missing, budget=budget, page_size=self.config.page_size, valid=valid)

    def draft_chunks(self, budget: int, plain_in_flight: int) -> list[Chunk]:
        """Returns at most `budget` tokens that the draft model's KV lacks, for rows that may still use drafts.

        plain_in_flight: rounds without drafts that were launched and not read; each puts every row a token further
        behind. A round in flight may commit one more token, which a speculating row's first draft step feeds itself.

        Rows that the target is being prefilled for come first and in its order: under a fixed K they draft from their
        first round on, whatever runs beside them, which `standard` and `block` need to draw the same tokens again.
        Behind them come rows that fell behind while K was 0, those with the fewest missing tokens first.
        """
        missing = [
            MissingTokens(row, row.draft_valid, row.length - 1)
            for row in self.rows.values()
            if not row.draft_ready(plain_in_flight) and row.may_draft
        ]
        behind = sorted((m for m in missing if m.row.prefilled), key=lambda m: m.stop - m.start)
        ordered = [m for m in missing if not m.row.prefilled] + behind
        valid = Validity(attrgetter("draft_valid"), self._draft_has)
        return plan_chunks(ordered, budget=budget, page_size=self.config.page_size, valid=valid)

    def _draft_has(self, tail: PrefixTail) -> bool:
        """Returns True if the draft model's KV of a tail can be copied."""
        return max([tail.draft_valid, *(row.draft_valid for row in tail.sources)]) >= tail.prompt_tokens - 2

    def target_prefilled(self, chunks: Sequence[Chunk]) -> None:
        """Records chunks of `target_chunks` as launched."""
        for slot, start, stop in chunks:
            row = self.rows[slot]
            self._target_has(row, start, stop)
            for node in row.prefix[start // self.config.page_size : stop // self.config.page_size]:
                node.target_valid = True

    def _target_has(self, row: RowState, start: int, stop: int) -> None:
        """Records that the target's KV of the row is valid below `stop`; what it lacked below `start` was shared."""
        if not row.generated:
            row.cached_tokens += start - row.target_valid
        row.target_valid = stop
        if row.tail is not None and row.prefilled:
            row.tail.sources.append(row)

    def draft_prefilled(self, chunks: Sequence[Chunk]) -> None:
        """Records chunks of `draft_chunks` as launched."""
        for slot, start, stop in chunks:
            row = self.rows[slot]
            row.draft_valid = stop
            for node in row.prefix[start // self.config.page_size : stop // self.config.page_size]:
                node.draft_valid = True

    def copy_tails(self) -> TailCopies:
        """Returns the pages to copy for rows whose prompt another row has computed, and records them as copied.

        Call it when the chunks of both models have been recorded. The draft model's part is copied where it is there.
        """
        copies = TailCopies([], [], [])
        for row in self._prefilling:
            tail = row.tail
            if row.prefilled or tail is None or (row.prefix and not row.prefix[-1].target_valid):
                continue
            if not (tail.sources or tail.page):
                continue
            start, stop = len(row.prefix) * self.config.page_size, row.prefill_length - 1
            source = max(tail.sources, key=attrgetter("draft_valid"), default=None)
            pages = (tail.page if source is None else self._first_own_page(source), self._first_own_page(row))
            copies.rows.append(row)
            copies.target.append(pages)
            draft_valid = min(tail.draft_valid if source is None else source.draft_valid, stop)
            if start < draft_valid > row.draft_valid and (not row.prefix or row.prefix[-1].draft_valid):
                copies.draft.append(pages)
                row.draft_valid = draft_valid
        for row in copies.rows:  # now, so that none of them was a source
            self._target_has(row, row.prefill_length - 1, row.prefill_length - 1)
        return copies

    def _first_own_page(self, row: RowState) -> int:
        return self.pages.held(row.slot)[0]

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
        self._check_prefixes()

    def _check_prefixes(self) -> None:
        """Raises AssertionError unless the nodes' counts are those of the rows and valid pages follow valid ones."""
        refs = Counter(node for row in self.rows.values() for node in row.prefix)
        pending = Counter(node for row in self._waiting for node in row.prefix)
        nodes = self._prefixes.nodes()
        assert refs.keys() | pending.keys() <= set(nodes), "a row's prefix is no part of the tree"
        running, waiting = list(self.rows.values()), list(self._waiting)
        for tail in (tail for node in [self._prefixes.root, *nodes] for tail in (node.tails or {}).values()):
            assert tail.running == sum(row.tail is tail for row in running)
            assert tail.pending == sum(row.tail is tail for row in waiting)
            assert set(tail.sources) == {row for row in running if row.tail is tail and row.prefilled}
            assert tail.page or tail.running or tail.pending, "a tail without use stays in the tree"
        for node in nodes:
            assert (node.refs, node.pending) == (refs[node], pending[node])
            assert node.page or not (node.refs or node.target_valid or node.draft_valid)
            assert node.page or node.pending or node.children or node.tails, "a node without use stays in the tree"
            parent = node.parent
            assert parent is not None
            if parent is not self._prefixes.root:
                assert parent.target_valid or not node.target_valid
                assert parent.draft_valid or not node.draft_valid
        for row in self.rows.values():
            for i, node in enumerate(row.prefix, start=1):
                end = i * self.config.page_size
                assert node.target_valid or row.target_valid < end
                assert node.draft_valid or row.draft_valid < end

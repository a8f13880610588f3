"""What each model prefills next, and what rows with a common beginning take from one another. Host only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from specpipe.core import EngineConfig
from specpipe.engine.state.chunks import Chunk, MissingTokens, Validity, plan_chunks
from specpipe.engine.state.page_allocator import PageAllocator
from specpipe.engine.state.prefix_tree import PrefixNode, PrefixTail, common_tokens
from specpipe.engine.state.row_state import RowState


class TailCopies(NamedTuple):
    """Pages to copy so that rows have the rest of a prompt that another row has computed."""

    rows: list[RowState]
    target: list[tuple[int, int]]
    """Source and destination in the target's KV, one pair a row."""
    draft: list[tuple[int, int]]
    """Source and destination in the draft model's KV, for rows whose source has it."""


class PrefillPlanner:
    """Plans prefills from what KV the rows lack, and records what was launched.

    A page of a prefix is computed once, by the oldest row that needs it: rows behind it leave it out (`plan_chunks`).
    """

    def __init__(self, config: EngineConfig, rows: Mapping[int, RowState], pages: PageAllocator) -> None:
        """rows: the rows that hold a slot, by slot, oldest first; it changes as rows come and go."""
        self._config, self._rows, self._pages = config, rows, pages
        self._prefilling: list[RowState] = []
        """Rows that lacked KV of the target when `target_chunks` was called."""

    def target_chunks(self, budget: int) -> list[Chunk]:
        """Returns at most `budget` tokens that the target's KV lacks, of the oldest rows first.

        A row's last token is fed by its first round.
        """
        self._prefilling = [row for row in self._rows.values() if not row.prefilled]
        missing = (MissingTokens(row, row.target_valid, row.prefill_length - 1) for row in self._prefilling)
        valid = Validity(attrgetter("target_valid"), lambda tail: bool(tail.sources or tail.page))
        return plan_chunks(missing, budget=budget, page_size=self._config.page_size, valid=valid)

    def draft_chunks(self, budget: int, plain_in_flight: int, *, skip_following: bool = False) -> list[Chunk]:
        """Returns at most `budget` tokens that the draft model's KV lacks, for rows that may still use drafts.

        plain_in_flight: rounds without drafts that were launched and not read; each puts every row a token further
        behind. A round in flight may commit one more token, which a speculating row's first draft step feeds itself.
        skip_following: leave out rows that follow an earlier answer.

        Rows that the target is being prefilled for come first and in its order: under a fixed K they draft from their
        first round on, whatever runs beside them, which `standard` and `block` need to draw the same tokens again.
        Behind them come rows that fell behind while K was 0, those with the fewest missing tokens first.
        """
        missing = [
            MissingTokens(row, self._draft_start(row), row.length - 1)
            for row in self._rows.values()
            if not row.draft_ready(plain_in_flight) and row.may_draft and not (skip_following and row.following)
        ]
        behind = sorted((m for m in missing if m.row.prefilled), key=lambda m: m.stop - m.start)
        ordered = [m for m in missing if not m.row.prefilled] + behind
        valid = Validity(attrgetter("draft_valid"), _draft_has)
        return plan_chunks(ordered, budget=budget, page_size=self._config.page_size, valid=valid)

    def _draft_start(self, row: RowState) -> int:
        """Returns the length below which the draft model's KV of a row is valid, in its own pages or in its prefix."""
        shared = len(row.prefix) * self._config.page_size if row.prefix and row.prefix[-1].draft_valid else 0
        return max(row.draft_valid, shared)

    def target_prefilled(self, chunks: Sequence[Chunk]) -> None:
        """Records chunks of `target_chunks` as launched."""
        for slot, start, stop in chunks:
            row = self._rows[slot]
            self._record_target(row, start, stop)
            for node in row.prefix[start // self._config.page_size : stop // self._config.page_size]:
                node.target_valid = True
                if node.parent is not None:
                    node.parent.latest = node
            last = stop // self._config.page_size
            if stop % self._config.page_size and last < len(row.prefix):
                row.prefix[last].begun = True

    def _record_target(self, row: RowState, start: int, stop: int) -> None:
        """Records that the target's KV of a row is valid below `stop`; what it lacked below `start` was shared."""
        if not row.generated:
            row.cached_tokens += start - row.target_valid
        lacked_tail = row.lacks_tail
        row.target_valid = stop
        if row.tail is not None and lacked_tail and not row.lacks_tail:
            row.tail.sources.append(row)

    def draft_prefilled(self, chunks: Sequence[Chunk]) -> None:
        """Records chunks of `draft_chunks` as launched."""
        for slot, start, stop in chunks:
            row = self._rows[slot]
            row.draft_valid = stop
            for node in row.prefix[start // self._config.page_size : stop // self._config.page_size]:
                node.draft_valid = True

    def copy_tails(self) -> TailCopies:
        """Returns the pages to copy for rows whose prompt another row has computed, and records them as copied.

        Call it when the chunks of both models have been recorded. The draft model's part is copied where it is there.
        """
        copies = TailCopies([], [], [])
        for row in self._prefilling:
            tail = row.tail
            if tail is None or not row.lacks_tail or (row.prefix and not row.prefix[-1].target_valid):
                continue
            if not (tail.sources or tail.page):
                continue
            start, stop = len(row.prefix) * self._config.page_size, row.shared_end
            source = max(tail.sources, key=attrgetter("draft_valid"), default=None)
            pages = (tail.page if source is None else self._first_own_page(source), self._first_own_page(row))
            copies.rows.append(row)
            copies.target.append(pages)
            draft_valid = min(tail.draft_valid if source is None else source.draft_valid, stop)
            if start < draft_valid > row.draft_valid and (not row.prefix or row.prefix[-1].draft_valid):
                copies.draft.append(pages)
                row.draft_valid = draft_valid
        for row in copies.rows:  # now, so that none of them was a source
            self._record_target(row, row.shared_end, row.shared_end)
        return copies

    def copy_beginnings(self) -> list[tuple[int, int]]:
        """Returns pages of the target to copy, source and destination, for score rows that depart within a page.

        Questions behind common examples differ from some token of a page on. What they have in common with the full
        page that was computed last is copied, and recorded as computed. The rest of the page is overwritten before it
        is read. A node's page is copied to once, before any part of it was computed.
        """
        copies: list[tuple[int, int]] = []
        tails: set[PrefixTail] = set()
        size = self._config.page_size
        for row in self._rows.values():
            if row.window is None or not row.lacks_tail or row.target_valid % size:
                continue
            page, prefix, tail = row.target_valid // size, row.prefix, row.tail
            while page < len(prefix) and prefix[page].target_valid:
                page += 1
            node = prefix[page] if page < len(prefix) else None
            if tail is None or (node is None and (tail in tails or tail.sources or tail.page)):
                continue
            parent, key = (tail.parent, tail.key) if node is None else (node.parent, node.key)
            source = None if parent is None else parent.latest
            if (node is not None and node.begun) or source is None or not source.target_valid:
                continue
            common = common_tokens(key, source.key)
            if not common:
                continue
            if node is None:
                tails.add(tail)
                copies.append((source.page, self._first_own_page(row)))
            else:
                node.begun = True
                copies.append((source.page, node.page))
            self._record_target(row, page * size + common, page * size + common)
        return copies

    def _first_own_page(self, row: RowState) -> int:
        return self._pages.held(row.slot)[0]

    def draft_behind(self, rows: Sequence[RowState]) -> int:
        """Returns the tokens that the draft model's KV of these rows lacks; a shared page counts once."""
        size, tokens = self._config.page_size, 0
        missing: set[PrefixNode] = set()
        for row in rows:
            if not row.draft_behind:
                continue
            tokens += row.length - 1 - max(row.draft_valid, len(row.prefix) * size)
            for node in reversed(row.prefix):
                if node.draft_valid or node in missing:
                    break
                missing.add(node)
        return tokens + size * len(missing)


def _draft_has(tail: PrefixTail) -> bool:
    """Returns True if the draft model's KV of a tail can be copied."""
    return max([tail.draft_valid, *(row.draft_valid for row in tail.sources)]) >= tail.prompt_tokens - 2

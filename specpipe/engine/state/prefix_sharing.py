"""Rows and their prefixes: which nodes a row needs while it waits, holds while it runs, and leaves to others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from specpipe.core import EngineConfig
from specpipe.engine.state.page_allocator import PageAllocator
from specpipe.engine.state.prefix_tree import PrefixKeys, PrefixTail, PrefixTree, prefix_keys
from specpipe.engine.state.row_state import RowState


class PrefixSharing:
    """The tree of prefixes and the parts that rows have in it. A row waits first, then runs, and leaves at last."""

    def __init__(self, config: EngineConfig, pages: PageAllocator) -> None:
        self._config, self._pages, self._tree = config, pages, PrefixTree()

    def keys(self, row: RowState) -> PrefixKeys:
        """Returns what a row can share of its tokens; reads no state of the tree, so any thread may call it."""
        if row.request.warm_up or not self._config.prefix_sharing:
            return PrefixKeys()
        return prefix_keys([*row.request.prompt_token_ids, *row.generated], self._config.page_size)

    def wait(self, row: RowState, keys: PrefixKeys) -> None:
        """Gives a new row its prefix and tail, and records that it will need them."""
        row.prefix = self._tree.chain(keys.pages)
        row.tail = self._tree.tail(row.prefix, keys.tail, len(row.request.prompt_token_ids))
        self._wait(row)

    def _wait(self, row: RowState) -> None:
        self._pages.await_chain(row.prefix)
        if row.tail is not None:
            row.tail.pending += 1
            if row.tail.page:
                self._pages.touch(row.tail)

    def start(self, row: RowState) -> None:
        """Gives a row that waited references to its prefix, whose nodes then have pages."""
        self._pages.share(row.prefix)
        if row.tail is not None:
            row.tail.pending -= 1
            row.tail.running += 1
            if row.tail.page:
                self._pages.touch(row.tail)

    def preempt(self, row: RowState, waiting: RowState) -> None:
        """Lets `waiting`, the restarted row, wait for prefix and tail, which `row` leaves together with its pages.

        Pages of generated tokens become those of the nodes that it will need. Rounds in flight do not write them: nodes
        end two tokens before the row's known length.
        """
        waiting.prefix = self._tree.chain(self.keys(row).pages)
        if row.prefilled:
            self._hand_over(row, waiting)
        self._wait(waiting)
        self.leave(row)

    def _hand_over(self, row: RowState, waiting: RowState) -> None:
        own, size = len(row.prefix), self._config.page_size
        adopted = []
        target_valid = True  # up to the page before; a row that runs may have yet to compute that page
        draft_valid = not own or row.prefix[-1].draft_valid
        for i, node in enumerate(waiting.prefix[own:], start=own):
            if not node.page and target_valid:
                adopted.append(i)
                node.target_valid, node.draft_valid = True, draft_valid and row.draft_valid >= (i + 1) * size
            target_valid, draft_valid = node.target_valid, node.draft_valid
        for i in reversed(adopted):  # the allocator's order: last page first
            self._pages.adopt(waiting.prefix[i], row.slot, i - own)

    def leave(self, row: RowState) -> None:
        """Ends a running row's part in its prefix and tail, and frees its own pages.

        Rounds in flight write no page of a prefix, and nothing below the prompt's last token but what is there already:
        the first draft step feeds the token before it again.
        """
        if row.tail is not None:
            self._leave_tail(row, row.tail)
        self._pages.release(row.slot)
        self._pages.unshare(row.prefix)

    def _leave_tail(self, row: RowState, tail: PrefixTail) -> None:
        """Ends the row's part in its tail. The last row that has it leaves its page to those that wait."""
        tail.running -= 1
        if row in tail.sources:
            tail.sources.remove(row)
            own = row.capacity // self._config.page_size - len(row.prefix)
            handed_over = len(self._pages.held(row.slot)) < own
            if tail.pending and not tail.sources and not tail.page and not handed_over:
                self._pages.adopt(tail, row.slot, 0)
                tail.draft_valid = row.draft_valid
        tail.remove_unused()

    def check_integrity(self, running: Collection[RowState], waiting: Collection[RowState]) -> None:
        """Raises AssertionError unless counts are those of the rows, and valid pages follow valid ones."""
        refs = Counter(node for row in running for node in row.prefix)
        pending = Counter(node for row in waiting for node in row.prefix)
        nodes = self._tree.nodes()
        assert refs.keys() | pending.keys() <= set(nodes), "a row's prefix is no part of the tree"
        for tail in (tail for node in [self._tree.root, *nodes] for tail in (node.tails or {}).values()):
            assert tail.running == sum(row.tail is tail for row in running)
            assert tail.pending == sum(row.tail is tail for row in waiting)
            assert set(tail.sources) == {row for row in running if row.tail is tail and not row.lacks_tail}
            assert tail.page or tail.running or tail.pending, "a tail without use stays in the tree"
        for node in nodes:
            assert (node.refs, node.pending) == (refs[node], pending[node])
            assert node.page or not (node.refs or node.target_valid or node.draft_valid)
            assert node.page or node.pending or node.children or node.tails, "a node without use stays in the tree"
            parent = node.parent
            assert parent is not None
            if parent is not self._tree.root:
                assert parent.target_valid or not node.target_valid
                assert parent.draft_valid or not node.draft_valid
        for row in running:
            for i, node in enumerate(row.prefix, start=1):
                end = i * self._config.page_size
                assert node.target_valid or row.target_valid < end
                assert node.draft_valid or row.draft_valid < end

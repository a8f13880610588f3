"""Ownership of KV pages: page numbers and their holders. Host only.

Page 0 is the trash page: freed block-table entries, padding rows and drafts past a row's end point at it, so
padding is data and never a branch. Draft and target share one page numbering and one block table.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from specpipe.engine.state.prefix_tree import PrefixNode, PrefixTail

TRASH_PAGE = 0
CacheEntry = PrefixNode | PrefixTail


class PageAllocator:
    """Hands out page numbers; every page but the trash page is free, held by one slot, or part of one prefix.

    A node's page is read by all rows that have a reference to it, and written by none once it is valid. Without
    references it is *cached*: the node keeps it until memory is needed. Then nodes that no waiting row needs lose their
    pages first, and of these the least recently used one. A row that releases its chain releases the last node first,
    and it refers to a node only together with all parents; so a node always comes before its parents in this order.

    A page that changes hands may be read or written by a round in flight of its former holder. Its new holder's work
    is launched later, on the same stream, and writes every position before it reads it.
    """

    def __init__(self, num_pages: int) -> None:
        """num_pages counts the trash page."""
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, TRASH_PAGE, -1))
        self._held: dict[int, tuple[int, ...]] = {}
        self._entries: dict[int, CacheEntry] = {}
        """Nodes and tails with a page, by page number."""
        self._idle: OrderedDict[CacheEntry, None] = OrderedDict()
        """Cached nodes that no waiting row needs, least recently used first."""
        self._awaited: OrderedDict[CacheEntry, None] = OrderedDict()
        """Cached nodes that waiting rows need, least recently used first."""

    @property
    def free(self) -> int:
        """Number of pages that can be allocated: free and cached ones."""
        return len(self._free) + len(self._idle) + len(self._awaited)

    @property
    def cached(self) -> int:
        """Number of pages of prefixes that no running row needs."""
        return len(self._idle) + len(self._awaited)

    def can_allocate(self, pages: int) -> bool:
        """Returns True if so many pages can be allocated."""
        return pages <= self.free

    def held(self, holder: int) -> tuple[int, ...]:
        """Returns the pages of a slot in the order of their allocation, without those of prefixes."""
        return self._held.get(holder, ())

    def allocate(self, holder: int, pages: int) -> tuple[int, ...]:
        """Gives a slot further pages and returns them; `can_allocate` must be true."""
        allocated = tuple(self._take() for _ in range(pages))
        self._held[holder] = self.held(holder) + allocated
        return allocated

    def release(self, holder: int) -> None:
        """Frees all pages of a slot."""
        self._free.extend(self._held.pop(holder, ()))

    def await_chain(self, chain: Sequence[PrefixNode]) -> None:
        """Records that one more waiting row needs these nodes. chain: a prefix from its first page on."""
        for node in reversed(chain):
            node.pending += 1
            if node.page and not node.refs:
                self.touch(node)

    def touch(self, entry: CacheEntry) -> None:
        """Records a use of a cached node or tail, or of another number of waiting rows."""
        self._idle.pop(entry, None)
        self._awaited.pop(entry, None)
        (self._awaited if entry.pending else self._idle)[entry] = None

    def share(self, chain: Sequence[PrefixNode]) -> None:
        """Gives a row that waited for these nodes references to them, and the nodes pages where they have none.

        `can_allocate` must be true for the chain's nodes without references.
        """
        for node in chain:  # none of them may be evicted while others get pages
            node.pending -= 1
            node.refs += 1
            if node.page:
                self._idle.pop(node, None)
                self._awaited.pop(node, None)
        for node in chain:
            if not node.page:
                node.page = self._take()
                self._entries[node.page] = node

    def unshare(self, chain: Sequence[PrefixNode]) -> None:
        """Drops a row's references to these nodes."""
        for node in reversed(chain):
            node.refs -= 1
            if not node.refs:
                (self._awaited if node.pending else self._idle)[node] = None

    def adopt(self, entry: CacheEntry, holder: int, index: int) -> None:
        """Makes page `index` of a slot the page of a node or tail without one. The slot is about to be released."""
        pages = self._held[holder]
        entry.page = pages[index]
        self._entries[entry.page] = entry
        self.touch(entry)
        self._held[holder] = pages[:index] + pages[index + 1 :]

    def _take(self) -> int:
        """Removes a page from the free ones, or from the cached node that is needed least."""
        if self._free:
            return self._free.pop()
        entry, _ = (self._idle or self._awaited).popitem(last=False)
        del self._entries[entry.page]
        page = entry.lose_page()
        entry.remove_unused()
        return page

    def check_integrity(self) -> None:
        """Raises AssertionError unless every page has one owner and cached pages can be evicted in their order."""
        held = [page for pages in self._held.values() for page in pages]
        assert sorted([*held, *self._free, *self._entries]) == list(range(1, self.num_pages)), (
            "a page is lost, held twice or free while held"
        )
        assert all(entry.page == page for page, entry in self._entries.items())
        cached = [*self._idle, *self._awaited]
        assert set(cached) == {entry for entry in self._entries.values() if not entry.refs}
        assert all(entry.pending for entry in self._awaited) and not any(entry.pending for entry in self._idle)
        evicted: set[CacheEntry] = set()
        for entry in cached:
            evicted.add(entry)
            if isinstance(entry, PrefixNode):
                assert all(not child.page or child in evicted for child in entry.children.values()), (
                    "a prefix would be evicted before a longer one that it begins"
                )
        for entry in self._entries.values():
            parent = entry.parent
            if isinstance(entry, PrefixNode) and parent is not None and parent.parent is not None:
                assert parent.page and parent.refs >= entry.refs and parent.pending >= entry.pending

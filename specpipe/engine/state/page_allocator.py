"""Ownership of KV pages: page numbers and their holders. Host only.

Page 0 is the trash page: freed block-table entries, padding rows and drafts past a row's end point at it, so
padding is data and never a branch. Draft and target share one page numbering and one block table.
"""

from __future__ import annotations

TRASH_PAGE = 0


class PageAllocator:
    """Hands out page numbers; every page but the trash page is free or has one holder."""

    def __init__(self, num_pages: int) -> None:
        """num_pages counts the trash page."""
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, TRASH_PAGE, -1))
        self._held: dict[int, tuple[int, ...]] = {}

    @property
    def free(self) -> int:
        """Number of free pages."""
        return len(self._free)

    def can_allocate(self, pages: int) -> bool:
        """Returns True if so many pages are free."""
        return pages <= len(self._free)

    def held(self, holder: int) -> tuple[int, ...]:
        """Returns the pages of a holder in the order of their allocation."""
        return self._held.get(holder, ())

    def allocate(self, holder: int, pages: int) -> tuple[int, ...]:
        """Gives a holder further pages and returns them; `can_allocate` must be true."""
        assert self.can_allocate(pages)
        allocated = tuple(self._free.pop() for _ in range(pages))
        self._held[holder] = self.held(holder) + allocated
        return allocated

    def release(self, holder: int) -> None:
        """Frees all pages of a holder."""
        self._free.extend(self._held.pop(holder))

    def check_integrity(self) -> None:
        """Raises AssertionError unless every page is free or held exactly once."""
        held = [page for pages in self._held.values() for page in pages]
        assert sorted(held + self._free) == list(range(1, self.num_pages)), (
            "a page is lost, held twice or free while held"
        )

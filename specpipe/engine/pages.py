"""KV memory: pages of a fixed number of tokens, and who holds them.

Page 0 is the trash page: freed block-table entries, padding rows and drafts past a row's end point at it, so
padding is data and never a branch. Draft and target share one page numbering and one block table.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from specpipe.engine.attention import AttentionFacts, attach_pages

TRASH_PAGE = 0


class PageAllocator:
    """Hands out page numbers, a few at a time."""

    def __init__(self, num_pages: int) -> None:
        """num_pages counts the trash page."""
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, TRASH_PAGE, -1))
        self._held: dict[int, tuple[int, ...]] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    def can_allocate(self, pages: int) -> bool:
        return pages <= len(self._free)

    def held(self, holder: int) -> tuple[int, ...]:
        """In the order in which they were handed out."""
        return self._held.get(holder, ())

    def allocate(self, holder: int, pages: int) -> tuple[int, ...]:
        """Further pages for a holder."""
        assert self.can_allocate(pages)
        taken = tuple(self._free.pop() for _ in range(pages))
        self._held[holder] = self.held(holder) + taken
        return taken

    def release(self, holder: int) -> None:
        self._free.extend(self._held.pop(holder))

    def check_integrity(self) -> None:
        held = [page for pages in self._held.values() for page in pages]
        every = sorted(held + self._free)
        assert every == list(range(1, self.num_pages)), "a page is lost, held twice or free while held"


def page_bytes(layers: Iterable[AttentionFacts], page_size: int, dtype: torch.dtype) -> int:
    """Bytes that one page takes over all layers."""
    elements = sum(s.heads * (s.key_dim + s.value_dim) for s in layers)
    return elements * page_size * dtype.itemsize


def allocate_pages(
    attention: dict[nn.Module, AttentionFacts], num_pages: int, page_size: int, dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Allocates the pages of every layer and attaches them. Zeroed: a masked NaN would poison P·V."""
    pages: list[Tensor] = []
    for module, facts in attention.items():
        k = torch.zeros(num_pages, facts.heads, page_size, facts.key_dim, dtype=dtype, device=device)
        v = torch.zeros(num_pages, facts.heads, page_size, facts.value_dim, dtype=dtype, device=device)
        attach_pages(module, k, v)
        pages += [k, v]
    return pages

"""Prefixes: full KV pages with equal tokens from the first position on, as a tree. Host only.

A node is one page of tokens behind the pages of its parents. It outlives the rows that wrote its page, and it exists
before there is a page, for rows that wait. `PageAllocator` owns the pages.

Nodes hold only positions that no round writes. The first round of a prompt of P tokens writes KV from position P - 2
on: the draft model's first step feeds the last two tokens (`DraftModelProposer`), also where its KV is behind and the
result is dropped. So nodes end at P - 2 (`shared_pages`), and all later rounds write behind it.

The tokens between the last node and the prompt's last token are its *tail*. Rows with equal prompts copy its KV from
one another, because each goes on writing in its page.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from specpipe.engine.state.row_state import RowState

PageKeys = tuple[bytes, ...]
"""Token ids of full pages, int32, one entry a page."""


def shared_pages(tokens: int, page_size: int) -> int:
    """Returns the number of pages of a row of so many tokens that rounds never write."""
    return max(0, tokens - 2) // page_size


class PrefixKeys(NamedTuple):
    """Token ids of a row that others may have in common with it."""

    pages: PageKeys = ()
    tail: bytes = b""
    """Those behind the pages, up to the last token; empty for a row of one token."""


def prefix_keys(tokens: Sequence[int], page_size: int) -> PrefixKeys:
    """Returns the keys of a row with these tokens."""
    packed = array("i", tokens).tobytes()
    width = page_size * 4
    end = shared_pages(len(tokens), page_size) * width
    return PrefixKeys(tuple(packed[i : i + width] for i in range(0, end, width)), packed[end:-4])


class PrefixNode:
    """One page of a prefix. Nodes are compared by identity."""

    __slots__ = (
        "begun",
        "children",
        "draft_valid",
        "key",
        "latest",
        "page",
        "parent",
        "pending",
        "refs",
        "tails",
        "target_valid",
    )

    def __init__(self, parent: PrefixNode | None, key: bytes) -> None:
        """parent: None for the root, which stands before the first page."""
        self.parent, self.key = parent, key
        self.children: dict[bytes, PrefixNode] = {}
        self.tails: dict[bytes, PrefixTail] | None = None
        self.page = 0
        """Page number; 0 without a page."""
        self.refs = 0
        """Running rows whose block table holds the page."""
        self.pending = 0
        """Waiting rows that will need the page."""
        self.begun = False
        """True once the target's KV of a part of the page was computed or copied."""
        self.latest: PrefixNode | None = None
        """The child whose page the target computed last."""
        self.target_valid = self.draft_valid = False
        """True if the model's KV of the whole page has been computed by work that was launched: work launched later
        on the same stream may read it."""

    def lose_page(self) -> int:
        """Returns the page number and leaves the node without a page."""
        page, self.page = self.page, 0
        self.target_valid = self.draft_valid = self.begun = False
        return page

    def remove_unused(self) -> None:
        """Removes the node, and parents that then have no use, from the tree."""
        node = self
        while node.parent is not None and not (node.page or node.refs or node.pending or node.children or node.tails):
            del node.parent.children[node.key]
            node = node.parent


class PrefixTail:
    """The tail of equal prompts. Running rows have its KV in pages of their own."""

    __slots__ = ("draft_valid", "key", "page", "parent", "pending", "prompt_tokens", "running", "sources")
    refs = 0
    """No block table holds the tail's page."""

    def __init__(self, parent: PrefixNode, key: bytes, prompt_tokens: int) -> None:
        self.parent, self.key = parent, key
        self.prompt_tokens = prompt_tokens
        self.page = 0
        """A page with the target's KV of the tail that its last running row has left for waiting ones; 0 for none."""
        self.draft_valid = 0
        """Length below which that page and those before it have the draft model's KV, in tokens of the row."""
        self.running = self.pending = 0
        """Running and waiting rows with this prompt."""
        self.sources: list[RowState] = []
        """Running rows whose own page has the target's KV of the tail."""

    def lose_page(self) -> int:
        """Returns the page number and leaves the tail without a page."""
        page, self.page = self.page, 0
        self.draft_valid = 0
        return page

    def remove_unused(self) -> None:
        """Removes the tail from the tree if no row needs it, and nodes that then have no use."""
        tails = self.parent.tails
        if tails is not None and not (self.page or self.running or self.pending):
            del tails[self.key]
            self.parent.remove_unused()


def common_tokens(first: bytes, second: bytes) -> int:
    """Returns the number of tokens with which two keys begin alike."""
    if first == second:
        return len(first) // 4
    pairs = zip(memoryview(first).cast("i"), memoryview(second).cast("i"), strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)) // 4)


class PrefixTree:
    """All prefixes of an engine."""

    def __init__(self) -> None:
        self.root = PrefixNode(None, b"")

    def chain(self, keys: PageKeys) -> list[PrefixNode]:
        """Returns the nodes of these pages, in order; creates missing ones, which need a page or a row to last."""
        nodes, node = [], self.root
        for key in keys:
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = PrefixNode(node, key)
            nodes.append(child)
            node = child
        return nodes

    def tail(self, nodes: Sequence[PrefixNode], key: bytes, prompt_tokens: int) -> PrefixTail | None:
        """Returns the tail behind these nodes; None for a prompt of one token."""
        if not key:
            return None
        parent = nodes[-1] if nodes else self.root
        if parent.tails is None:
            parent.tails = {}
        found = parent.tails.get(key)
        if found is None:
            found = parent.tails[key] = PrefixTail(parent, key, prompt_tokens)
        return found

    def nodes(self) -> list[PrefixNode]:
        """Returns all nodes but the root, parents first."""
        found, at = [self.root], 0
        while at < len(found):
            found += found[at].children.values()
            at += 1
        return found[1:]

"""Groups of a round's rows that read shared KV pages together. Host only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from specpipe.engine.state.prefix_tree import PrefixNode
from specpipe.engine.state.row_state import RowState


class GroupLimits(NamedTuple):
    """Groups that are worth their cost."""

    rows: int
    """Least rows of a group."""
    pages: int
    """Least page reads that a round's groups save in one layer."""
    pages_per_token: int
    """The same for each token of the round: its partial results are written and read again."""


GPU_LIMITS = GroupLimits(rows=4, pages=192, pages_per_token=2)
"""Measured on an H200 with 8 KV heads of 128 in 16 bits (docs/notebook.md): below these limits layers took longer."""
CPU_LIMITS = GroupLimits(rows=2, pages=1, pages_per_token=0)
"""Reading pages once always pays: pages are copied together before they are read."""


class PrefixGroups(NamedTuple):
    """Groups of batch rows whose block tables begin with the same pages; B batch rows, each in one group at most."""

    prefix_pages: list[int]
    """[B] leading pages of each batch row that its group shares; 0 for a row in no group."""
    members: list[int]
    """Batch rows of the first group, then those of the second, and so on."""
    ends: list[int]
    """Number of members up to the end of each group; a group has two members or more."""

    @property
    def saved_pages(self) -> int:
        """Reads of a page that groups save in one layer's attention."""
        begins = [0, *self.ends]
        pages = sum(self.prefix_pages)
        return pages - sum(self.prefix_pages[self.members[begin]] for begin in begins[:-1])


class PrefixGrouper:
    """Chooses the groups of each round, again only when its rows change."""

    def __init__(self, limits: GroupLimits) -> None:
        self._limits = limits
        self._rows: list[RowState] = []
        self._groups = PrefixGroups([], [], [])

    def groups(self, rows: list[RowState], k: int) -> PrefixGroups | None:
        """Returns the groups of a round of these rows with K drafts; None where they save too little.

        The rows' prefixes are valid.
        """
        if rows != self._rows:
            self._rows = rows
            self._groups = choose_groups([row.prefix for row in rows], least_rows=self._limits.rows)
        least = max(self._limits.pages, self._limits.pages_per_token * len(rows) * (k + 1))
        return self._groups if self._groups.saved_pages >= least else None


class _Branch:
    """A node that several rows of a round hold, as a place for a group."""

    __slots__ = ("children", "count", "depth", "free", "grouped", "saved")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        """Pages up to this node."""
        self.children: list[_Branch] = []
        self.free: list[int] = []
        """Batch rows that hold the node and are in no group at it or below."""
        self.count = self.saved = 0
        """Rows that hold the node; page reads that their groups save."""
        self.grouped: list[int] = []
        """Rows that read the pages up to this node together."""

    def solve(self) -> None:
        """Decides on a group at this node; the children have decided already.

        It takes the rows that are in no group below, and all rows of children whose own groups save less.
        """
        depth, own = self.depth, self.free
        joining = [child for child in self.children if child.saved + len(child.free) * depth <= child.count * depth]
        apart = [child for child in self.children if child not in joining]
        self.count = len(own) + sum(child.count for child in self.children)
        members = own + [row for child in apart for row in child.free]
        below = sum(child.saved for child in apart)
        together = below + (len(members) + sum(child.count for child in joining) - 1) * depth
        self.saved = sum(child.saved for child in self.children)
        if together > self.saved:
            members += [row for child in joining for row in child.dissolve()]
            self.saved, self.children, self.grouped, self.free = together, apart, members, []
        else:
            self.free = own + [row for child in self.children for row in child.free]

    def dissolve(self) -> list[int]:
        """Returns all rows that hold the node; its groups are no longer valid."""
        found, branches = list(self.free), [self]
        for branch in branches:  # it grows
            found += branch.grouped
            branches += branch.children
        return found


def choose_groups(prefixes: Sequence[Sequence[PrefixNode]], *, least_rows: int = 2) -> PrefixGroups:
    """Returns groups of rows that save many page reads. prefixes: nodes of each batch row, all of them valid.

    Decides at one node after another, from the longest prefixes to the shortest. Rows that a longer prefix took stay
    there unless all of its rows save more here. Groups of fewer than `least_rows` rows read their pages row by row.
    """
    branches: dict[PrefixNode, _Branch] = {}
    roots: list[_Branch] = []
    for i, prefix in enumerate(prefixes):
        depth = _shared_depth(prefix)
        if depth:
            _branch_of(prefix, depth, branches, roots).free.append(i)
    for branch in sorted(branches.values(), key=lambda branch: -branch.depth):
        branch.solve()
    groups = PrefixGroups([0] * len(prefixes), [], [])
    for branch in roots:  # it grows
        roots += branch.children
        if len(branch.grouped) >= least_rows:
            for row in branch.grouped:
                groups.prefix_pages[row] = branch.depth
            groups.members.extend(branch.grouped)
            groups.ends.append(len(groups.members))
    return groups


def _shared_depth(prefix: Sequence[PrefixNode]) -> int:
    """Returns the number of a row's nodes that other running rows hold too; they are its first ones."""
    low, high = 0, len(prefix)
    while low < high:
        middle = (low + high) // 2
        if prefix[middle].refs > 1:
            low = middle + 1
        else:
            high = middle
    return low


def _branch_of(
    prefix: Sequence[PrefixNode], depth: int, branches: dict[PrefixNode, _Branch], roots: list[_Branch]
) -> _Branch:
    """Returns the branch of the last of the first `depth` nodes; creates it, and those above it, where missing."""
    found = branches.get(prefix[depth - 1])
    if found is not None:
        return found
    last = below = branches[prefix[depth - 1]] = _Branch(depth)
    for d in range(depth - 1, 0, -1):
        above = branches.get(prefix[d - 1])
        if above is not None:
            above.children.append(below)
            return last
        above = branches[prefix[d - 1]] = _Branch(d)
        above.children.append(below)
        below = above
    roots.append(below)
    return last

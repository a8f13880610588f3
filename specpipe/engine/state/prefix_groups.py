"""Groups of a round's rows that read shared KV pages together."""

from __future__ import annotations

from typing import NamedTuple


class PrefixGroups(NamedTuple):
    """Groups of batch rows whose block tables begin with the same pages; B batch rows, each in one group at most."""

    prefix_pages: list[int]
    """[B] leading pages of each batch row that its group shares; 0 for a row in no group."""
    members: list[int]
    """Batch rows of the first group, then those of the second, and so on."""
    ends: list[int]
    """Number of members up to the end of each group; a group has two members or more."""

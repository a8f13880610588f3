"""Order of rows that are submitted together: rows with a common prefix next to each other, long rows first."""

from __future__ import annotations

from collections.abc import Sequence

from specpipe.core import Request
from specpipe.engine.state.prefix_tree import PrefixKeys


def submission_order(requests: Sequence[Request], keys: Sequence[PrefixKeys]) -> list[int]:
    """Returns the indices of requests in the order in which they should start.

    Rows that may grow longest come first. Rows whose prompts begin with the same pages form a group, which stays
    together and counts as its longest row; groups within groups likewise. keys: those of each request, empty where
    prefixes are not shared.
    """
    groups: dict[tuple[int, bytes], int] = {}
    paths: list[list[int]] = []
    members, longest, first = [len(requests)], [0], [0]
    for i, request in enumerate(requests):
        path = [0]
        for key in filter(None, (*keys[i].pages, keys[i].tail)):
            group = groups.setdefault((path[-1], key), len(members))
            if group == len(members):
                members.append(0)
                longest.append(0)
                first.append(i)
            members[group] += 1
            longest[group] = max(longest[group], request.new_tokens)
            path.append(group)
        paths.append(path)

    def rank(i: int) -> list[int]:
        ranks: list[int] = []
        for outer, group in zip(paths[i], paths[i][1:], strict=False):
            if members[group] == 1:
                break
            if members[group] < members[outer]:  # a group of the same rows decides nothing
                ranks += (-longest[group], first[group])
        return [*ranks, -requests[i].new_tokens, i]

    return sorted(range(len(requests)), key=rank)

"""Groups of rows that read shared pages together: valid, and never worse than the best single group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from specpipe.engine.state.page_allocator import PageAllocator
from specpipe.engine.state.prefix_groups import GroupLimits, PrefixGrouper, PrefixGroups, choose_groups
from specpipe.engine.state.prefix_tree import PrefixNode, PrefixTree
from specpipe.engine.state.row_state import RowState


def held_prefixes(keys: Sequence[Sequence[int]]) -> list[list[PrefixNode]]:
    """Returns the nodes of rows that hold pages with these contents, one number a page."""
    tree, pages = PrefixTree(), PageAllocator(1 + sum(map(len, keys)))
    chains = [tree.chain(tuple(bytes([key]) for key in row)) for row in keys]
    for chain in chains:
        pages.await_chain(chain)
        pages.share(chain)
    return chains


def saved(keys: Sequence[Sequence[int]]) -> PrefixGroups:
    """Returns the groups of these rows, after checking them."""
    prefixes = held_prefixes(keys)
    groups = choose_groups(prefixes)
    assert len(set(groups.members)) == len(groups.members)
    assert {i for i, pages in enumerate(groups.prefix_pages) if pages} == set(groups.members)
    for begin, end in zip([0, *groups.ends], groups.ends, strict=False):
        first, *others = groups.members[begin:end]
        depth = groups.prefix_pages[first]
        assert others and depth
        for row in others:
            assert groups.prefix_pages[row] == depth
            assert prefixes[row][:depth] == prefixes[first][:depth]
    return groups


def partitions(rows: list[int]) -> Iterator[list[list[int]]]:
    if not rows:
        yield []
        return
    for rest in partitions(rows[1:]):
        yield [[rows[0]], *rest]
        for i, group in enumerate(rest):
            yield [*rest[:i], [rows[0], *group], *rest[i + 1 :]]


def common_pages(rows: Sequence[Sequence[int]]) -> int:
    depth = 0
    while all(len(row) > depth for row in rows) and len({row[depth] for row in rows}) == 1:
        depth += 1
    return depth


def test_rows_of_two_prefixes_behind_a_common_page_form_two_groups() -> None:
    groups = saved([[1, 2, 3], [1, 2, 3, 9], [1, 5, 6], [7], [1, 5, 6, 8]])
    assert groups.prefix_pages == [3, 3, 3, 0, 3]
    assert groups.saved_pages == 6


def test_many_rows_of_a_short_prefix_are_one_group() -> None:
    groups = saved([[1, 2, 3], [1, 2, 4], [1, 2, 3, 5], [1, 2], [1, 2, 6]])
    assert groups.prefix_pages == [2] * 5
    assert groups.saved_pages == 8


def test_rows_without_a_common_page_form_no_group() -> None:
    assert saved([[1, 2], [2, 1], [], [3]]) == PrefixGroups([0] * 4, [], [])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), max_size=5), min_size=1, max_size=6))
def test_groups_save_at_least_as_much_as_any_single_group(keys: list[list[int]]) -> None:
    rows = list(range(len(keys)))
    sets = [[row for row in rows if chosen >> row & 1] for chosen in range(1, 2 ** len(rows))]
    single = max((len(group) - 1) * common_pages([keys[row] for row in group]) for group in sets)
    best = max(
        sum((len(group) - 1) * common_pages([keys[row] for row in group]) for group in partition)
        for partition in partitions(rows)
    )
    assert single <= saved(keys).saved_pages <= best


def test_groups_of_few_rows_and_little_to_save_are_left_out() -> None:
    prefixes = held_prefixes([[1, 2, 3]] * 4 + [[7, 8]] * 3)
    assert choose_groups(prefixes, least_rows=4).prefix_pages == [3] * 4 + [0] * 3
    rows = [cast(RowState, SimpleNamespace(prefix=prefix)) for prefix in prefixes]
    grouper = PrefixGrouper(GroupLimits(rows=2, pages=2, pages_per_token=1))
    all_groups = grouper.groups(rows, 0)
    assert all_groups is not None
    assert all_groups.saved_pages == 13
    assert grouper.groups(rows, 1) is None, "14 tokens"
    assert grouper.groups(rows[4:], 0) is not None
    assert grouper.groups(rows[4:6], 0) is not None
    assert grouper.groups(rows[3:5], 0) is None, "no page is read twice"

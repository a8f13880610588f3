"""`follow`: reference and Triton against a search by hand, over texts that depart, repeat, end and hold foreign ids."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specpipe_kernels import MAX_MATCH, ReferenceTensors, follow
from specpipe_kernels.reference.rounds.follow import follow as reference_follow
from specpipe_kernels.rounds.follow import follow as triton_follow

FUNCTIONS = [
    pytest.param(reference_follow, "cpu", id="reference"),
    pytest.param(triton_follow, "cpu", id="triton"),
    pytest.param(triton_follow, "cuda", id="cuda", marks=pytest.mark.gpu),
]
VOCAB = 50


def place_by_hand(row: list[int], text: list[int], expected: int, min_match: int) -> tuple[int, int]:
    """Returns place and match length; 0, 0 without a place."""
    best = (0, 0, 0)
    for place in range(1, len(text)):
        matched = 0
        while matched < min(MAX_MATCH, place, len(row)) and text[place - 1 - matched] == row[-1 - matched]:
            matched += 1
        if matched >= (1 if place == expected else min_match):
            best = max(best, (matched, -2 * abs(place - expected) - (place > expected), place))
    return best[2], best[0]


def run(
    function: Any, device: str, rows: list[list[int]], texts: list[list[int]], expected: list[int], **options: Any
) -> tuple[list[list[int]], list[int], list[int]]:
    """Returns drafts, match lengths and new anchors. Slots are in reverse order, with a dummy slot behind them."""
    slots = len(rows)
    tokens = torch.zeros(slots + 1, 600, dtype=torch.int64)
    stored = torch.full((slots + 1, 600), 7, dtype=torch.int32)
    lengths = torch.tensor([*map(len, rows), 1])
    for i, (row, text) in enumerate(zip(rows, texts, strict=True)):
        tokens[i, : len(row)] = torch.tensor(row)
        stored[i, : len(text)] = torch.tensor(text, dtype=torch.int32)
    anchor = torch.tensor([*expected, 0]) - lengths
    references = ReferenceTensors(*(t.to(device) for t in (stored, torch.tensor([*map(len, texts), 0]), anchor)))
    order = torch.tensor([slots, *range(slots - 1, -1, -1), slots], device=device)
    most = options.pop("max_drafts", options["k"])
    options.setdefault("max_match", MAX_MATCH)
    max_drafts = torch.full((len(order),), most, dtype=torch.int32, device=device)
    found = function(
        tokens.to(device), references, order, lengths.to(device)[order], max_drafts, vocab_size=VOCAB, **options
    )
    assert found.num_tokens[0] == found.matched[-1] == 0, "padding follows nothing"
    drafts = [found.tokens[1 + slots - 1 - i].tolist() for i in range(slots)]
    counts = [int(found.num_tokens[slots - i]) for i in range(slots)]
    assert all(row[n:] == [-1] * (len(row) - n) for row, n in zip(drafts, counts, strict=True))
    matched = [int(found.matched[slots - i]) for i in range(slots)]
    return [row[:n] for row, n in zip(drafts, counts, strict=True)], matched, references.anchor.tolist()[:-1]


@pytest.mark.parametrize(("function", "device"), FUNCTIONS)
@pytest.mark.parametrize(("words", "k", "min_match"), [(2, 1, 1), (3, 5, 2), (12, 15, 2), (40, 32, 3)])
def test_place_is_that_of_the_longest_and_nearest_match(
    function: Any, device: str, words: int, k: int, min_match: int
) -> None:
    g = torch.Generator().manual_seed(words)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=g))

    rows, texts, expected = [], [], []
    for size in (0, 1, 2, 9, 40, 255, 256, 257, 520):
        text = [draw(0, words) for _ in range(size)]
        start = draw(0, max(1, size))
        row = [draw(0, words) for _ in range(draw(1, 5))] + text[max(0, start - draw(0, 12)) : start]
        rows.append(row)
        texts.append(text)
        expected.append(start + draw(-3, 4))
    drafts, matched, anchors = run(function, device, rows, texts, expected, k=k, min_match=min_match)
    for i, (row, text) in enumerate(zip(rows, texts, strict=True)):
        place, longest = place_by_hand(row, text, expected[i], min_match)
        assert (drafts[i], matched[i]) == (text[place : place + k] if longest else [], longest)
        assert anchors[i] == (place if longest else expected[i]) - len(row)


@pytest.mark.parametrize(("function", "device"), FUNCTIONS)
def test_drafts_end_at_limits_and_foreign_ids(function: Any, device: str) -> None:
    row, text = [1, 2, 3], [1, 2, 3, 4, 5, 6, 7]
    foreign = [[1, 2, 3, VOCAB, 4], [1, 2, 3, 4, -1, 5], [1, 2, 3, 4, 5, 2**31 - 1]]
    rows, texts = [row] * 5, [text, *foreign, [1, 2, 3]]
    drafts, matched, _ = run(function, device, rows, texts, [3] * 5, k=4, min_match=2)
    assert drafts == [[4, 5, 6, 7], [], [4], [4, 5], []]
    assert matched[0] == 3
    assert run(function, device, [row], [text], [3], k=4, max_drafts=2, min_match=2)[0] == [[4, 5]]
    assert run(function, device, [row], [text], [3], k=4, max_drafts=0, min_match=2)[0] == [[]]


@pytest.mark.parametrize(("function", "device"), FUNCTIONS)
def test_single_token_match_counts_at_the_expected_place_only(function: Any, device: str) -> None:
    row, text = [8, 9, 3], [3, 4, 5, 3, 6]
    assert run(function, device, [row], [text], [4], k=2, min_match=2)[0] == [[6]]
    assert run(function, device, [row], [text], [3], k=2, min_match=2)[0] == [[]]
    assert run(function, device, [row], [text], [3], k=2, min_match=1)[0] == [[6]]


def test_too_many_drafts_are_refused() -> None:
    with pytest.raises(ValueError, match="k=33; expected 1 to 32"):
        run(follow, "cpu", [[1]], [[1]], [1], k=33, min_match=1)


@pytest.mark.parametrize(("function", "device"), FUNCTIONS)
@pytest.mark.parametrize("longest", [1, 3, 11])
def test_own_text_is_followed_behind_its_latest_longest_match(function: Any, device: str, longest: int) -> None:
    g = torch.Generator().manual_seed(longest)
    lengths = torch.tensor([1, 2, 3, 30, 255, 256, 257, 590, 1])
    tokens = torch.randint(0, 4, (len(lengths), 600), generator=g)
    slots = torch.arange(len(lengths))
    fits = torch.where(slots == len(lengths) - 1, 0, 5).int()
    own = ReferenceTensors(tokens.to(device), lengths.to(device), None)
    found = function(
        tokens.to(device), own, slots.to(device), lengths.to(device), fits.to(device), k=5, vocab_size=VOCAB,
        min_match=1, max_match=longest,
    )  # fmt: skip
    for row, length in enumerate(lengths.tolist()):
        text, places = tokens[row, :length].tolist(), []
        for n in range(min(longest, length - 1), 0, -1):
            places += [p for p in range(length - 1, n - 1, -1) if text[p - n : p] == text[length - n :]]
        drafts = text[places[0] : places[0] + 5] if places and fits[row] else []
        assert found.tokens[row, : int(found.num_tokens[row])].tolist() == drafts

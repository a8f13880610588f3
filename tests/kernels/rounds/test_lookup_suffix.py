"""`lookup_suffix`: a search of every text in plain Python is the oracle, and Triton equals the reference."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch

from specpipe_kernels import (
    MAX_DRAFTS,
    NEIGHBOURS,
    OCCURRENCES,
    SUFFIX_TOKENS,
    Followed,
    SlotTensors,
    SuffixIndex,
    lookup_suffix,
)
from specpipe_kernels.reference.rounds.lookup_suffix import lookup_suffix as reference_lookup_suffix
from specpipe_kernels.rounds.lookup_suffix import lookup_suffix as triton_lookup_suffix

on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
Text = list[int]
Place = tuple[Text, int]


def before(text: Text, place: int) -> tuple[int, ...]:
    """Returns the tokens before a place, the nearest one first, as the order compares them: -1 before the text."""
    return tuple(text[place - back] if place >= back else -1 for back in range(1, SUFFIX_TOKENS + 1))


def index_of(segments: list[list[Text]], width: int, newest: int, device: str) -> SuffixIndex:
    """Returns the index of texts, sorted in Python."""
    tokens = torch.full((len(segments), width), -1, dtype=torch.int32)
    places = torch.full((len(segments), width), SUFFIX_TOKENS, dtype=torch.int32)
    counts = []
    for g, texts in enumerate(segments):
        found: list[tuple[tuple[int, ...], int]] = []
        end = SUFFIX_TOKENS + 1
        for text in texts:
            tokens[g, end : end + len(text)] = torch.tensor(text, dtype=torch.int32)
            found += [(before(text, place), end + place) for place in range(len(text))]
            end += len(text) + 1
        assert end <= width - MAX_DRAFTS
        places[g, : len(found)] = torch.tensor([place for _, place in sorted(found)], dtype=torch.int32)
        counts.append(len(found))
    sizes = torch.tensor(counts, dtype=torch.int32)
    index = SuffixIndex(tokens, places, sizes, torch.tensor([newest]))
    return SuffixIndex(*(tensor.to(device) for tensor in index))


def match_length(row: Text, text: Text, place: int) -> int:
    length = 0
    while length < min(SUFFIX_TOKENS, len(row), place) and text[place - 1 - length] == row[-1 - length]:
        length += 1
    return length


def expected(row: Text, segments: list[list[Text]], k: int) -> tuple[int, Text] | None:
    """Returns the longest match and the drafts; None where not all of its occurrences vote."""
    matches = [
        [(match_length(row, text, place), text[place : place + k]) for text in texts for place in range(len(text))]
        for texts in segments
    ]
    longest = max((length for found in matches for length, _ in found), default=0)
    if not longest:
        return 0, []
    voting = [[text for length, text in found if length == longest] for found in matches]
    if any(len(texts) > NEIGHBOURS for texts in voting) or sum(map(len, voting)) > OCCURRENCES:
        return None
    drafts: Text = []
    votes = [text for texts in voting for text in texts]
    for token in [t for text in votes for t in text] and range(k):
        going_on = [text[token] for text in votes if len(text) > token and text[:token] == drafts]
        chosen = max(going_on, key=going_on.count, default=-1)
        if 2 * going_on.count(chosen) <= len(votes):
            break
        drafts.append(chosen)
    return longest, drafts


def state_of(rows: list[Text], device: str) -> tuple[SlotTensors, torch.Tensor, torch.Tensor]:
    """Returns slots with these texts, in the opposite order, each with a token of an earlier row behind it."""
    tokens = torch.zeros(len(rows), max(map(len, rows)) + 1, dtype=torch.int64, device=device)
    for row, text in enumerate(reversed(rows)):
        tokens[row, : len(text)] = torch.tensor(text)
    none = torch.empty(0, device=device)
    state = SlotTensors(tokens, *(none for _ in SlotTensors._fields[1:]))
    slots = torch.arange(len(rows) - 1, -1, -1, device=device)
    return state, slots, torch.tensor([len(row) for row in rows], device=device)


def texts_and_rows(seed: int, vocab: int, segments: int, rows: int) -> tuple[list[list[Text]], list[Text]]:
    """Returns random texts, and rows of which every second ends like a text."""
    rng = random.Random(seed)

    def text(longest: int) -> Text:
        return [rng.randrange(vocab) for _ in range(rng.randint(1, longest))]

    pool = [[text(30) for _ in range(rng.randint(0, 6))] for _ in range(segments)]
    written = [one for texts in pool for one in texts] or [[0]]
    found = [text(40) for _ in range(rows)]
    for row in range(0, rows, 2):
        source = rng.choice(written)
        found[row] = (found[row] + source[: rng.randint(0, len(source))])[-60:]
    return pool, found


@pytest.mark.parametrize(("seed", "vocab", "segments"), [(0, 2, 1), (1, 3, 3), (2, 9, 16), (3, 300, 5)])
def test_the_majority_behind_the_longest_match_is_proposed(seed: int, vocab: int, segments: int) -> None:
    pool, rows = texts_and_rows(seed, vocab, segments, rows=40)
    index = index_of(pool, 257, newest=seed % segments, device="cpu")
    state, slots, lengths = state_of(rows, "cpu")
    fits = torch.full((len(rows),), 7, dtype=torch.int32)
    found = lookup_suffix(state, index, slots, lengths, fits, k=7)
    fewer = lookup_suffix(state, index, slots, lengths, fits, k=7, min_match=3)
    compared = 0
    for row, text in enumerate(rows):
        if (want := expected(text, pool, 7)) is not None:
            assert (found.matched[row], found.tokens[row, : found.num_tokens[row]].tolist()) == want
            assert fewer.num_tokens[row] == (found.num_tokens[row] if want[0] >= 3 else 0)
            compared += 1
    assert compared > 20


def assert_same(got: Followed, want: Followed) -> None:
    for ours, theirs in zip(got, want, strict=True):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)


@on_each_device
@pytest.mark.parametrize(("seed", "vocab", "segments", "k"), [(4, 2, 1, 1), (5, 3, 3, 15), (6, 9, 16, 5)])
def test_triton_equals_the_reference(device: str, seed: int, vocab: int, segments: int, k: int) -> None:
    pool, rows = texts_and_rows(seed, vocab, segments, rows=9)
    index = index_of(pool, 301, newest=segments // 2, device=device)
    state, slots, lengths = state_of(rows, device)
    fits = torch.tensor([0, k, k // 2] * 3, dtype=torch.int32, device=device)
    want = reference_lookup_suffix(state, index, slots, lengths, fits, k=k, min_match=2)
    assert_same(triton_lookup_suffix(state, index, slots, lengths, fits, k=k, min_match=2), want)
    assert want.matched.amax() > 0 and not want.matched[0] and not want.num_tokens[0]


@on_each_device
def test_the_latest_texts_of_the_newest_segments_vote(device: str) -> None:
    """Every segment has more occurrences of the same match than may vote, and two segments have all votes."""
    prefix = list(range(20))
    old, new = [[*prefix, 50]] * NEIGHBOURS, [[*prefix, 60]] * NEIGHBOURS
    index = index_of([old, old, [*old, *new], [*old, *new]], 2 * NEIGHBOURS * 22 + 99, newest=3, device=device)
    state, slots, lengths = state_of([prefix], device)
    fits = torch.tensor([3], dtype=torch.int32, device=device)
    for function in (reference_lookup_suffix, triton_lookup_suffix):
        for newest, draft in ((3, 60), (1, 50), (2, -1)):
            ring = index._replace(newest=torch.tensor([newest], device=device))
            found = function(state, ring, slots, lengths, fits, k=3, min_match=15)
            assert (found.matched.tolist(), found.tokens.tolist()) == ([SUFFIX_TOKENS], [[draft, -1, -1]])


def test_arguments_out_of_range_are_refused() -> None:
    index = index_of([[[1, 2]]], 60, newest=0, device="cpu")
    state, slots, lengths = state_of([[1]], "cpu")
    call = partial(lookup_suffix, state, slots=slots, lengths=lengths, max_drafts=lengths.int())
    with pytest.raises(ValueError, match=f"k = {MAX_DRAFTS + 1}; expected 1 to {MAX_DRAFTS}"):
        call(index=index, k=MAX_DRAFTS + 1)
    with pytest.raises(ValueError, match="min_match = 0; expected 1 to 15"):
        call(index=index, k=1, min_match=0)
    with pytest.raises(ValueError, match=r"\[\[1, 60\], \[1, 59\], \[1\]\]; expected \[G, M\]"):
        call(index=index._replace(places=index.places[:, 1:]), k=1)
    with pytest.raises(ValueError, match="not contiguous"):
        wide = index.tokens.repeat(1, 2)[:, ::2]
        call(index=index._replace(tokens=wide), k=1)

"""Finished answers on the device: drafts for rows whose last tokens stand in them.

The texts lie in a ring of segments. Texts are appended to the newest segment, and its places are sorted again when
enough of them are new; a full segment stays as it is until the ring comes round and it is cleared as a whole. So a
sort is never larger than a segment, and no index points to text that was overwritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from specpipe.engine.forward.round_rows import RoundRows
from specpipe_kernels import MAX_DRAFTS, SUFFIX_TOKENS, Followed, SuffixIndex, lookup_suffix

SEGMENTS = 16
"""Parts of the ring: clearing one loses a sixteenth of the texts."""
SORT_BYTES = 64
"""Bytes for each place that a sort of a segment allocates at once."""
TOKEN_BYTES = 8 + SORT_BYTES // SEGMENTS
"""Bytes for each token: the token, its place in the order, and its share of the sort of one segment."""
MIN_UNSORTED = 512
"""New places that a sort is worth at least; with 2,048, 300 rows of the embedded pair have 1.77 instead of 1.84 tokens
a round. On an H200 a sort takes 1.1 ms (its launches) up to 260,000 places."""
UNSORTED_SHARE = 8
"""A segment is sorted when an eighth of its places are new: about 45 sorts of 350,000 places in all, 0.1 % of the time
in which a GPU generates 20,000 tokens per second."""
MAX_COLUMNS = 2**27
"""Tokens of a segment, at most: the kernel multiplies positions by numbers up to 16 in 32 bits."""
SEPARATOR = -1
Answer = tuple[Sequence[int], Sequence[int]]
"""Token ids of a prompt and of what was generated behind it."""
_KEY_BITS = 21
"""Bits of a token in a sort key, which holds three of them."""


class Corpus:
    """Pool of finished answers within a fixed number of bytes; the oldest ones go first.

    `add` has one caller, the thread that queues rounds. It waits for nothing: copies and sorts run on the device
    between rounds, on the same stream. All tensors keep their addresses, so captured rounds read what was added later.
    """

    def __init__(self, device: torch.device, *, mib: int, vocab_size: int) -> None:
        """Allocates the pool. mib: all its memory, in MiB, at least 1; vocab_size: ids beyond it are never proposed."""
        width = min(mib * 2**20 // TOKEN_BYTES // SEGMENTS, MAX_COLUMNS)
        self._vocab_size = vocab_size
        shape = (SEGMENTS, width)
        self._index = SuffixIndex(
            tokens=torch.full(shape, SEPARATOR, dtype=torch.int32, device=device),
            places=torch.full(shape, SUFFIX_TOKENS, dtype=torch.int32, device=device),
            num_sorted=torch.zeros(SEGMENTS, dtype=torch.int32, device=device),
            newest=torch.zeros(1, dtype=torch.int64, device=device),
        )
        self._newest, self._used = 0, 1
        self._end, self._places, self._sorted = SUFFIX_TOKENS, 0, 0
        """Of the newest segment: columns written, places, and those of them that are sorted."""
        self._new_tokens: list[int] = []
        self._new_places: list[int] = []

    @property
    def index(self) -> SuffixIndex:
        """The texts and their order: on a CPU without the segments that were never used, on a GPU of fixed shape."""
        if self._index.tokens.is_cpu:
            tokens, places, num_sorted, newest = self._index
            return SuffixIndex(tokens[: self._used], places[: self._used], num_sorted[: self._used], newest)
        return self._index

    def lookup(self, rows: RoundRows, max_drafts: Tensor, k: int, *, min_match: int) -> Followed:
        """Returns up to `max_drafts` [B] int32 drafts of each row; see `lookup_suffix`. Device operations only."""
        return lookup_suffix(rows.state, self.index, rows.slots, rows.lengths, max_drafts, k=k, min_match=min_match)

    def add(self, answers: Iterable[Answer]) -> None:
        """Appends answers.

        Of a prompt the last SUFFIX_TOKENS tokens are stored: they are never proposed, but an answer's first tokens are
        found behind them.
        """
        for prompt, answer in answers:
            self._append(prompt[-SUFFIX_TOKENS:], answer)
        self._upload()
        if self._places - self._sorted >= max(MIN_UNSORTED, self._sorted // UNSORTED_SHARE):
            self._sort()

    def _append(self, context: Sequence[int], answer: Sequence[int]) -> None:
        """Stages an answer for the newest segment; the rest of one that does not fit goes to the next segment."""
        tokens = [token if 0 <= token < self._vocab_size else SEPARATOR for token in (*context, *answer)]
        begin, first = 0, len(context)
        while first < len(tokens):
            room = self._index.tokens.shape[1] - MAX_DRAFTS - self._end - 1
            stop = min(len(tokens), begin + room)
            if stop <= first:
                self._begin_segment()
                continue
            self._new_tokens += [SEPARATOR, *tokens[begin:stop]]
            self._new_places += range(self._end + 1 + first - begin, self._end + 1 + stop - begin)
            self._end += 1 + stop - begin
            begin, first = max(0, stop - SUFFIX_TOKENS), stop

    def _begin_segment(self) -> None:
        """Sorts the full segment and clears the oldest one for what comes next."""
        self._upload()
        self._sort()
        self._newest = (self._newest + 1) % SEGMENTS
        self._used = max(self._used, self._newest + 1)
        self._index.tokens[self._newest].fill_(SEPARATOR)
        self._index.num_sorted[self._newest].fill_(0)
        self._index.newest.fill_(self._newest)
        self._end, self._places, self._sorted = SUFFIX_TOKENS, 0, 0

    def _upload(self) -> None:
        """Copies staged tokens and places to the newest segment."""
        if not self._new_tokens:
            return
        tokens, places = self._index.tokens[self._newest], self._index.places[self._newest]
        _copy(self._new_tokens, tokens[self._end - len(self._new_tokens) : self._end])
        _copy(self._new_places, places[self._places : self._places + len(self._new_places)])
        self._places += len(self._new_places)
        self._new_tokens, self._new_places = [], []

    def _sort(self) -> None:
        """Sorts all places of the newest segment by the tokens before them, those farthest from the place first."""
        tokens, places = self._index.tokens[self._newest], self._index.places[self._newest, : self._places]
        order = places.long()
        for back in range(SUFFIX_TOKENS - 2, 0, -3):
            key = torch.zeros_like(order)
            for token in range(back, back + 3):
                key.mul_(2**_KEY_BITS).add_(tokens[order - token]).add_(1)  # a separator is 0
            order = order[key.argsort(stable=True)]
        places.copy_(order)
        self._sorted = self._places
        self._index.num_sorted[self._newest].fill_(self._sorted)

    def check_integrity(self) -> None:
        """Raises AssertionError if the newest segment and the host's view of it differ. Waits for the device."""
        index, newest = self._index, self._newest
        assert int(index.newest) == newest and int(index.num_sorted[newest]) == self._sorted <= self._places
        assert bool((index.tokens[newest, self._end :] == SEPARATOR).all()), "text behind the last answer"
        assert bool((index.places[newest, : self._places] < self._end).all()), "places behind the last answer"


def _copy(values: Sequence[int], out: Tensor) -> None:
    """Copies numbers to a tensor on the device without waiting for the device."""
    host = torch.tensor(values, dtype=out.dtype)
    out.copy_(host.pin_memory() if out.is_cuda else host, non_blocking=True)

"""Shard planning: fixed row ranges of similar estimated token counts, cut where prompts begin anew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specpipe.core import Shard
from specpipe.data.reading.input_files import InputFile
from specpipe.data.shared_prompts import BLOCK_BYTES, Blocks, limited_rows

BYTES_PER_TOKEN = 4  # English text in common vocabularies; precise enough for shard sizes
_PARTS = 4  # shards in a worker's share of the remaining tokens: it holds two, the other two balance the load
_SMALLEST = 16  # smallest shard: 1/16 of a full one, or of half a worker's share of all tokens if that is less
_SLACK = 4  # a shard may be a quarter longer or shorter, to end where a group of prompts ends


def plan_shards(
    files: Sequence[InputFile],
    *,
    shard_tokens: int,
    max_new_tokens: int,
    workers: int,
    max_prompt_tokens: int | None = None,
    limit: int | None = None,
    samples: int = 1,
    shared: Blocks | None = None,
    least_rows: int = 1,
) -> tuple[Shard, ...]:
    """Returns shards that contain every row of `files` once, in order; no shard spans two files. Deterministic.

    A shard has about `shard_tokens` tokens (prompt + output). Towards the end shards shrink to a quarter of a worker's
    share of the remaining tokens (guided self-scheduling, Polychronopoulos and Kuck 1987), so that the workers finish
    together. limit: number of rows to plan, from the first; None for all. samples: outputs per row.

    least_rows: input rows of a shard, at least, unless a worker would have fewer than two shards then.

    shared: [rows] as `shared_blocks` returns it. What a prompt shares with the row before counts as no tokens, and a
    shard ends at the row that shares least with the next one, within a quarter of its rows.
    """
    plans = []
    first_row = 0
    for file, rows in limited_rows(files, limit):
        cost = _tokens_per_row(file, max_new_tokens, max_prompt_tokens, samples)
        own = None if shared is None else shared[first_row : first_row + rows]
        plans.append(_FileRows(file, rows, first_row, cost, samples * max_new_tokens, own))
        first_row += rows
    left = sum(plan.tokens(0, plan.rows) for plan in plans)
    smallest = max(1, min(shard_tokens, left // (2 * workers)) // _SMALLEST)
    least_rows = max(1, min(least_rows, first_row // (2 * workers)))
    shards: list[Shard] = []
    for plan in plans:
        start = 0
        while start < plan.rows:
            budget = min(shard_tokens, max(smallest, left // (_PARTS * workers)))
            stop = min(plan.rows, max(start + least_rows, plan.end_of_shard(start, budget)))
            shards.append(plan.shard(len(shards), start, stop, samples))
            left -= plan.tokens(start, stop)
            start = stop
    return tuple(shards)


class _FileRows:
    """The rows of one file that are planned, with their estimated tokens."""

    def __init__(
        self, file: InputFile, rows: int, first_row: int, cost: int, output: int, shared: Blocks | None
    ) -> None:
        """cost: tokens of a row that shares nothing; output: those among them that are generated."""
        self.file, self.rows, self._first_row, self._cost, self._shared = file, rows, first_row, cost, shared
        self._ends: NDArray[np.int64] | None = None
        """[rows + 1] tokens of all rows before each; None where every row costs the same."""
        if shared is not None:
            saved = shared.astype(np.int64) * (BLOCK_BYTES // BYTES_PER_TOKEN)
            self._ends = np.concatenate([[0], np.cumsum(np.maximum(cost - saved, max(1, output)))])

    def tokens(self, start: int, stop: int) -> int:
        """Returns the tokens of rows [start, stop)."""
        return (stop - start) * self._cost if self._ends is None else int(self._ends[stop] - self._ends[start])

    def end_of_shard(self, start: int, budget: int) -> int:
        """Returns the end of a shard of about `budget` tokens that begins at row `start`."""
        if self._ends is None or self._shared is None:
            return min(self.rows, start + max(1, budget // self._cost))
        stop = int(np.searchsorted(self._ends, self._ends[start] + budget, side="right")) - 1
        slack = (stop - start) // _SLACK
        if stop + slack >= self.rows or not slack:
            return min(self.rows, max(start + 1, stop))
        window = self._shared[stop - slack : stop + slack + 1]
        nearest = np.abs(np.arange(-slack, slack + 1))
        return stop - slack + int(np.lexsort((nearest, window))[0])

    def shard(self, index: int, start: int, stop: int, samples: int) -> Shard:
        """Returns the shard of rows [start, stop)."""
        return Shard(
            index=index,
            file=self.file.path,
            start=start,
            stop=stop,
            first_row=self._first_row + start,
            samples=samples,
            continues=bool(start and self._shared is not None and self._shared[start]),
        )


def _tokens_per_row(file: InputFile, max_new_tokens: int, max_prompt_tokens: int | None, samples: int) -> int:
    """Returns the estimated tokens of all samples of a row that shares nothing with another row."""
    prompt = file.prompt_bytes // BYTES_PER_TOKEN
    return samples * (max_new_tokens + (prompt if max_prompt_tokens is None else min(prompt, max_prompt_tokens)))

"""Shard planning: fixed row ranges of similar estimated token counts."""

from __future__ import annotations

from collections.abc import Sequence

from specpipe.core import Shard
from specpipe.data.reading.input_files import InputFile

BYTES_PER_TOKEN = 4  # English text in common vocabularies; precise enough for shard sizes
_PARTS = 4  # shards in a worker's share of the remaining tokens: it holds two, the other two balance the load
_SMALLEST = 16  # smallest shard: 1/16 of a full one, or of half a worker's share of all tokens if that is less


def plan_shards(
    files: Sequence[InputFile],
    *,
    shard_tokens: int,
    max_new_tokens: int,
    workers: int,
    max_prompt_tokens: int | None = None,
    limit: int | None = None,
    samples: int = 1,
) -> tuple[Shard, ...]:
    """Returns shards that contain every row of `files` once, in order; no shard spans two files. Deterministic.

    A shard has about `shard_tokens` tokens (prompt + output). Towards the end shards shrink to a quarter of a worker's
    share of the remaining tokens (guided self-scheduling, Polychronopoulos and Kuck 1987), so that the workers finish
    together. limit: number of rows to plan, from the first; None for all. samples: outputs per row.
    """
    ranges = _limited(files, limit)
    costs = [samples * _tokens_per_row(file, max_new_tokens, max_prompt_tokens) for file, _ in ranges]
    left = sum(cost * rows for cost, (_, rows) in zip(costs, ranges, strict=True))
    smallest = max(1, min(shard_tokens, left // (2 * workers)) // _SMALLEST)
    shards: list[Shard] = []
    first_row = 0
    for (file, rows), cost in zip(ranges, costs, strict=True):
        start = 0
        while start < rows:
            budget = min(shard_tokens, max(smallest, left // (_PARTS * workers)))
            take = min(rows - start, max(1, budget // cost))
            index, stop, position = len(shards), start + take, first_row + start
            shards.append(
                Shard(index=index, file=file.path, start=start, stop=stop, first_row=position, samples=samples)
            )
            start += take
            left -= take * cost
        first_row += rows
    return tuple(shards)


def _tokens_per_row(file: InputFile, max_new_tokens: int, max_prompt_tokens: int | None) -> int:
    prompt = file.prompt_bytes // BYTES_PER_TOKEN
    return max_new_tokens + (prompt if max_prompt_tokens is None else min(prompt, max_prompt_tokens))


def _limited(files: Sequence[InputFile], limit: int | None) -> list[tuple[InputFile, int]]:
    ranges, left = [], sum(file.rows for file in files) if limit is None else limit
    for file in files:
        rows = min(file.rows, left)
        left -= rows
        if rows:
            ranges.append((file, rows))
    return ranges

"""Prompts that begin alike: how much of each row's prompt repeats the row before it, for shard planning.

Only neighbours are compared, so memory is one byte per row. Rows that share a beginning stand together in the datasets
of evaluations; where they do not, workers still find what the rows that they hold have in common.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from specpipe.data.columns import PROMPT_COLUMNS
from specpipe.data.reading.dataset_rows import read_rows
from specpipe.data.reading.input_files import InputFile

log = logging.getLogger(__name__)
BLOCK_BYTES = 256
"""Bytes of a prompt that are compared at a time: about a KV page of 64 tokens."""
MAX_BLOCKS = 255
"""Blocks of a row that are counted, at most: 16,000 tokens."""
SCAN_ROWS, SCAN_BYTES = 1 << 20, 512 << 20
"""Rows and prompt bytes of the largest dataset that is compared: at most ten seconds of reading (6 to 11 us a row)."""

Blocks = NDArray[np.uint8]


def shared_blocks(files: Sequence[InputFile], prompt_column: str | None, limit: int | None = None) -> Blocks | None:
    """Returns for each row of the dataset the blocks of BLOCK_BYTES that its prompt shares with the row before.

    [rows] uint8, counted from the first byte; 0 for the first row of a file. Returns None for a dataset of more
    than SCAN_ROWS or SCAN_BYTES, for one that cannot be read (its shards report why), and where no row shares a block.
    limit: number of rows to read, from the first; None for all.
    """
    ranges = list(limited_rows(files, limit))
    rows, size = sum(rows for _, rows in ranges), sum(file.prompt_bytes * rows for file, rows in ranges)
    if rows > SCAN_ROWS or size > SCAN_BYTES:
        log.info(
            "%d prompts of %d MiB are not compared with each other (limits: %d, %d MiB): shards are cut by size alone",
            *(rows, size >> 20, SCAN_ROWS, SCAN_BYTES >> 20),
        )
        return None
    columns = (prompt_column,) if prompt_column else PROMPT_COLUMNS
    counts = (_shared_in_file(file, rows, columns) for file, rows in ranges)
    try:
        blocks = np.fromiter(chain.from_iterable(counts), np.uint8)
    except (pa.ArrowException, OSError):
        return None
    return blocks if blocks.any() else None


def limited_rows(files: Sequence[InputFile], limit: int | None) -> Iterator[tuple[InputFile, int]]:
    """Yields each file with the number of its rows among the first `limit` rows of all files, where there are any."""
    left = sum(file.rows for file in files) if limit is None else limit
    for file in files:
        rows = min(file.rows, left)
        left -= rows
        if rows:
            yield file, rows


def _shared_in_file(file: InputFile, rows: int, columns: Sequence[str]) -> Iterator[int]:
    """Yields the shared blocks of the first rows of a file."""
    before = b""
    for row in read_rows(file, 0, rows, columns):
        prompt = next((_as_bytes(v) for name in columns if (v := (row.values or {}).get(name)) is not None), b"")
        yield _common_blocks(before, prompt)
        before = prompt


def _common_blocks(first: bytes, second: bytes) -> int:
    """Returns the number of whole blocks that two prompts have in common at their beginning."""
    low, high = 0, min(len(first), len(second)) // BLOCK_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if first[low * BLOCK_BYTES : middle * BLOCK_BYTES] == second[low * BLOCK_BYTES : middle * BLOCK_BYTES]:
            low = middle
        else:
            high = middle - 1
    return min(low, MAX_BLOCKS)


def _as_bytes(value: object) -> bytes:
    """Returns the value of a prompt column as bytes, in the order in which a model reads it; 4 bytes per token id."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    if isinstance(value, Mapping):  # a turn of a chat, or the body of an OpenAI batch line
        keys = ("messages", "prompt", "role", "from", "content", "value", "text")
        return b"\0".join(_as_bytes(value[key]) for key in keys if value.get(key) is not None)
    if isinstance(value, Sequence) and value and isinstance(value[0], int):
        try:
            return np.frombuffer(array("q", value), dtype=np.int64).astype("<u4").tobytes()
        except (TypeError, OverflowError):  # not token ids: the row will get an error
            return repr(value).encode()
    return b"\0".join(map(_as_bytes, value)) if isinstance(value, Sequence) else b""

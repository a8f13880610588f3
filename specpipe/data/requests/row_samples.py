"""Several outputs of one row: the same prompt, drawn with seeds of their own."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from specpipe.core import Completion, Request


def hash_seed(*parts: int) -> int:
    """63 bits that depend on every part."""
    digest = hashlib.blake2b(":".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def sample_seed(seed: int, sample: int) -> int:
    """The seed of a row's sample; sample 0 keeps the row's own, whatever the number of samples."""
    return hash_seed(seed, sample) if sample else seed


def expand_samples(built: Request | Completion, samples: int) -> Iterator[Request | Completion]:
    """`samples` copies of a shard's row number r, as its output rows r * samples and on. A bad row is bad each time."""
    request = built if isinstance(built, Request) else built.request
    for sample in range(samples):
        copy = dataclasses.replace(
            request, row=request.row * samples + sample, sample=sample, seed=sample_seed(request.seed, sample)
        )
        yield copy if isinstance(built, Request) else dataclasses.replace(built, request=copy)


def repeat_rows(table: Any, samples: int) -> Any:
    """A pyarrow.Table with every row `samples` times, side by side."""
    return table if samples == 1 else table.take(np.repeat(np.arange(table.num_rows), samples))

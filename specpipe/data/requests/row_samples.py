"""Samples of a row: several outputs of the same prompt, each with its own seed."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from specpipe.core import Completion, Request


def hash_seed(*parts: int) -> int:
    """Returns a 63-bit hash of all parts."""
    digest = hashlib.blake2b(":".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def sample_seed(seed: int, sample: int) -> int:
    """Returns the seed of a row's sample. Sample 0 has the row's seed, for any number of samples."""
    return hash_seed(seed, sample) if sample else seed


def expand_samples(built: Request | Completion, samples: int) -> Iterator[Request | Completion]:
    """Yields `samples` copies of a shard's row r, as output rows r * samples and following; of error rows too."""
    request = built if isinstance(built, Request) else built.request
    for sample in range(samples):
        copy = dataclasses.replace(
            request, row=request.row * samples + sample, sample=sample, seed=sample_seed(request.seed, sample)
        )
        yield copy if isinstance(built, Request) else dataclasses.replace(built, request=copy)


def repeat_rows(table: Any, samples: int) -> Any:
    """Returns a pyarrow.Table with every row repeated `samples` times, consecutively."""
    return table if samples == 1 else table.take(np.repeat(np.arange(table.num_rows), samples))

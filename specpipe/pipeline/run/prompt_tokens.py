"""Prompt tokens of a run and the shared ones among them, from the dataset and the target's tokenizer alone.

Every page of a prefix counts as computed once by each worker that runs rows behind it, and stays in memory while the
worker's pages last: the least recently used page goes first. Score rows may share less than a page more.
"""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, groupby, islice
from operator import attrgetter

from specpipe.core import Request, Shard
from specpipe.data import InputFile, RequestBuilder, read_rows
from specpipe.engine.state.prefix_tree import prefix_keys
from specpipe.engine.state.scored_rows import score_windows
from specpipe.pipeline.driver.tasks import TaskQueue

EXACT_BYTES = 16 << 20
"""Prompt bytes up to which all rows are read: 7 s with one thread, measured with a vocabulary of 1,536 tokens."""
ROW_BYTES = 400
"""Prompt bytes that take as long to tokenise as all else takes for a row (0.15 ms)."""
STRETCHES = 64
"""Places, evenly spaced, at which a larger dataset is sampled."""
_BATCH = 256  # rows in memory at once
_THREADS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptTokens:
    """Tokens of the prompts of all output rows."""

    total: int
    shared: int
    """Tokens whose KV rows find computed: what a run sums up as `total_cached_tokens`."""
    estimated: bool = False
    """True for figures from a sample of rows, and for `shared` with several workers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerPages:
    """KV memory of a worker."""

    page_size: int
    """Tokens of a page."""
    count: int
    """Pages."""
    shared: bool
    """False where rows share no prefix (`workers.prefix_sharing`)."""


def count_prompt_tokens(
    files: Sequence[InputFile],
    shards: Sequence[Shard],
    builder: RequestBuilder,
    pages: WorkerPages,
    *,
    workers: int,
) -> PromptTokens:
    """Returns the prompt tokens of these shards: exact for a small dataset and one worker, else estimated.

    shards: those of the whole run, in order. Raises ModelError where the model cannot serve the job at all, and OSError
    or pyarrow's errors for a file that cannot be read.
    """
    reader = _Reader(files, builder)
    work = sum((reader.files[shard.file].prompt_bytes + ROW_BYTES) * shard.input_rows for shard in shards)
    with ThreadPoolExecutor(min(_THREADS, len(os.sched_getaffinity(0)))) as reader.threads:
        if work > EXACT_BYTES:
            return _estimate(reader, shards, pages, EXACT_BYTES / work)
        total, shared = _simulate(reader, shards, pages, workers)
    return PromptTokens(total=total, shared=shared, estimated=workers > 1)


class PrefixCache:
    """Prefixes of one worker, as hashes of their pages."""

    def __init__(self, pages: WorkerPages) -> None:
        self._pages = pages
        self._known: OrderedDict[bytes, None] = OrderedDict()
        """Pages in memory, least recently used first. The hash of a page covers the pages before it."""
        self._tails: set[bytes] = set()
        """Whole prompts of the current shard."""

    def cached_tokens(self, request: Request, max_model_len: int) -> int:
        """Returns the prompt tokens that a row finds, and records the others as computed."""
        if not self._pages.shared:
            return 0
        prompt = request.prompt_token_ids
        if not request.continuations:
            return self._cached(prompt)
        windows = (score_windows(prompt, scored, max_model_len) for scored in request.continuations)
        return min(len(prompt), *(self._cached(window.context) for each in windows for window in each))

    def _cached(self, tokens: Sequence[int]) -> int:
        keys, digest = prefix_keys(tokens, self._pages.page_size), b""
        chain: list[bytes] = []
        for key in keys.pages:
            digest = _digest(digest + key)
            chain.append(digest)
        found = next((i for i, page in enumerate(chain) if page not in self._known), len(chain))
        for page in reversed(chain):  # a page stays longer than those behind it
            self._known[page] = None
            self._known.move_to_end(page)
        while len(self._known) > self._pages.count:
            self._known.popitem(last=False)
        tail = _digest(b"tail" + digest + keys.tail)
        if found == len(chain) and tail in self._tails:
            return len(tokens) - 1
        self._tails.add(tail)
        return found * self._pages.page_size

    def end_shard(self) -> None:
        """Forgets what only rows of one shard share: the rest of equal prompts, less than a page."""
        self._tails.clear()


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


class _Reader:
    """Requests of a dataset's rows. `threads` tokenise them."""

    threads: ThreadPoolExecutor

    def __init__(self, files: Sequence[InputFile], builder: RequestBuilder) -> None:
        self.files = {file.path: file for file in files}
        self.builder = builder

    def requests(self, shard: Shard) -> Iterator[Request | None]:
        """Yields for each input row of a shard its request; None for a row that has none."""
        rows = read_rows(self.files[shard.file], shard.start, shard.stop, self.builder.columns)
        while batch := list(islice(rows, _BATCH)):
            for built in self.threads.map(lambda row: self.builder.build(row, shard), batch):
                yield built if isinstance(built, Request) else None

    def count(self, requests: Iterable[Request | None], cache: PrefixCache, samples: int) -> tuple[int, int]:
        """Returns the prompt tokens of `samples` rows for each request, and the shared ones among them."""
        total = shared = 0
        for request in filter(None, requests):
            total += samples * len(request.prompt_token_ids)
            shared += sum(cache.cached_tokens(request, self.builder.max_model_len) for _ in range(samples))
        return total, shared


def _simulate(reader: _Reader, shards: Sequence[Shard], pages: WorkerPages, workers: int) -> tuple[int, int]:
    """Returns all prompt tokens and the shared ones. A worker takes its next shard when it has computed the last."""
    queue, caches = TaskQueue(shards), {f"worker-{i}": PrefixCache(pages) for i in range(workers)}
    free_at = [(0, name) for name in caches]
    total = shared = 0
    while queue:
        now, name = heapq.heappop(free_at)
        task = queue.take(worker=name, idle=True, workers=caches.keys())
        assert task is not None
        tokens, found = reader.count(reader.requests(task.shard), caches[name], task.shard.samples)
        caches[name].end_shard()
        total, shared = total + tokens, shared + found
        output = task.rows * reader.builder.sampling.max_new_tokens
        heapq.heappush(free_at, (now + tokens - found + output, name))
    return total, shared


def _estimate(reader: _Reader, shards: Sequence[Shard], pages: WorkerPages, share: float) -> PromptTokens:
    """Returns figures from `share` of all rows, in evenly spaced stretches.

    The row before a stretch is read too, and not counted, so that the first row finds what it shares with it.
    """
    rows = sum(shard.input_rows for shard in shards)
    cache = PrefixCache(pages)
    total = shared = counted = 0
    for stretch in _stretches(shards, rows, max(1, int(share * rows / STRETCHES))):
        requests = reader.requests(stretch)
        before = int(stretch.continues)
        reader.count(islice(requests, before), cache, stretch.samples)
        tokens, found = reader.count(requests, cache, stretch.samples)
        cache.end_shard()
        total, shared, counted = total + tokens, shared + found, counted + stretch.input_rows - before
    return PromptTokens(total=total * rows // counted, shared=shared * rows // counted, estimated=True)


def _stretches(shards: Sequence[Shard], rows: int, length: int) -> Iterator[Shard]:
    """Yields STRETCHES ranges of `length` rows, fewer where the file ends. rows: those of all shards.

    `continues` says that a range begins with the row before, which all have but those at the beginning of a file.
    """
    parts = [list(of_file) for _, of_file in groupby(shards, key=attrgetter("file"))]
    files = [dataclasses.replace(part[0], stop=part[-1].stop) for part in parts]
    ends = list(accumulate(file.input_rows for file in files))
    for i in range(STRETCHES):
        first = rows * i // STRETCHES
        number = bisect_right(ends, first)
        file = files[number]
        start = file.stop - (ends[number] - first)
        before = int(start > file.start)
        yield dataclasses.replace(
            file, start=start - before, stop=min(start + length, file.stop), continues=bool(before)
        )

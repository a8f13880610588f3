"""Share of a dataset's rows that have an earlier answer, for a dry run."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator

from specpipe.core import Request, Shard
from specpipe.data import RequestBuilder, expand_samples, read_rows
from specpipe.data.answers.answer_files import AnswerFile
from specpipe.data.answers.answer_index import AnswerIndex, build_answer_index
from specpipe.data.answers.answer_keys import RowKeys, request_keys
from specpipe.pipeline.prepare import PreparedJob

_ROWS = 10_000
"""Output rows that are looked up, from the first: about five seconds of tokenizing."""


def describe_coverage(prepared: PreparedJob, files: tuple[AnswerFile, ...], builder: RequestBuilder) -> str:
    """Returns one line: how many rows have an earlier answer, and where."""
    where = ", ".join(prepared.job.speculation.replay)
    if not files:
        return f"no earlier answers in {where} yet"
    with tempfile.TemporaryDirectory(prefix="specpipe-answers-") as folder:
        path = os.path.join(folder, "index")
        build_answer_index(files, path)
        index = AnswerIndex.open(path)
        keys = list(itertools.islice(_keys(prepared, builder, index), _ROWS + 1))
        found = sum(place is not None for place in index.find(keys[:_ROWS]))
    rows = f"the first {_ROWS:,}" if len(keys) > _ROWS else f"{len(keys):,}"
    unread = f"; {len(index.unread)} of {len(files):,} files cannot be read ({index.unread[0]})" if index.unread else ""
    return f"{found:,} of {rows} rows have an answer in {where}{unread}"


def _keys(prepared: PreparedJob, builder: RequestBuilder, index: AnswerIndex) -> Iterator[RowKeys]:
    """Yields the keys of the dataset's output rows; those that no request can be made of are left out."""
    job, first_row = prepared.job, 0
    for file in prepared.files:
        stop = min(file.rows, job.data.limit - first_row if job.data.limit else file.rows)
        shard = Shard(index=0, file=file.path, start=0, stop=stop, first_row=first_row, samples=job.sampling.n)
        for row in read_rows(file, 0, max(0, stop), builder.columns):
            stored = row.values if index.has_texts else None
            for request in expand_samples(builder.build(row, shard), shard.samples):
                if isinstance(request, Request) and not request.continuations:
                    yield request_keys(request, stored, job.data.prompt)
        first_row += file.rows

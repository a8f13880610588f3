"""Reads the rows of a shard and turns them into requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from specpipe.core import Completion, Request, Shard
from specpipe.data import (
    RequestBuilder,
    RowHasher,
    expand_samples,
    read_kept_columns,
    read_rows,
    repeat_rows,
    require_unchanged,
)
from specpipe.data.answers.answer_keys import RowKeys, request_keys
from specpipe.data.answers.earlier_answers import EarlierAnswers
from specpipe.pipeline.prepare import PreparedJob


class ShardRows(NamedTuple):
    """The rows of a shard, by whether an engine can run them."""

    requests: list[Request]
    refused: list[Completion]
    """Rows that cannot become a request, as completions with an error."""
    shard_hash: str
    """Hash of all rows as they were read."""


class ShardReader:
    """Reads shards of the prepared input files."""

    def __init__(self, prepared: PreparedJob, builder: RequestBuilder, answers: EarlierAnswers | None = None) -> None:
        """answers: those that rows follow; None where they follow none."""
        self._files = {file.path: file for file in prepared.files}
        self._kept_schema = prepared.kept
        self._builder, self._answers = builder, answers

    def rows(self, shard: Shard) -> ShardRows:
        """Reads the rows of a shard. Raises DataError when its file has changed since the run was prepared."""
        hasher = RowHasher()
        requests: list[Request] = []
        keys: list[RowKeys] = []
        refused: list[Completion] = []
        file = self._files[shard.file]
        require_unchanged(file)
        for row in read_rows(file, shard.start, shard.stop, self._builder.columns):
            hasher.update(row)
            for built in expand_samples(self._builder.build(row, shard), shard.samples):
                if isinstance(built, Completion):
                    refused.append(built)
                    continue
                requests.append(built)
                if self._answers is not None:
                    stored = row.values if self._answers.has_texts else None
                    keys.append(request_keys(built, stored, self._builder.prompt_column))
        return ShardRows(self._with_references(requests, keys), refused, hasher.hexdigest())

    def _with_references(self, requests: list[Request], keys: Sequence[RowKeys]) -> list[Request]:
        """Returns the requests with their earlier answers, score rows without."""
        if self._answers is None:
            return requests
        references = self._answers.find(keys)
        return [
            dataclasses.replace(request, reference=reference) if reference and not request.continuations else request
            for request, reference in zip(requests, references, strict=True)
        ]

    def kept_columns(self, shard: Shard) -> Any:
        """Returns a pyarrow.Table of the input columns to copy, one row per output row; None without such columns."""
        if self._kept_schema is None:
            return None
        kept = read_kept_columns(self._files[shard.file], shard.start, shard.stop, self._kept_schema)
        return repeat_rows(kept, shard.samples)

"""Earlier answers of rows as token ids, looked up by prompt, else by identifier."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from specpipe.data.answers.answer_files import TokenIds, Tokenize
from specpipe.data.answers.answer_index import AnswerIndex
from specpipe.data.answers.answer_keys import RowKeys
from specpipe.errors import SpecpipeError

log = logging.getLogger(__name__)
_UNREADABLE = (SpecpipeError, OSError, pa.ArrowException, ValueError, KeyError)
_CHUNK = 256  # answers read at a time where not all of a file may be needed


class EarlierAnswers:
    """Reads the answers that an index finds. A file that cannot be read is logged once and gives no answers."""

    def __init__(self, index: AnswerIndex, tokenize: Tokenize, *, vocab_size: int, max_tokens: int) -> None:
        """tokenize: text to token ids. max_tokens: length to which answers are cut."""
        self._index, self._tokenize = index, tokenize
        self._vocab_size, self._max_tokens = vocab_size, max_tokens
        self._unreadable: set[int] = set()

    @property
    def has_texts(self) -> bool:
        """True if keys of prompts as the dataset holds them are of use."""
        return self._index.has_texts

    def find(self, rows: Sequence[RowKeys]) -> list[tuple[int, ...]]:
        """Returns the earlier answer of each row as token ids; empty for a row without one."""
        places = self._index.find(rows)
        by_file: dict[int, dict[int, list[int]]] = {}
        for i, place in enumerate(places):
            if place is not None:
                by_file.setdefault(place.file, {}).setdefault(place.row, []).append(i)
        found: list[tuple[int, ...]] = [()] * len(rows)
        for file, wanted in by_file.items():
            for row, ids in self._read(file, sorted(wanted)):
                answer = tuple(ids.tolist())
                for i in wanted[row]:
                    found[i] = answer
        return found

    def latest(self, max_tokens: int) -> Iterator[tuple[int, ...]]:
        """Yields answers of the first source, such as the newest run of a glob, until they have `max_tokens` tokens."""
        left = max_tokens
        for number, file in enumerate(self._index.files):
            if file.source != self._index.files[0].source:
                return
            try:
                rows = [row for row, _ in file.rows()] if left > 0 else []
            except _UNREADABLE:
                continue  # reported when the index was built
            for at in range(0, len(rows), _CHUNK):
                for _, ids in self._read(number, rows[at : at + _CHUNK]):
                    left -= len(ids)
                    yield tuple(ids.tolist())
                if left <= 0:
                    return

    def _read(self, number: int, rows: Sequence[int]) -> Iterator[tuple[int, TokenIds]]:
        """Yields position and answer of these rows of a file. An answer ends before a token that the model lacks."""
        if number in self._unreadable or not rows:
            return
        try:
            for row, ids in self._index.files[number].answers(rows, self._tokenize):
                foreign = np.flatnonzero((ids < 0) | (ids >= self._vocab_size))
                yield row, ids[: min(self._max_tokens, *foreign[:1].tolist(), len(ids))]
        except _UNREADABLE as error:
            self._unreadable.add(number)
            path = self._index.files[number].file.path
            log.warning("%s: its earlier answers cannot be read, and their rows run without: %s", path, error)

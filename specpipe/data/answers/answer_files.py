"""Files with earlier answers: parts of runs, which hold token ids, and datasets, which hold texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specpipe.data.answers.answer_keys import RowKeys, identifier_key, stored_prompt_key, text_key
from specpipe.data.columns import ANSWER_COLUMNS, ID_COLUMNS, PROMPT_COLUMNS
from specpipe.data.locations import locate
from specpipe.data.reading.dataset_rows import Row, read_rows, utf8
from specpipe.data.reading.input_files import InputFile
from specpipe.data.reading.table_formats import read_batches
from specpipe.data.requests.request_builder import expected_identity

TokenIds = NDArray[np.int64]
Tokenize = Callable[[str], Sequence[int]]
_PART_COLUMNS = ("prompt", "request_id", "sample", "error", "num_generated_tokens")


class AnswerRow(NamedTuple):
    """A row with an answer."""

    row: int
    """Position in its file."""
    keys: RowKeys


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerFile:
    """One file with answers."""

    file: InputFile
    source: int
    """Number of the run or dataset that it belongs to; of several answers, that of the lowest number is used."""
    is_part: bool
    """Part of a run with this job's vocabulary; False for a dataset with a column of texts."""
    first_row: int = 0
    """Position of its first row in its dataset, by which rows without an identifier are identified."""
    prompt_column: str | None = None
    """data.prompt of the job."""

    def rows(self) -> Iterator[AnswerRow]:
        """Yields the rows with an answer: no failed row, no empty text. Raises OSError or pyarrow's errors."""
        return self._part_rows() if self.is_part else self._text_rows()

    def answers(self, rows: Sequence[int], tokenize: Tokenize) -> Iterator[tuple[int, TokenIds]]:
        """Yields position and token ids of these rows' answers. rows: ascending. Raises as `rows`."""
        return self._part_answers(rows) if self.is_part else self._text_answers(rows, tokenize)

    def _part_rows(self) -> Iterator[AnswerRow]:
        row = 0
        for batch in read_batches(locate(self.file.path), "parquet", 0, self.file.rows, _PART_COLUMNS):
            columns = (batch.column(name).to_pylist() for name in _PART_COLUMNS)
            for prompt, identifier, sample, error, tokens in zip(*columns, strict=True):
                if tokens and not error:
                    prompts = (text_key(prompt),) if prompt else ()
                    yield AnswerRow(row, RowKeys(prompts, identifier_key(identifier), sample))
                row += 1

    def _part_answers(self, rows: Sequence[int]) -> Iterator[tuple[int, TokenIds]]:
        first, stop, column = rows[0], min(rows[-1] + 1, self.file.rows), "generated_token_ids"
        at = 0
        for batch in read_batches(locate(self.file.path), "parquet", first, stop, (column,)):
            offsets = batch.column(column).offsets.to_numpy()
            values = batch.column(column).values.to_numpy(zero_copy_only=False)
            while at < len(rows) and rows[at] - first < batch.num_rows:
                begin, end = offsets[rows[at] - first : rows[at] - first + 2]
                yield rows[at], values[begin:end].astype(np.int64)
                at += 1
            first += batch.num_rows

    def _text_rows(self) -> Iterator[AnswerRow]:
        names = (self.prompt_column,) if self.prompt_column else ()
        columns = (*names, *PROMPT_COLUMNS, *ID_COLUMNS, *ANSWER_COLUMNS, "sample")
        for row in read_rows(self.file, 0, self.file.rows, columns):
            if row.values is None or not self._text_of(row):
                continue
            position = self.first_row + row.index_in_file
            name, _ = expected_identity(row, position, job_seed=0, prompt_column=self.prompt_column)
            prompt = stored_prompt_key(row.values, self.prompt_column)
            prompts = () if prompt is None else (prompt,)
            yield AnswerRow(row.index_in_file, RowKeys(prompts, identifier_key(name), _sample_of(row.values)))

    def _text_answers(self, rows: Sequence[int], tokenize: Tokenize) -> Iterator[tuple[int, TokenIds]]:
        wanted = set(rows)
        for row in read_rows(self.file, rows[0], min(rows[-1] + 1, self.file.rows), ANSWER_COLUMNS):
            if row.index_in_file in wanted:
                yield row.index_in_file, np.asarray(tokenize(utf8(self._text_of(row))), np.int64)

    def _text_of(self, row: Row) -> str:
        """Returns the first text among the answer columns of a row; "" without one."""
        values = row.values or {}
        names = (name for name in ANSWER_COLUMNS if name != self.prompt_column)
        return next((text for name in names if isinstance(text := values.get(name), str) and text), "")


def _sample_of(values: Mapping[str, object]) -> int:
    sample = values.get("sample")
    return sample if isinstance(sample, int) and sample > 0 else 0

"""Log-probabilities of a shard as Arrow columns, without a Python object per value: a shard has millions.

Shapes: T generated tokens of a row; n most likely tokens per position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from specpipe.core import Logprobs
from specpipe.data.columns import LOGPROB_COLUMNS


def logprob_columns(rows: Sequence[Logprobs | None]) -> dict[str, Any]:
    """Returns LOGPROB_COLUMNS as pyarrow list arrays, one entry per row; null for rows without log-probabilities.

    Row arrays: own [T] float32, top_ids [T, n] int32 (-1 for an absent entry), top [T, n] float32.
    """
    present = [row for row in rows if row is not None]
    none = pa.array([row is None for row in rows], pa.bool_())
    tokens = _offsets(np.array([0 if row is None else len(row.own) for row in rows], dtype=np.int64))
    ids = [np.asarray(row.top_ids, dtype=np.int32).reshape(len(row.own), row.n) for row in present]
    tops = _offsets(_joined([(i >= 0).sum(axis=1) for i in ids], np.int64))
    kept_ids = _joined([i[i >= 0] for i in ids], np.int32)
    top = [np.asarray(row.top, dtype=np.float32).reshape(i.shape)[i >= 0] for row, i in zip(present, ids, strict=True)]
    own = _joined([np.asarray(row.own, dtype=np.float32) for row in present], np.float32)
    values = (
        pa.array(own),
        pa.ListArray.from_arrays(tops, pa.array(kept_ids)),
        pa.ListArray.from_arrays(tops, pa.array(_joined(top, np.float32))),
    )
    arrays = [pa.ListArray.from_arrays(tokens, value, mask=none) for value in values]
    return dict(zip(LOGPROB_COLUMNS, arrays, strict=True))


def _offsets(lengths: NDArray[np.int64]) -> Any:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())


def _joined(parts: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *parts])

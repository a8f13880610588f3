"""Evaluation history: a Parquet file with one row per metric and evaluation."""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from specpipe.data.publish import publish_bytes
from specpipe.errors import DataError
from specpipe.evaluation.compare.comparison import Comparison
from specpipe.evaluation.schedule.eval_job import EvalJob

SCHEMA = pa.schema(
    [
        pa.field("time", pa.timestamp("s", tz="UTC"), nullable=False),
        *(pa.field(name, pa.string(), nullable=False) for name in ("job", "folder", "task", "filter", "metric")),
        pa.field("n", pa.int64(), nullable=False),
        *(
            pa.field(name, pa.float64(), nullable=False)
            for name in (
                "baseline",
                "baseline_stderr",
                "candidate",
                "candidate_stderr",
                "difference",
                "difference_stderr",
                "exact_match_rate",
                "acceptance_length",
                "acceptance_rate",
                "baseline_output_throughput",
                "candidate_output_throughput",
            )
        ),
        *(pa.field(name, pa.string(), nullable=False) for name in ("finding", "target", "target_revision", "specpipe")),
    ]
)


def history_rows(job: EvalJob, comparison: Comparison) -> list[dict[str, Any]]:
    """Returns rows of SCHEMA for one evaluation."""
    a, b, texts = comparison.a.measured, comparison.b.measured, comparison.texts
    facts = {
        "time": datetime.datetime.now(datetime.UTC).replace(microsecond=0),
        "job": job.candidate.name,
        "folder": job.folder,
        "exact_match_rate": math.nan if texts is None else texts.exact_match_rate,
        "acceptance_length": b["spec_decode_acceptance_length"],
        "acceptance_rate": b["spec_decode_acceptance_rate"],
        "baseline_output_throughput": a["output_throughput"],
        "candidate_output_throughput": b["output_throughput"],
        "target": comparison.b.settings["model.target"],
        "target_revision": comparison.b.settings["model.target_revision"],
        "specpipe": b["versions"]["specpipe"],
    }
    return [
        {
            **facts,
            **{"task": m.task, "filter": m.filter, "metric": m.metric, "n": m.n, "finding": m.finding},
            **{"baseline": m.mean_a, "baseline_stderr": m.stderr_a},
            **{"candidate": m.mean_b, "candidate_stderr": m.stderr_b},
            **{"difference": m.difference, "difference_stderr": m.stderr},
        }
        for m in comparison.metrics
    ]


def read_history(path: str) -> Any:
    """Reads a history as a pyarrow.Table of SCHEMA. Raises DataError for any other file."""
    try:
        table = pq.read_table(path)
        return table.select(SCHEMA.names).cast(SCHEMA)
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        reason = str(error).splitlines()[0][:100]
        raise DataError(
            f"{path} is not a history of evaluations ({reason}); expected one, or the output folder of a run"
        ) from error


def append_history(path: str, rows: Sequence[dict[str, Any]]) -> Any:
    """Appends an evaluation's rows and publishes the table. Returns it. Replaces earlier rows of the same folder."""
    table = pa.Table.from_pylist(list(rows), SCHEMA)
    if os.path.exists(path):
        before = read_history(path)
        folders = {row["folder"] for row in rows}
        kept = [folder not in folders for folder in before["folder"].to_pylist()]
        table = pa.concat_tables([before.filter(pa.array(kept, pa.bool_())), table])
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    publish_bytes(path, sink.getvalue())
    return table

"""Writer of report.html. The report is made from the files of the run's folder, so that it can be made again."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specpipe.data.locations import locate
from specpipe.pipeline.run.inspection import view_run
from specpipe.pipeline.store.folder import COSTS, REPORT, RunFolder
from specpipe.pipeline.store.manifest import Manifest
from specpipe.pipeline.store.timeline_file import read_timelines
from specpipe.speculation.estimates.round_costs import RoundCosts

if TYPE_CHECKING:
    from specpipe.report import AnswerExample, ErrorExample, RunSource

log = logging.getLogger(__name__)
_MAX_PARTS, _MAX_EXAMPLES = 4, 12  # parts read for examples of failed rows, and examples shown


def report_of(path: str) -> str:
    """Returns the report of a run's folder, live or finished, as HTML. Writes nothing. Raises OutputError."""
    from specpipe.report import render_run

    view = view_run(path)
    return render_run(_source(view.folder, view.manifest, view.shards, view.summary, str(view.summary["state"])))


def write_report(
    folder: RunFolder, manifest: Manifest, shards: pa.Table, summary: Mapping[str, Any], state: str
) -> None:
    """Publishes report.html. A failure is logged as a warning: it never fails a run."""
    try:
        from specpipe.report import render_run

        page = render_run(_source(folder, manifest, shards, summary, state))
        folder.publish(REPORT, page.encode("utf-8", "replace"))
    except Exception as error:
        log.warning("%s could not be written: %s: %s", folder.file(REPORT), type(error).__name__, error)


def _source(
    folder: RunFolder, manifest: Manifest, shards: pa.Table, summary: Mapping[str, Any], state: str
) -> RunSource:
    from specpipe.report import RunSource

    return RunSource(
        folder=folder.path,
        state=state,
        summary=summary,
        identity=manifest.identity,
        tuning=manifest.tuning,
        created_at=manifest.created_at,
        shards=shards,
        timelines=read_timelines(folder),
        costs=read_costs(folder),
        errors=_examples(folder, shards.filter(pc.greater(shards["failed_rows"], 0))["shard"].to_pylist()),
        answers=_answers(folder, shards["shard"].to_pylist()),
    )


def read_costs(folder: RunFolder) -> RoundCosts | None:
    """Returns the round costs of the hardware that ran most rounds; None without a readable file."""
    try:
        known = json.loads(folder.read(COSTS) or b"{}").values()
        most = max(known, key=lambda costs: costs["rounds"], default=None)
        return most and RoundCosts.from_json(most)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("%s holds no round costs that this version can read and is ignored: %s", folder.file(COSTS), error)
        return None


def _examples(folder: RunFolder, shards: Sequence[int]) -> list[ErrorExample]:
    """Returns failed rows of the first parts that have some."""
    from specpipe.report import ErrorExample

    found: list[ErrorExample] = []
    for table in _parts(folder, sorted(shards)[:_MAX_PARTS], ["request_id", "error", "prompt"]):
        failed = table.filter(pc.not_equal(table["error"], "")).slice(0, _MAX_EXAMPLES - len(found))
        found += [ErrorExample(**row) for row in failed.to_pylist()]
    return found


def _answers(folder: RunFolder, shards: Sequence[int]) -> list[AnswerExample]:
    """Returns rows of the first and last parts by acceptance: the least and the most accepted, and some between."""
    from specpipe.report import AnswerExample

    numbers = sorted(shards)
    chosen = dict.fromkeys([*numbers[: _MAX_PARTS // 2], *numbers[-_MAX_PARTS // 2 :]])
    columns = ["request_id", "prompt", "generated_text", "draft_tokens", "accepted_tokens", "finish_reason"]
    found = [
        AnswerExample(
            request_id=row["request_id"],
            prompt=row["prompt"],
            answer=row["generated_text"],
            draft_tokens=row["draft_tokens"],
            accepted_tokens=row["accepted_tokens"],
        )
        for table in _parts(folder, list(chosen), columns)
        for row in table.filter(pc.is_in(table["finish_reason"], pa.array(["stop", "length"]))).to_pylist()
    ]
    found.sort(key=lambda example: example.acceptance)
    if len(found) <= _MAX_EXAMPLES:
        return found
    third = _MAX_EXAMPLES // 3
    middle = len(found) // 2
    return [*found[:third], *found[middle : middle + third], *found[-third:]]


def _parts(folder: RunFolder, shards: Sequence[int], columns: list[str]) -> Iterator[pa.Table]:
    """Yields columns of published parts; skips those that cannot be read."""
    for shard in shards:
        location = locate(folder.file(folder.part_name(shard)))
        try:
            with location.filesystem.open_input_file(location.path) as source:
                table = pq.read_table(source, columns=columns)
        except (OSError, pa.ArrowException) as error:
            log.warning("the rows of %s could not be read: %s", location.text(), error)
            continue
        yield table

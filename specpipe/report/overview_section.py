"""Which job, which models, which machines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specpipe.report.elements import DASH, ReportSection, Table, clipped, count, fixed, seconds
from specpipe.report.run_source import RunSource

_MOST = 20
_LONGEST = 200


def what_ran(source: RunSource) -> ReportSection:
    return ReportSection(
        title="What ran",
        facts=[*_facts(source)],
        details=[_workers(source), _inputs(source), _versions(source), _job(source)],
    )


def _facts(source: RunSource) -> Iterable[tuple[str, str]]:
    job, summary = {**source.identity, **source.tuning}, source.summary
    yield "Target", _model(job, "target")
    if job.get("speculation.policy") != "off" and job.get("speculation.proposer") == "draft":
        yield "Draft", _model(job, "draft")
    yield "Speculation", _speculation(job)
    yield "Sampling", _sampling(job)
    inputs = job.get("inputs") or []
    yield "Data", f"{job.get('data.path')}, {count(sum(pin['rows'] for pin in inputs))} rows in {len(inputs)} file(s)"
    yield "Output", source.folder
    devices = ", ".join(map(str, summary["devices"])) or DASH
    yield "Workers", f"{len(_ran(summary))} on {devices}, {job.get('workers.slots')} slots each"
    yield "Started", f"{source.created_at}, {summary['starts']} start(s)"
    yield "Run", str(summary["run_id"])


def _model(job: Mapping[str, Any], role: str) -> str:
    revision = job.get(f"model.{role}_revision")
    return f"{job.get(f'model.{role}')}" + (f" at {revision}" if revision else "")


def _speculation(job: Mapping[str, Any]) -> str:
    policy = str(job.get("speculation.policy"))
    if policy == "off":
        return "off: plain decoding"
    words = [policy, f"K up to {job.get('speculation.num_speculative_tokens')}", f"{job.get('speculation.method')}"]
    return ", ".join([*words, f"proposals by {job.get('speculation.proposer')}"])


def _sampling(job: Mapping[str, Any]) -> str:
    greedy = not job.get("sampling.temperature")
    words = ["greedy" if greedy else f"temperature {job['sampling.temperature']:g}"]
    for name, off in {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "n": 1}.items():
        if (value := job.get(f"sampling.{name}", off)) != off:
            words.append(f"{name} {value:g}")
    words.append(f"at most {job.get('sampling.max_new_tokens')} new tokens")
    return ", ".join([*words, *(["end-of-sequence ignored"] if job.get("sampling.ignore_eos") else [])])


def _ran(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {name: worker for name, worker in summary["workers"].items() if worker["shards"]}


def _workers(source: RunSource) -> Table:
    workers = _ran(source.summary)
    return Table(
        caption="Workers",
        head=("worker", "device", "shards", "rows", "output tokens", "busy", "tokens/s", "load"),
        rows=[
            (
                name,
                str(worker.get("device", DASH)),
                count(worker["shards"]),
                count(worker["rows"]),
                count(worker["output_tokens"]),
                seconds(worker["busy_s"]),
                fixed(worker["tokens_per_s"], 1),
                seconds(worker["model_load_s"]) if "model_load_s" in worker else DASH,
            )
            for name, worker in list(workers.items())[:_MOST]
        ],
        note=more(len(workers), _MOST, "workers"),
    )


def _inputs(source: RunSource) -> Table:
    pins: Sequence[Mapping[str, Any]] = source.identity.get("inputs") or ()
    rows = [(str(pin["path"]), count(pin["rows"]), count(pin["size"])) for pin in pins[:_MOST]]
    return Table(caption="Input files", head=("file", "rows", "bytes"), rows=rows, note=more(len(pins), _MOST, "files"))


def _versions(source: RunSource) -> Table:
    return Table(caption="Versions", head=("package", "version"), rows=list(source.summary["versions"].items()))


def _job(source: RunSource) -> Table:
    fields = {**source.identity, **source.tuning}
    rows = [(name, _value(value)) for name, value in sorted(fields.items()) if name != "inputs"]
    return Table(caption="Every field of the job", head=("field", "value"), rows=rows)


def _value(value: object) -> str:
    return clipped(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), _LONGEST)


def more(there: int, shown: int, what: str) -> str:
    """A note on what a table leaves out; "" where it leaves out nothing."""
    return f"{there - shown:,} more {what} are not shown." if there > shown else ""

"""Section on the job of a run: models, sampling, data, workers and versions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specpipe.report.elements import ReportSection, Table
from specpipe.report.number_format import DASH, clipped, count, decimal, duration, omitted_note
from specpipe.report.run_source import RunSource

_MAX_ROWS = 20
_MAX_CHARACTERS = 200  # of a cell


def overview_section(source: RunSource) -> ReportSection:
    """Returns the section on the job, its models, data and workers."""
    return ReportSection(
        title="Job, models and workers",
        facts=[*_facts(source)],
        details=[_workers_table(source), _inputs_table(source), _versions_table(source), _fields_table(source)],
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
    yield "Workers", f"{len(_active_workers(summary))} on {devices}, {job.get('workers.slots')} slots each"
    yield from _weights(summary)
    yield "Started", f"{source.created_at}, {summary['starts']} start(s)"
    yield "Run", str(summary["run_id"])


def _weights(summary: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yields number formats and sizes of models and KV pages, which are the same on all workers."""
    found: Mapping[str, str] = next(
        (worker["weights"] for worker in summary["workers"].values() if "weights" in worker), {}
    )
    for role, text in found.items():
        yield f"{role.capitalize()} weights", text
    if kv := next((str(worker["kv_dtype"]) for worker in summary["workers"].values() if "kv_dtype" in worker), ""):
        yield "KV pages", kv


def _model(job: Mapping[str, Any], role: str) -> str:
    revision = job.get(f"model.{role}_revision")
    return f"{job.get(f'model.{role}')}" + (f" at {revision}" if revision else "")


def _speculation(job: Mapping[str, Any]) -> str:
    policy = str(job.get("speculation.policy"))
    if policy == "off":
        return "off: plain decoding"
    proposer = job.get("speculation.proposer")
    key = "replay_tokens" if proposer == "replay" else "num_speculative_tokens"
    words = [policy, f"K up to {job.get(f'speculation.{key}')}", f"{job.get('speculation.method')}"]
    followed = ", ".join(job.get("speculation.replay") or ())
    return ", ".join([*words, f"proposals by {proposer}"]) + (f", follows {followed}" if followed else "")


def _sampling(job: Mapping[str, Any]) -> str:
    greedy = not job.get("sampling.temperature")
    words = ["greedy" if greedy else f"temperature {job['sampling.temperature']:g}"]
    for name, off in {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "n": 1}.items():
        if (value := job.get(f"sampling.{name}", off)) != off:
            words.append(f"{name} {value:g}")
    words.append(f"at most {job.get('sampling.max_new_tokens')} new tokens")
    return ", ".join([*words, *(["end-of-sequence ignored"] if job.get("sampling.ignore_eos") else [])])


def _active_workers(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the workers that finished at least one shard."""
    return {name: worker for name, worker in summary["workers"].items() if worker["shards"]}


def _workers_table(source: RunSource) -> Table:
    workers = _active_workers(source.summary)
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
                duration(worker["busy_s"]),
                decimal(worker["tokens_per_s"], 1),
                duration(worker["model_load_s"]) if "model_load_s" in worker else DASH,
            )
            for name, worker in list(workers.items())[:_MAX_ROWS]
        ],
        note=omitted_note(len(workers), _MAX_ROWS, "workers"),
    )


def _inputs_table(source: RunSource) -> Table:
    pins: Sequence[Mapping[str, Any]] = source.identity.get("inputs") or ()
    rows = [(str(pin["path"]), count(pin["rows"]), count(pin["size"])) for pin in pins[:_MAX_ROWS]]
    note = omitted_note(len(pins), _MAX_ROWS, "files")
    return Table(caption="Input files", head=("file", "rows", "bytes"), rows=rows, note=note)


def _versions_table(source: RunSource) -> Table:
    return Table(caption="Versions", head=("package", "version"), rows=list(source.summary["versions"].items()))


def _fields_table(source: RunSource) -> Table:
    fields = {**source.identity, **source.tuning}
    rows = [(name, _value(value)) for name, value in sorted(fields.items()) if name != "inputs"]
    return Table(caption="All fields of the job", head=("field", "value"), rows=rows)


def _value(value: object) -> str:
    return clipped(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), _MAX_CHARACTERS)

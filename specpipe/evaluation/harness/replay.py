"""Replay: lm-eval's metrics over a run's outputs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specpipe.errors import JobError, OutputError
from specpipe.evaluation.harness.lm_eval_cli import parse_flags, run_harness
from specpipe.evaluation.harness.recording import Recording, read_recording
from specpipe.evaluation.run_outputs import RunOutputs

RESULTS = "lm_eval"
"""Name of the folder in a local run for lm-eval's results."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayResult:
    """Results of lm-eval."""

    folder: str
    """Folder with results_<date>.json and samples_<task>_<date>.jsonl."""
    tables: str
    """Score tables as lm-eval prints them."""


def replay(
    run: str, arguments: Sequence[str] = (), *, out: str | None = None, requests: str | None = None
) -> ReplayResult:
    """Scores a complete run on a recording.

    arguments: lm-eval's flags. Flags that determine prompts and scores default to the recorded values and must equal
    them, except for a smaller limit. out: folder for the results; None for `lm_eval` in the run's folder.
    requests: path of the recording, if it has moved since the run. Raises JobError, DataError, OutputError.
    """
    outputs = RunOutputs.open(run)
    if any(shard.samples > 1 for shard in outputs.manifest.shards):
        raise OutputError(
            f"{run} has several samples of each request; expected one (sampling.n: 1), because lm-eval sends a "
            "request for every answer (a task's repeats)"
        )
    recording = read_recording(requests or _single_input(outputs))
    flags = parse_flags(arguments, recorded=recording.flags)
    check_flags(recording.flags, flags.prompts)
    folder = Path(out or _results_folder(outputs))
    folder.mkdir(parents=True, exist_ok=True)
    tables = run_harness(
        {
            **flags.prompts,
            **flags.others,
            "model": "specpipe-replay",
            "model_args": _model_args(recording, outputs),
            "log_samples": True,
            "output_path": str(folder / "results.json"),
        }
    )
    return ReplayResult(folder=str(folder), tables=tables)


def check_flags(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises JobError with every flag that differs. A smaller limit is allowed: it selects the first requests."""
    wrong = [
        f"--{name} was {recorded[name]!r} and is {value!r}"
        for name, value in now.items()
        if value != recorded[name] and not (name == "limit" and _is_prefix(recorded[name], value))
    ]
    if wrong:
        raise JobError(
            "these flags differ from the recording's and would change the requests:\n"
            + "\n".join(f"  {line}" for line in wrong)
            + "\nRemove them, or record again with them and run the new recording"
        )


def _is_prefix(recorded: float | None, now: float | None) -> bool:
    """Returns True if limit `now` selects the first documents of `recorded`. Limits below 1 are shares."""
    if now is None or now < 1:
        return False
    return recorded is None or (recorded >= 1 and now <= recorded)


def _model_args(recording: Recording, outputs: RunOutputs) -> dict[str, Any]:
    name = str(outputs.manifest.tuning.get("name", "run"))  # without a name lm-eval generates a random one
    return {**recording.model_args, "run": outputs.folder.path, "model": name}


def _single_input(outputs: RunOutputs) -> str:
    if len(outputs.inputs) != 1:
        raise OutputError(
            f"{outputs.folder.path} ran on {len(outputs.inputs)} files; expected one, written by `specpipe eval record`"
        )
    return outputs.inputs[0]


def _results_folder(outputs: RunOutputs) -> str:
    path = outputs.folder.file(RESULTS)
    if not os.path.isabs(path):
        raise JobError(f"lm-eval writes results to a local folder, but {path} is remote; set --out")
    return path

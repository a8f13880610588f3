"""`specpipe eval replay`: lm-eval's own metrics over a run's outputs."""

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
"""Folder of a local run that holds its results."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayResult:
    """What lm-eval left."""

    folder: str
    """Holds results_<date>.json and samples_<task>_<date>.jsonl."""
    tables: str
    """As lm-eval prints them."""


def replay(
    run: str, arguments: Sequence[str] = (), *, out: str | None = None, requests: str | None = None
) -> ReplayResult:
    """Scores a complete run on a recording.

    arguments: lm-eval's flags; those that make prompts and scores must be the recorded ones (they are taken from there
    where they are left out), except a smaller limit. out: folder for the results; None: `lm_eval` in the run's.
    requests: the recording, where it is no longer where the run read it. Raises JobError, DataError, OutputError.
    """
    outputs = RunOutputs.open(run)
    if any(shard.samples > 1 for shard in outputs.manifest.shards):
        raise OutputError(
            f"{run} has several samples of each request; expected one (sampling.n: 1), because lm-eval asks as "
            "often as it wants answers (a task's repeats)"
        )
    recording = read_recording(requests or _single_input(outputs))
    flags = parse_flags(arguments, recorded=recording.flags)
    check_flags(recording.flags, flags.prompts)
    folder = Path(out or _inside(outputs))
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
    """Raises JobError that names every flag that differs. A smaller limit is fine: its requests are the first ones."""
    wrong = [
        f"--{name} was {recorded[name]!r} and is {value!r}"
        for name, value in now.items()
        if value != recorded[name] and not (name == "limit" and _is_prefix(recorded[name], value))
    ]
    if wrong:
        raise JobError(
            "these flags are not the recording's, so the requests would be others:\n"
            + "\n".join(f"  {line}" for line in wrong)
            + "\nLeave them out, or record again with them and run that"
        )


def _is_prefix(recorded: float | None, now: float | None) -> bool:
    """Limits below 1 are shares."""
    if now is None or now < 1:
        return False
    return recorded is None or (recorded >= 1 and now <= recorded)


def _model_args(recording: Recording, outputs: RunOutputs) -> dict[str, Any]:
    name = str(outputs.manifest.tuning.get("name", "run"))  # without a name lm-eval makes one up, at random
    return {**recording.model_args, "run": outputs.folder.path, "model": name}


def _single_input(outputs: RunOutputs) -> str:
    if len(outputs.inputs) != 1:
        raise OutputError(
            f"{outputs.folder.path} ran on {len(outputs.inputs)} files; expected one, written by `specpipe eval record`"
        )
    return outputs.inputs[0]


def _inside(outputs: RunOutputs) -> str:
    path = outputs.folder.file(RESULTS)
    if not os.path.isabs(path):
        raise JobError(f"lm-eval writes its results to a local folder, and {path} is none; give one with --out")
    return path

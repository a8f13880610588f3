"""What `compare` is given: a run's folder, a folder of lm-eval's results, or one samples file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specpipe.errors import DataError
from specpipe.evaluation.harness.replay import RESULTS
from specpipe.evaluation.harness.samples_files import find_samples
from specpipe.evaluation.run_outputs import RunOutputs
from specpipe.pipeline.run.inspection import inspect_run
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.store.manifest import read_manifest

_FACTS = (
    "spec_decode_acceptance_rate",
    "spec_decode_acceptance_length",
    "output_throughput",
    "request_throughput",
    "duration_s",
    "total_output_tokens",
    "mean_tpot_ms",
    "failed",
)
_SETTINGS = (
    "speculation.policy",
    "speculation.proposer",
    "speculation.num_speculative_tokens",
    "speculation.method",
    "model.target",
    "model.target_revision",
    "model.draft",
    "model.dtype",
    "sampling.temperature",
    "seed",
    "workers.slots",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRun:
    """One of the two that are compared."""

    name: str
    run: RunOutputs | None
    samples: Mapping[str, Path]
    """By task; empty for a run that was not scored."""
    settings: Mapping[str, Any]
    """Of the job, by dotted name; empty without a run."""
    measured: Mapping[str, Any]
    """Of summary.json: acceptance and speed; empty without a run."""


def open_compared_run(path: str, results: str | None = None) -> ComparedRun:
    """results: where the run's scores lie; None for `lm_eval` in its folder.

    Raises OutputError for a run that is not complete or synthetic, DataError for what holds nothing to compare.
    """
    if not Path(path).is_file() and read_manifest(RunFolder.at(path)) is not None:
        run = RunOutputs.open(path)
        below = Path(results or run.folder.file(RESULTS))
        summary = inspect_run(path)
        told = {**run.manifest.identity, **run.manifest.tuning}
        return ComparedRun(
            name=path.rstrip("/"),
            run=run,
            samples=find_samples(below) if below.is_dir() else {},
            settings={name: told[name] for name in _SETTINGS if name in told},
            measured={
                **{name: summary[name] for name in _FACTS},
                "versions": summary["versions"],
                "devices": summary["devices"],
            },
        )
    files = find_samples(Path(path)) if Path(path).exists() else {}
    if not files:
        raise DataError(
            f"{path} has nothing to compare; expected the folder of a run, or a samples file or folder of lm-eval"
        )
    return ComparedRun(name=path, run=None, samples=files, settings={}, measured={})

"""Inputs of a comparison: a run's folder, a folder of lm-eval's results, or one samples file."""

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

_MEASURED = (
    "spec_decode_acceptance_rate",
    "spec_decode_acceptance_length",
    "output_throughput",
    "request_throughput",
    "duration_s",
    "total_output_tokens",
    "total_scored_tokens",
    "scored_throughput",
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
    "model.quantize",
    "model.kv_dtype",
    "model.target_format",
    "sampling.temperature",
    "seed",
    "workers.slots",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRun:
    """One of the two compared runs, or lm-eval's results without a run."""

    name: str
    run: RunOutputs | None
    samples: Mapping[str, Path]
    """Samples file by task; empty for a run without scores."""
    settings: Mapping[str, Any]
    """Job settings by dotted name; empty without a run."""
    measured: Mapping[str, Any]
    """Acceptance and speed from summary.json; empty without a run."""

    @property
    def dtype(self) -> str:
        """Number format of the run; float32 without a run."""
        dtype = str(self.settings.get("model.dtype", "float32"))
        if dtype != "auto":
            return dtype
        return "float32" if all(str(device).startswith("cpu") for device in self.measured["devices"]) else "bfloat16"

    @property
    def deciding(self) -> dict[str, Any]:
        """Settings that decide a greedy output, rounding aside."""
        return {name: value for name, value in self.settings.items() if name.startswith(("sampling.", "model.target"))}


def _sampling_keys(job: Mapping[str, Any]) -> list[str]:
    return [name for name in job if name.startswith("sampling.") and name not in _SETTINGS]


def _is_samples(path: Path) -> bool:
    with path.open("rb") as file:
        return b'"doc_id"' in file.readline()


def open_compared_run(path: str, results: str | None = None) -> ComparedRun:
    """Opens a run or results of lm-eval. results: folder with the run's scores; None for `lm_eval` in the run's folder.

    Raises OutputError for an incomplete or synthetic run, DataError for a path with neither a run nor samples files.
    """
    if not Path(path).is_file() and read_manifest(RunFolder.at(path)) is not None:
        run = RunOutputs.open(path)
        below = Path(results or run.folder.file(RESULTS))
        summary = inspect_run(path)
        job = {**run.manifest.identity, **run.manifest.tuning}
        return ComparedRun(
            name=path.rstrip("/"),
            run=run,
            samples=find_samples(below) if below.is_dir() else {},
            settings={name: job[name] for name in (*_SETTINGS, *_sampling_keys(job)) if name in job},
            measured={
                **{name: summary.get(name) for name in _MEASURED},
                "versions": summary["versions"],
                "devices": summary["devices"],
            },
        )
    files = find_samples(Path(path)) if Path(path).exists() else {}
    if not files or (Path(path).is_file() and not _is_samples(Path(path))):
        raise DataError(
            f"{path} has nothing to compare; expected a run's folder, or a samples file or results folder of lm-eval"
        )
    return ComparedRun(name=path, run=None, samples=files, settings={}, measured={})

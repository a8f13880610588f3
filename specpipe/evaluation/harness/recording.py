"""Recordings: lm-eval's requests as a Parquet dataset, with the configuration in its metadata."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from specpipe.data.locations import locate
from specpipe.data.publish import publish_bytes
from specpipe.errors import DataError, JobError
from specpipe.evaluation.harness.lm_eval_cli import parse_flags, run_harness

_METADATA = b"specpipe.recording"


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """Configuration that a recording was made with, stored in the file's metadata."""

    flags: Mapping[str, Any]
    """lm-eval's configuration (lm_eval_cli.PROMPT_FLAGS)."""
    target: str
    """Model whose tokenizer and chat template encode the prompts."""
    max_length: int | None = None
    chat_template: str | None = None
    trust_remote_code: bool = False
    add_bos_token: bool | None = None

    @property
    def model_args(self) -> dict[str, Any]:
        """Arguments for the models in lm_eval_models."""
        values = asdict(self)
        del values["flags"]
        return {name: value for name, value in values.items() if value is not None}


def record(
    arguments: Sequence[str],
    out: str,
    *,
    target: str,
    max_length: int | None = None,
    chat_template: str | None = None,
    trust_remote_code: bool = False,
    add_bos_token: bool | None = None,
) -> int:
    """Writes the requests of an evaluation as a Parquet dataset. Returns their number.

    arguments: lm-eval's flags. out: the file, local or a URI. max_length: longest prompt + output in tokens; None for
    the target's own. Raises JobError or ModelError; then nothing is written.
    """
    recording = Recording(
        flags=parse_flags(arguments).prompts,
        target=target,
        max_length=max_length,
        chat_template=chat_template,
        trust_remote_code=trust_remote_code,
        add_bos_token=add_bos_token,
    )
    return write_recording(recording, out)


def write_recording(recording: Recording, out: str) -> int:
    """Runs lm-eval with the recording model and publishes its requests at `out`. Returns their number."""
    with tempfile.TemporaryDirectory() as folder:
        path, parts = Path(folder) / "requests.parquet", Path(folder) / "parts"
        parts.mkdir()
        run_harness(
            {
                **recording.flags,
                "model": "specpipe-record",
                "model_args": {**recording.model_args, "path": str(parts)},
                "predict_only": True,
                "output_path": str(Path(folder) / "results.json"),
            }
        )
        found = sorted(parts.glob("*.parquet"))
        if not found:
            raise JobError(
                f"tasks {recording.flags['tasks']}: lm-eval sent no requests; expected tasks of output_type "
                "generate_until, multiple_choice, loglikelihood or loglikelihood_rolling"
            )
        table = pa.concat_tables([pq.read_table(part) for part in found])
        metadata = {_METADATA: json.dumps(asdict(recording), sort_keys=True).encode()}
        pq.write_table(table.replace_schema_metadata(metadata), path, compression="zstd")
        publish_bytes(out, path.read_bytes())
    return int(table.num_rows)


def read_recording(path: str) -> Recording:
    """Reads the configuration of a recording. Raises DataError for any other file."""
    location = locate(path)
    try:
        with location.filesystem.open_input_file(location.path) as source:
            metadata = pq.read_schema(source).metadata or {}
        return Recording(**json.loads(metadata[_METADATA]))
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise DataError(
            f"{path} is not a recording of an evaluation ({type(error).__name__}: {error}); expected a file written by "
            "`specpipe eval record`"
        ) from error

"""The sections `model`, `data`, `workers` and `output`. The text under each field is its reference (docs/jobs.md)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from specpipe.core import EngineConfig
from specpipe.data.columns import OUTPUT_COLUMNS
from specpipe.job.values import Count, Described, Int, Keywords, Number, OneIsAList, Section, Text, default_of

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
DraftDtype = Literal["auto", "fp8"]
DataFormat = Literal["auto", "parquet", "arrow", "jsonl", "sharegpt"]


class ModelSection(Section):
    """The pair: a target, whose distribution the outputs follow, and a smaller draft that proposes tokens."""

    target: Text
    """Model whose text you want: a Hugging Face name, a local folder, or `builtin:tiny`."""
    draft: Text | None = None
    """Model that proposes tokens. It must share the target's vocabulary. Needed by `proposer: draft` alone."""
    device: Device = "auto"
    """`auto` takes a CUDA device where there is one."""
    dtype: Dtype = "auto"
    """Type of weights and activations. `auto` is bfloat16 on CUDA and float32 on a CPU."""
    draft_dtype: DraftDtype = "auto"
    """`fp8` rounds the draft's weights to 8 bits: acceptance about the same, outputs still the target's; measured
    slower than bf16 on an H200. Needs a GPU of compute capability 8.9. `auto` is dtype."""
    max_model_len: Annotated[Int, Field(ge=2)] | None = None
    """Longest prompt + output in tokens. Left out, it is what the target was made for. Longer prompts become error
    rows; outputs end with `finish_reason: length` where they reach it."""
    trust_remote_code: bool = False
    """Run Python code that comes with a model. Only for sources that you trust."""
    allow_pickle: bool = False
    """Read `pytorch_model*.bin` where a model has no safetensors. Such files are pickles: only from sources that you
    trust."""
    chat_template: Text | None = None
    """File with a Jinja chat template that replaces the tokenizer's own."""
    chat_template_kwargs: Keywords = ()
    """What the chat template is told beside the messages, such as `{enable_thinking: false}`."""


class DataSection(Section):
    """The rows to generate for. Formats, columns and what a bad row gets: docs/datasets.md."""

    path: Text
    """A file, a folder or a glob (`data/*.parquet`), local or a URI (`s3://bucket/folder`). Relative paths start at
    the working directory."""
    format: DataFormat = "auto"
    """`auto` goes by the file's extension. A ShareGPT file that is one JSON array (`sharegpt`) must be converted first;
    the message says how."""
    prompt: Text | None = None
    """Column that holds the prompt, where it has none of the usual names (`prompt`, `messages`, `conversations`,
    `prompt_token_ids`, `body`)."""
    limit: Count | None = None
    """Only the first so many rows of the dataset."""
    on_too_long: Literal["error", "truncate_left"] = "error"
    """What becomes of a prompt that is too long: an error row, or its end alone. `truncate_left` cuts prompts so that
    max_new_tokens fit into max_model_len, but to no less than half of that; a beginning-of-sequence token stays."""
    system_prompt: Text | None = None
    """System turn for every chat that brings none. With it, a plain `prompt` becomes the user turn of a chat."""
    warmup_rows: Annotated[Int, Field(ge=0)] = 0
    """Rows that each worker runs first and throws away, so that start-up costs are in no figure. They are copies: the
    output still has every row."""


class WorkerRange(Section):
    """How many workers a run takes: it begins with room for `min`, and others join as there is room, up to `max`."""

    min: Count = 1
    max: Count

    @model_validator(mode="after")
    def _is_a_range(self) -> WorkerRange:
        if self.min > self.max:
            raise ValueError(f".min is {self.min}; expected at most max ({self.max})")
        return self


class WorkersSection(Section):
    """Ray actors, each of which holds the pair on one device."""

    count: Annotated[
        Count | Literal["auto"] | WorkerRange,
        Described("a whole number (1 or more), auto or a range such as {min: 2, max: 8}"),
    ] = "auto"
    """`auto`: one for each GPU of the cluster, or one on a machine without GPUs. `{min: 2, max: 8}`: the run starts
    where there is room for min, and takes up to max; in a cluster workers join and leave while it goes on."""
    slots: Count = default_of(EngineConfig, "slots")
    """Rows that a worker generates at once."""
    gpus_per_worker: Count = 1
    """One GPU holds a pair; nothing else is served."""
    cpus_per_worker: Annotated[Number, Field(gt=0)] | Literal["auto"] = "auto"
    """CPUs that Ray sets aside for a worker."""
    shard_tokens: Count | None = None
    """Size of a shard in estimated tokens (prompt + output). Left out, it goes by the device: some minutes of work.
    A run that is resumed keeps the shards it began with."""
    max_attempts: Count = 3
    """Times that a shard is tried before the run goes on without it."""
    stall_seconds: Annotated[Number, Field(gt=0)] = 900.0
    """A worker whose engine step, or whose answer, takes longer is taken for hung: its stacks are logged and it is
    replaced. Loading and warm-up are not counted."""
    prefill_budget: Count = default_of(EngineConfig, "prefill_budget")
    """Most prompt tokens that a worker reads in one step."""

    @model_validator(mode="after")
    def _one_gpu_holds_a_pair(self) -> WorkersSection:
        if self.gpus_per_worker != 1:
            raise ValueError(
                f".gpus_per_worker is {self.gpus_per_worker}; expected 1: a pair lives on one GPU. "
                "Use more GPUs with more workers (workers.count)"
            )
        return self


class OutputSection(Section):
    """Where outputs and telemetry go. Columns and files: docs/datasets.md."""

    path: Text
    """Folder of the run, local or a URI. Relative paths start at the working directory. A second start with the same
    job resumes what is there. `{date}` becomes the local day of the start, as in 2026-01-31, and `{name}` the job's
    name: `runs/{name}-{date}` is a run a day, which a start on another day does not resume."""
    keep_columns: Annotated[tuple[Text, ...], OneIsAList] = ()
    """Input columns to copy into the output."""
    max_failed_rows: Annotated[Int, Field(ge=0)] = 0
    """More failed rows than this end the run with exit code 3. The other rows are written either way."""

    @model_validator(mode="after")
    def _columns_do_not_collide(self) -> OutputSection:
        taken = [name for name in self.keep_columns if name in OUTPUT_COLUMNS]
        twice = {name for name in self.keep_columns if self.keep_columns.count(name) > 1}
        wrong = [f".keep_columns names {name!r}, which the output has anyway; leave it out" for name in taken]
        wrong += [f".keep_columns names {name!r} twice; name it once" for name in sorted(twice)]
        if wrong:
            raise ValueError("\n".join(wrong))
        return self

"""The sections of a job file. The text under each field is its reference (docs/jobs.md)."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from specpipe.core import MAX_DRAFT_TOKENS, EngineConfig, Method, ProposerChoice, SamplingParams
from specpipe.data.columns import OUTPUT_COLUMNS
from specpipe.errors import InputError
from specpipe.job.values import Described, Int, Keywords, Number, OffIsAWord, OneIsAList, Section, default_of

Text = Annotated[str, Field(min_length=1)]
Count = Annotated[Int, Field(ge=1)]
Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
DraftDtype = Literal["auto", "fp8"]
DataFormat = Literal["auto", "parquet", "arrow", "jsonl", "sharegpt"]
PolicyName = Literal["off", "fixed", "queue_threshold", "goodput"]


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


SAMPLING_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logprobs",
    "max_new_tokens",
    "min_tokens",
    "ignore_eos",
    "stop",
    "stop_token_ids",
)
"""Keys of `sampling` that are fields of SamplingParams."""


class SamplingSection(Section):
    """How tokens are drawn. A row may bring its own values in columns of these names, all but `n` and `defaults`."""

    n: Count = 1
    """Outputs of each prompt, side by side in the output, told apart by its column `sample`. Each draws with a seed of
    its own; greedy ones are all the same."""
    temperature: Number = default_of(SamplingParams, "temperature")
    """0 is greedy. Otherwise logits are divided by it."""
    top_k: Int = default_of(SamplingParams, "top_k")
    """Keep the k most likely tokens. 0 keeps all."""
    top_p: Number = default_of(SamplingParams, "top_p")
    """Keep the smallest set of most likely tokens whose probability reaches p. 1 keeps all."""
    min_p: Number = default_of(SamplingParams, "min_p")
    """Keep tokens at least min_p times as likely as the most likely one. 0 keeps all."""
    repetition_penalty: Number = default_of(SamplingParams, "repetition_penalty")
    """Above 1, tokens that prompt or output contain become less likely: positive logits are divided by it, negative
    ones multiplied. 1 is off."""
    presence_penalty: Number = default_of(SamplingParams, "presence_penalty")
    """Taken from the logits of tokens that the output contains, -2 to 2. 0 is off."""
    frequency_penalty: Number = default_of(SamplingParams, "frequency_penalty")
    """Taken from a token's logit once for every time that it stands in the output, -2 to 2. 0 is off."""
    logprobs: Int | None = default_of(SamplingParams, "logprobs")
    """Write the log-probability of every generated token, and of so many of the most likely ones beside it (0 to 20).
    They are those of the distribution that was sampled from, and at temperature 1 for greedy rows."""
    max_new_tokens: Int = default_of(SamplingParams, "max_new_tokens")
    """Most tokens that a row generates."""
    min_tokens: Int = default_of(SamplingParams, "min_tokens")
    """So many tokens come before any that ends the row: until then the model cannot end it, stop_token_ids neither,
    and stop strings do not count."""
    ignore_eos: bool = default_of(SamplingParams, "ignore_eos")
    """Generate max_new_tokens whatever the model says, as throughput benchmarks do."""
    stop: Annotated[tuple[str, ...], OneIsAList] = default_of(SamplingParams, "stop")
    """Strings that end a row. Neither the string nor what follows it is in the output."""
    stop_token_ids: Annotated[tuple[Int, ...], OneIsAList] = default_of(SamplingParams, "stop_token_ids")
    """Token ids that end a row, beside the model's own. Not silenced by ignore_eos, so that both together replace the
    model's."""
    defaults: Literal["specpipe", "model"] = "specpipe"
    """Where keys that this section leaves out take their values from. `specpipe`: this table. `model`: the target's
    generation_config.json, read as transformers reads it; the plan shows what that comes to."""

    @model_validator(mode="after")
    def _can_be_sampled_with(self) -> SamplingSection:
        wrong = []
        for name in SAMPLING_FIELDS:
            try:
                SamplingParams(**{name: getattr(self, name)})
            except InputError as error:
                wrong.append(f".{error}")
        if not wrong and self.min_tokens > self.max_new_tokens:
            wrong.append(f".min_tokens is {self.min_tokens}; expected at most max_new_tokens ({self.max_new_tokens})")
        if wrong:
            raise ValueError("\n".join(wrong))
        return self


class SpeculationSection(Section):
    """How many tokens are drafted, when, by whom, and how they are verified."""

    policy: Annotated[PolicyName, OffIsAWord] = "goodput"
    """`off`: plain decoding, the draft is not loaded. `fixed`: always num_speculative_tokens. `queue_threshold`:
    num_speculative_tokens, but none while more than max_running rows are running. `goodput`: whatever is expected to
    generate the most tokens per second, from 0 to num_speculative_tokens, as it learns (docs/speculation.md)."""
    num_speculative_tokens: Annotated[Int, Field(ge=1, le=MAX_DRAFT_TOKENS)] = 3
    """K: tokens drafted in a round; with `policy: goodput` at most so many."""
    max_running: Count = 64
    """For `queue_threshold`: no speculation while more rows than this are running in a worker."""
    method: Method = "standard"
    """How drafts are verified. `standard`: rejection sampling. `block`: block verification, accepts no less.
    `invariant`: sampled tokens do not depend on K, draft or policy. `synthetic`: accepts at given rates, to measure
    speed; its outputs are stamped and no text to use."""
    proposer: ProposerChoice = "draft"
    """`draft`: the draft model. `ngram`: tokens that followed the same words earlier in the row. `none`: no drafts.
    `auto`: with `policy: goodput`, whichever of the draft model (where one is named) and n-grams does best."""
    ngram_min: Count = default_of(EngineConfig, "ngram_min")
    """Shortest suffix that the n-gram proposer looks for."""
    ngram_max: Count = default_of(EngineConfig, "ngram_max")
    """Longest suffix that the n-gram proposer looks for."""
    synthetic_rates: tuple[Annotated[Number, Field(ge=0, le=1)], ...] | None = None
    """For `synthetic`: probability that at least so many drafts are accepted, one entry for each of the K positions,
    never rising."""
    synthetic_acceptance_length: Annotated[Number, Field(ge=1)] | None = None
    """For `synthetic`, instead of the rates: mean tokens that a round yields, from 1 to K + 1."""

    @model_validator(mode="after")
    def _fits_together(self) -> SpeculationSection:
        wrong = [*self._auto_problems(), *self._ngram_problems(), *self._synthetic_problems()]
        if wrong:
            raise ValueError("\n".join(wrong))
        return self

    def _auto_problems(self) -> list[str]:
        if self.proposer != "auto" or self.policy in ("goodput", "off"):
            return []
        return [f".proposer is auto; expected that only with policy: goodput, and this is {self.policy}"]

    def _ngram_problems(self) -> list[str]:
        if self.ngram_min <= self.ngram_max:
            return []
        return [f".ngram_min is {self.ngram_min}; expected at most ngram_max ({self.ngram_max})"]

    def _synthetic_problems(self) -> list[str]:
        rates, length, k = self.synthetic_rates, self.synthetic_acceptance_length, self.num_speculative_tokens
        given = [name for name in ("synthetic_rates", "synthetic_acceptance_length") if getattr(self, name) is not None]
        if self.method != "synthetic":
            return [f".{name} is set; expected that only with method: synthetic" for name in given]
        if len(given) != 1:
            return [".method is synthetic; expected exactly one of synthetic_rates and synthetic_acceptance_length"]
        if rates is not None and len(rates) != k:
            return [f".synthetic_rates has {len(rates)} entries; expected {k}, one for each of num_speculative_tokens"]
        if rates is not None and any(a < b for a, b in pairwise(rates)):
            return [f".synthetic_rates is {list(rates)}; expected rates that never rise"]
        if length is not None and length > k + 1:
            return [f".synthetic_acceptance_length is {length}; expected at most {k + 1} (num_speculative_tokens + 1)"]
        return []

    @property
    def max_k(self) -> int:
        """Widest round that any plan of this job asks for; 0 when nothing is ever drafted."""
        return 0 if self.policy == "off" or self.proposer == "none" else self.num_speculative_tokens

    @property
    def active_proposer(self) -> ProposerChoice:
        """The proposer that has work to do: "none" when nothing is ever drafted."""
        return self.proposer if self.max_k else "none"

    @property
    def rates(self) -> tuple[float, ...]:
        """Unconditional acceptance by position for method "synthetic"; empty otherwise.

        An acceptance length L becomes K rates that sum to L - 1: as many ones as fit, the fraction, then zeros.
        """
        if self.synthetic_acceptance_length is None:
            return self.synthetic_rates or ()
        accepted = self.synthetic_acceptance_length - 1
        return tuple(min(1.0, max(0.0, accepted - i)) for i in range(self.num_speculative_tokens))


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

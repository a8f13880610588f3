"""The section `sampling` of a job file. The text under each field is its reference (docs/jobs.md)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from specpipe.core import SamplingParams
from specpipe.errors import InputError
from specpipe.job.field_types import Int, Number, OneIsAList, Tuning, default_of
from specpipe.job.job_section import JobSection

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


MAX_SAMPLES = 10_000


class SamplingSection(JobSection):
    """Sampling of tokens. A row can override every key but `n` and `defaults` by a column of that name."""

    n: Annotated[Int, Field(ge=1, le=MAX_SAMPLES)] = 1
    """Outputs of each prompt, in adjacent rows with their index in the column `sample`. Each has its own seed; greedy
    outputs are identical."""
    temperature: Number = default_of(SamplingParams, "temperature")
    """0 is greedy. Otherwise logits are divided by it."""
    top_k: Int = default_of(SamplingParams, "top_k")
    """Keep the k most likely tokens. 0 keeps all."""
    top_p: Number = default_of(SamplingParams, "top_p")
    """Keep the smallest set of most likely tokens whose probability reaches p. 1 keeps all."""
    min_p: Number = default_of(SamplingParams, "min_p")
    """Keep tokens at least min_p times as likely as the most likely one. 0 keeps all."""
    repetition_penalty: Number = default_of(SamplingParams, "repetition_penalty")
    """Divides positive logits of tokens in prompt or output, and multiplies negative ones. 1 is off."""
    presence_penalty: Number = default_of(SamplingParams, "presence_penalty")
    """Subtracted from the logits of tokens in the output, -2 to 2. 0 is off."""
    frequency_penalty: Number = default_of(SamplingParams, "frequency_penalty")
    """Subtracted from a token's logit once for each occurrence in the output, -2 to 2. 0 is off."""
    logprobs: Int | None = default_of(SamplingParams, "logprobs")
    """Write the log-probability of each generated token and of this many most likely tokens (0 to 20), under the
    distribution that was sampled from; for greedy rows, at temperature 1."""
    max_new_tokens: Int = default_of(SamplingParams, "max_new_tokens")
    """Maximum tokens that a row generates."""
    min_tokens: Int = default_of(SamplingParams, "min_tokens")
    """Minimum tokens that a row generates. Until then tokens that end a row are masked and stop strings are ignored."""
    ignore_eos: bool = default_of(SamplingParams, "ignore_eos")
    """Generate past the model's end-of-sequence tokens, as throughput benchmarks do."""
    stop: Annotated[tuple[str, ...], OneIsAList] = default_of(SamplingParams, "stop")
    """Strings that end a row. The output ends before the string."""
    stop_token_ids: Annotated[tuple[Int, ...], OneIsAList] = default_of(SamplingParams, "stop_token_ids")
    """Token ids that end a row, in addition to the model's. With ignore_eos they replace the model's."""
    defaults: Tuning[Literal["specpipe", "model"]] = "specpipe"
    """Defaults of keys that this section leaves out. `specpipe`: this table. `model`: the target's
    generation_config.json, read as transformers reads it; `--dry-run` shows the values."""

    @model_validator(mode="after")
    def _check_values(self) -> SamplingSection:
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

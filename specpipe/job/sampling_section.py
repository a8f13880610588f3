"""The section `sampling` of a job file. The text under each field is its reference (docs/jobs.md)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import model_validator

from specpipe.core import SamplingParams
from specpipe.errors import InputError
from specpipe.job.field_types import Count, Int, Number, OneIsAList, default_of
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


class SamplingSection(JobSection):
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

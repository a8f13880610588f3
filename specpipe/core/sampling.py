"""How the tokens of a row are drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specpipe.errors import InputError

MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How the tokens of one row are drawn. Raises InputError for a value that cannot be sampled with."""

    temperature: float = 0.0
    """0 is greedy; otherwise logits are divided by it."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probability reaches p; 1 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least min_p times as likely as the most likely one; 0 keeps all."""
    repetition_penalty: float = 1.0
    """Divides positive logits of tokens that prompt or output contain, and multiplies negative ones; 1 is off."""
    presence_penalty: float = 0.0
    """Taken from the logits of tokens that the output contains; 0 is off."""
    frequency_penalty: float = 0.0
    """Taken from a token's logit once for every time that it stands in the output; 0 is off."""
    logprobs: int | None = None
    """Tell the log-probability of every generated token, and of so many of the most likely ones; None tells none."""
    max_new_tokens: int = 256
    min_tokens: int = 0
    """So many tokens come before any that ends the row; max_new_tokens wins. Until then end-of-sequence and
    stop_token_ids have no probability, in target and draft alike, and stop strings do not count."""
    ignore_eos: bool = False
    """Generate max_new_tokens whatever the model says, as throughput benchmarks do."""
    stop: tuple[str, ...] = ()
    """Strings that end a row; neither the string nor what follows it is in the output."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end a row, beside the model's own end-of-sequence ids. Not silenced by ignore_eos."""
    seed: int | None = None
    """A row's own seed; None derives one from the job's seed and the row's identity."""

    def __post_init__(self) -> None:
        checks: tuple[tuple[bool, str, object, str], ...] = (
            (self.temperature >= 0 and math.isfinite(self.temperature), "temperature", self.temperature, "0 or more"),
            (self.top_k >= 0, "top_k", self.top_k, "0 (off) or more"),
            (0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1"),
            (0 <= self.min_p <= 1, "min_p", self.min_p, "between 0 and 1"),
            (
                0 < self.repetition_penalty < math.inf,
                "repetition_penalty",
                self.repetition_penalty,
                "above 0 (1 is off)",
            ),
            (abs(self.presence_penalty) <= 2, "presence_penalty", self.presence_penalty, "between -2 and 2"),
            (abs(self.frequency_penalty) <= 2, "frequency_penalty", self.frequency_penalty, "between -2 and 2"),
            (
                self.logprobs is None or 0 <= self.logprobs <= MAX_TOP_LOGPROBS,
                "logprobs",
                self.logprobs,
                f"0 to {MAX_TOP_LOGPROBS}, or none",
            ),
            (self.max_new_tokens >= 1, "max_new_tokens", self.max_new_tokens, "1 or more"),
            (self.min_tokens >= 0, "min_tokens", self.min_tokens, "0 (off) or more"),
            (all(self.stop), "stop", self.stop, "strings that are not empty"),
            (all(t >= 0 for t in self.stop_token_ids), "stop_token_ids", self.stop_token_ids, "ids of 0 or more"),
            (self.seed is None or 0 <= self.seed < 2**63, "seed", self.seed, "between 0 and 2**63 - 1"),
        )
        for ok, name, given, expected in checks:
            if not ok:
                raise InputError(f"{name} is {given!r}; expected {expected}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def truncates(self) -> bool:
        """Whether any token of the vocabulary may be cut; a greedy row's argmax never is."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @property
    def penalises(self) -> bool:
        """Whether tokens that a row contains weigh differently from others."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

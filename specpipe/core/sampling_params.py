"""Sampling parameters of a row."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specpipe.core.defaults import MAX_TOP_LOGPROBS
from specpipe.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """Sampling parameters of one row. Raises InputError for a value outside of its range."""

    temperature: float = 0.0
    """0 is greedy; otherwise logits are divided by it."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probability reaches p; 1 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least min_p times as likely as the most likely one; 0 keeps all."""
    repetition_penalty: float = 1.0
    """Divides positive logits of tokens that the prompt or output contains, and multiplies negative ones; 1 is off."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that the output contains; 0 is off."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for each of its occurrences in the output; 0 is off."""
    logprobs: int | None = None
    """Most likely tokens whose log-probabilities are returned beside each generated token's own; None returns none."""
    max_new_tokens: int = 256
    """Generated tokens of the row, at most."""
    min_tokens: int = 0
    """Generated tokens before the row may end; max_new_tokens takes precedence. Until then end-of-sequence tokens and
    stop_token_ids are masked, in target and draft alike, and stop strings are ignored."""
    ignore_eos: bool = False
    """True to generate past the model's end-of-sequence tokens, as throughput benchmarks do."""
    stop: tuple[str, ...] = ()
    """Strings that end a row; the output ends before the string."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end a row, in addition to the model's end-of-sequence ids. ignore_eos does not affect them."""
    seed: int | None = None
    """Seed of the row; None derives one from the job's seed and the row's position in the dataset."""

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
        """True where the row takes the most likely token at each position."""
        return self.temperature == 0.0

    @property
    def truncates(self) -> bool:
        """True where top_k, top_p or min_p may remove tokens. They never remove a greedy row's argmax."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @property
    def penalises(self) -> bool:
        """True where any of the three penalties changes logits."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

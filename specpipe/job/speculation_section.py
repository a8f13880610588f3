"""The section `speculation` of a job file. The text under each field is its reference (docs/jobs.md)."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from specpipe.core import MAX_DRAFT_TOKENS, AppliesTo, EngineConfig, Method, ProposerChoice
from specpipe.job.field_types import Count, Int, Number, OffIsAWord, OneIsAList, Text, Tuning, default_of
from specpipe.job.job_section import JobSection

PolicyName = Literal["off", "fixed", "queue_threshold", "goodput"]


class SpeculationSection(JobSection):
    """Drafting and verification."""

    policy: Tuning[Annotated[PolicyName, OffIsAWord]] = "goodput"
    """`off`: plain decoding, the draft model is not loaded. `fixed`: num_speculative_tokens in every round.
    `queue_threshold`: none while more than max_running rows run. `goodput`: the number up to num_speculative_tokens
    with the highest expected tokens per second (docs/speculation.md)."""
    num_speculative_tokens: Tuning[Annotated[Int, Field(ge=1, le=MAX_DRAFT_TOKENS)]] = 3
    """K, the draft tokens of a round; with `policy: goodput` the maximum."""
    max_running: Tuning[Count] = 64
    """For `queue_threshold`: maximum running rows of a worker with speculation."""
    applies_to: Tuning[AppliesTo] = "batch"
    """For `queue_threshold`: rows without drafts above max_running. `batch`: all. `new`: those that get a slot then,
    also after a preemption."""
    method: Method = "standard"
    """Verification method. `standard`: rejection sampling. `block`: block verification, which accepts at least as many.
    `invariant`: sampled tokens do not depend on K, draft or policy. `synthetic`: accepts at given rates, to measure
    speed; its outputs are marked and useless as text."""
    proposer: Tuning[ProposerChoice] = "draft"
    """`draft`: the draft model. `ngram`: tokens that followed the same n-gram earlier in the row. `replay`: earlier
    answers, else n-grams. `none`: no drafts. `auto`: with `policy: goodput`, the fastest of draft model, n-grams and
    `replay`, where given."""
    replay: Tuning[Annotated[tuple[Text, ...], OneIsAList]] = ()
    """Earlier answers to the same prompts (docs/speculation.md): a run, a glob of runs or a dataset of texts, the
    preferred one first. `{yesterday}` and the placeholders of output.path are filled in."""
    replay_tokens: Tuning[Annotated[Int, Field(ge=1, le=MAX_DRAFT_TOKENS)]] = 15
    """K of rounds that follow earlier answers; with `policy: goodput` the maximum."""
    corpus_mib: Tuning[Annotated[Int, Field(ge=0, le=65536)]] = 64
    """Device memory, in MiB, for finished answers, in which rows without one of their own look drafts up."""
    ngram_min: Tuning[Count] = default_of(EngineConfig, "ngram_min")
    """Shortest suffix that the n-gram proposer looks up."""
    ngram_max: Tuning[Count] = default_of(EngineConfig, "ngram_max")
    """Longest suffix that the n-gram proposer looks up."""
    synthetic_rates: tuple[Annotated[Number, Field(ge=0, le=1)], ...] | None = None
    """For `synthetic`: for each of the K positions, the probability that all tokens up to it are accepted.
    Non-increasing."""
    synthetic_acceptance_length: Annotated[Number, Field(ge=1)] | None = None
    """For `synthetic`, in place of the rates: mean tokens per round, 1 to K + 1."""

    @model_validator(mode="after")
    def _check_combinations(self) -> SpeculationSection:
        wrong = [
            *self._auto_problems(),
            *self._applies_to_problems(),
            *self._replay_problems(),
            *self._ngram_problems(),
            *self._synthetic_problems(),
        ]
        if wrong:
            raise ValueError("\n".join(wrong))
        return self

    def _auto_problems(self) -> list[str]:
        if self.proposer != "auto" or self.policy in ("goodput", "off"):
            return []
        return [f".proposer is auto, which requires policy: goodput; policy is {self.policy}"]

    def _applies_to_problems(self) -> list[str]:
        if self.applies_to == "batch" or self.policy in ("queue_threshold", "off"):
            return []
        return [f".applies_to is new, which requires policy: queue_threshold; policy is {self.policy}"]

    def _replay_problems(self) -> list[str]:
        if self.policy == "off":
            return []
        if self.replay and self.proposer not in ("replay", "auto"):
            return [f".replay is set, which requires proposer: replay or auto; proposer is {self.proposer}"]
        if self.method == "synthetic" and (self.replay or self.proposer == "replay"):
            return [".method is synthetic, which simulates a draft model; expected no replay, or another method"]
        return []

    def _ngram_problems(self) -> list[str]:
        if self.ngram_min <= self.ngram_max:
            return []
        return [f".ngram_min is {self.ngram_min}; expected at most ngram_max ({self.ngram_max})"]

    def _synthetic_problems(self) -> list[str]:
        rates, length, k = self.synthetic_rates, self.synthetic_acceptance_length, self.num_speculative_tokens
        given = [name for name in ("synthetic_rates", "synthetic_acceptance_length") if getattr(self, name) is not None]
        if self.method != "synthetic":
            return [f".{name} is set, which requires method: synthetic; method is {self.method}" for name in given]
        if len(given) != 1:
            return [".method is synthetic; expected exactly one of synthetic_rates and synthetic_acceptance_length"]
        if rates is not None and len(rates) != k:
            return [f".synthetic_rates has {len(rates)} entries; expected {k} (num_speculative_tokens)"]
        if rates is not None and any(a < b for a, b in pairwise(rates)):
            return [f".synthetic_rates is {list(rates)}; expected non-increasing rates"]
        if length is not None and length > k + 1:
            return [f".synthetic_acceptance_length is {length}; expected at most {k + 1} (num_speculative_tokens + 1)"]
        return []

    @property
    def max_k(self) -> int:
        """Largest K of any plan of this job; 0 when nothing is ever drafted."""
        if self.policy == "off" or self.proposer == "none":
            return 0
        if self.proposer == "replay":
            return self.replay_tokens
        return max(self.num_speculative_tokens, self.replay_k)

    @property
    def replay_k(self) -> int:
        """Largest K of rounds that follow earlier answers; 0 when there are none."""
        follows = self.proposer == "replay" or (self.proposer == "auto" and bool(self.replay))
        return self.replay_tokens if follows and self.policy != "off" else 0

    @property
    def active_proposer(self) -> ProposerChoice:
        """Proposer of the job; "none" when nothing is ever drafted."""
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

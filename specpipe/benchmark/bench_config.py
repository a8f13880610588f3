"""Parameters of the engine's measurements. Imports no torch: the command line reads its defaults here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specpipe.core import KVDtypeChoice, ProposerName

BenchQuantize = Literal["none", "fp8", "fp8-block", "int4", "mxfp4"]
"""Number formats of a measured model's weights: 16 bits; fp8 by channel, of experts by block; fp8 by block of 128 x
128; 4 bits by groups of 128 columns; experts alone in mxfp4."""
MIXED_ROWS = 768
"""Rows of the mixed job."""
MIXED_LENGTHS = (32, 511)
"""Fewest and most tokens of a prompt of the mixed job, and of an output."""
PROFILED_ROUNDS = 20
"""Rounds run under the profiler where a profile is requested."""
ACCEPTANCE = {
    "high": (0.9, 0.8, 0.7),
    "middle": (0.8718, 0.5663, 0.3188),
    "low": (0.3, 0.1, 0.03),
    "useless": (0.0,),
}
"""Unconditional acceptance by position, by the name of the level."""
SEQUENCE = ("high", "middle", "low")
"""Acceptance levels of jobs that run one after the other and keep the policy's estimates."""
SWITCHES_AT = "middle"
"""Acceptance level at which speculation is switched off and on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedWork:
    """A job whose prompts repeat each other. Lengths are in tokens."""

    prompts: int
    """Number of different prompts."""
    samples: int = 1
    """Rows of each prompt."""
    shared_tokens: int = 0
    """Tokens with which all prompts begin."""
    own_tokens: int
    new_tokens: int

    @property
    def prompt_tokens(self) -> int:
        """Tokens of one prompt."""
        return self.shared_tokens + self.own_tokens


SHARED_WORKS = {
    "few-shot": SharedWork(prompts=1319, shared_tokens=1024, own_tokens=96, new_tokens=128),
    "short-answers": SharedWork(prompts=1319, shared_tokens=1024, own_tokens=96, new_tokens=16),
    "samples": SharedWork(prompts=96, samples=8, own_tokens=512, new_tokens=128),
}
"""Jobs by name; the first two are as large as GSM8K with five shots."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreWork:
    """A multiple-choice evaluation. Lengths are in tokens."""

    questions: int = 1000
    choices: int = 4
    """Choices of each question, which are scored."""
    shared_tokens: int = 700
    """Tokens with which all prompts begin."""
    question_tokens: int = 80
    choice_tokens: int = 10

    @property
    def row_tokens(self) -> int:
        """Tokens of a prompt and one choice."""
        return self.shared_tokens + self.question_tokens + self.choice_tokens

    @property
    def distinct_tokens(self) -> int:
        """Tokens that have to be computed."""
        return self.shared_tokens + self.questions * (self.question_tokens + self.choices * self.choice_tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineBench:
    """Models, batch sizes and K of one measurement. Lengths are in tokens."""

    target: str = "llama-3.1-8b"
    draft: str = "llama-3.2-1b"
    device: str = "cuda"
    dtype: str = "bfloat16"
    quantize: BenchQuantize = "none"
    """Number format of the target's weights, all but embedding and head."""
    draft_quantize: BenchQuantize = "none"
    """Number format of the draft's weights."""
    kv_dtype: KVDtypeChoice = "auto"
    """Number format of KV pages."""
    batches: tuple[int, ...] = (1, 16, 64, 256)
    ks: tuple[int, ...] = (0, 1, 2, 3)
    rates: tuple[float, ...] = (0.8718, 0.5663, 0.3188)
    """Synthetic acceptance: unconditional rate of each draft position, not increasing."""
    prompt_tokens: int = 230
    new_tokens: int = 300
    max_model_len: int = 1024
    prefill_budget: int = 8192
    prefix_sharing: bool = True
    """True computes the common beginnings of prompts once."""
    dense_copies: bool = True
    """True keeps dense copies of 4-bit weights in memory that KV pages leave."""
    every_k: bool = False
    """True if rounds with every K from 0 to max(ks) may run, as under a policy."""
    profiled_rounds: int = 0
    """Additional rounds run under torch.profiler for each batch size and K; 0: none."""

    @property
    def models(self) -> tuple[tuple[str, BenchQuantize], tuple[str, BenchQuantize]]:
        """Target and draft as (name of the shape, number format of the weights)."""
        return (self.target, self.quantize), (self.draft, self.draft_quantize)

    @property
    def choices(self) -> list[tuple[ProposerName, int]]:
        """Proposer and K of every kind of round that may run."""
        return [("draft", k) for k in (range(max(self.ks) + 1) if self.every_k else self.ks)]


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyComparison:
    """Jobs to compare. Lengths are in tokens."""

    policy: str = "goodput"
    ks: tuple[int, ...] = (0, 1, 2, 3, 5)
    """Fixed K to compare with; the largest is also the policy's maximum."""
    acceptance: tuple[str, ...] = tuple(ACCEPTANCE)
    """Acceptance levels: keys of ACCEPTANCE."""
    rows: int = 768
    shard_rows: int = 192
    shortest: int = 32
    longest: int = 511
    """Longest prompt, and longest output."""
    threshold: int = 64
    """Most running rows with speculation under the policy queue_threshold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformersBench:
    """Rows and repetitions of the comparison: prompts of the sample dataset, greedy, fp32."""

    prompts: int = 64
    new_tokens: int = 128
    k: int = 3
    repeats: int = 3
    """Repetitions of each way, in turn; the fastest counts."""

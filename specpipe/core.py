"""The vocabulary that every part of specpipe speaks.

Frozen, keyword-only, slotted dataclasses. This module imports neither torch nor Ray, so that a driver,
a test or a notebook can use it for nothing.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from specpipe.errors import InputError

FinishReason = Literal["stop", "length", "error"]
Method = Literal["standard", "block", "invariant", "synthetic"]
ProposerName = Literal["draft", "ngram", "none"]
ProposerChoice = Literal["draft", "ngram", "none", "auto"]
Phase = Literal["load", "prefill", "draft", "verify", "sample", "host"]

PHASES: tuple[Phase, ...] = ("load", "prefill", "draft", "verify", "sample", "host")
MAX_DRAFT_TOKENS = 32  # the widest round that the kernels take
MAX_TOP_LOGPROBS = 20
IN_FLIGHT = 2
"""Shards that a worker holds at once, so that its slots stay full across shard borders."""
MOST_IN_FLIGHT = 16
"""Shards that it holds where they are small."""
ROWS_AHEAD = 1.5
"""Rows that small shards give a worker for each slot: a third of them may end before its next word has been heard."""


def rows_at_once(slots: int) -> int:
    """New rows that get a slot together as a rule: a prefill of one row costs a pass over all weights, as one of ten
    rows does."""
    return max(1, slots // 16)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One row, ready for an engine."""

    request_id: str
    shard: int
    row: int
    """Index of the output row within its shard, from 0: outputs are written in this order."""
    sample: int = 0
    """Which of its prompt's samples this is, from 0."""
    prompt: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    """Keys every draw of this row (63 bits). Derived from the job's seed and the row's identity, never its shard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowTiming:
    """When things happened to a row, in seconds since it first got a slot."""

    queued_s: float = 0.0
    """Time between submission and getting the first slot."""
    first_token_s: float = 0.0
    last_token_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Logprobs:
    """Log-probabilities of T tokens under the distribution that each was sampled from (a greedy row's at temperature
    1), and of the n most likely tokens beside each. Packed, for a shard holds millions."""

    own: array[float]
    """"f", T entries."""
    n: int
    top_ids: array[int]
    """"i", T * n entries, the most likely first; -1 where truncation left fewer."""
    top: array[float]
    """"f", T * n entries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """What became of a row. A row that could not run has finish_reason "error" and says why."""

    request: Request
    token_ids: tuple[int, ...] = ()
    text: str = ""
    finish_reason: FinishReason
    error: str = ""
    draft_tokens: int = 0
    """Draft tokens verified for this row."""
    accepted_tokens: int = 0
    """Accepted draft tokens that are part of the output (after end-of-sequence, stop string and limit)."""
    logprobs: Logprobs | None = None
    """Of token_ids; None where the row asked for none."""
    timing: RowTiming = RowTiming()


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """A fixed range of rows of one input file: the unit of dispatch, of publishing and of retry."""

    index: int
    file: str
    start: int
    """First row of the range within the file, from 0."""
    stop: int
    """One past the last row."""
    first_row: int
    """Position of the first row in the whole dataset: the row's default identity."""
    samples: int = 1
    """Outputs of each row."""

    @property
    def input_rows(self) -> int:
        return self.stop - self.start

    @property
    def rows(self) -> int:
        """Output rows."""
        return self.input_rows * self.samples


@dataclass(frozen=True, kw_only=True, slots=True)
class Exploration:
    """Rounds that try a K which the plan would not: the last `rounds` of every `every`, by the engine's count."""

    k: int
    """0 with proposer "none": to see what plain decoding would take."""
    proposer: ProposerName
    rounds: int
    every: int
    catch_up: int | None = None
    """Tokens that the draft model may catch up before the first of the `rounds`: some rows will do. None: as for any
    other round."""

    def __post_init__(self) -> None:
        if not (0 <= self.k <= MAX_DRAFT_TOKENS and 0 < self.rounds < self.every):
            raise ValueError(f"{self}: expected 0 <= k <= {MAX_DRAFT_TOKENS} and 0 < rounds < every")

    def due(self, round_index: int) -> bool:
        """Whether round `round_index`, counted from 0 since the engine started, is one of them."""
        return round_index % self.every >= self.every - self.rounds

    def catch_up_at(self, round_index: int) -> int | None:
        """Tokens that the draft model may catch up before this round, one of them; None: as for any other."""
        if self.catch_up is None:
            return None
        return 0 if round_index and self.due(round_index - 1) else self.catch_up

    def unchanged(self, round_index: int) -> int:
        """For how many rounds, this one included, `due` stays what it is."""
        place = round_index % self.every
        return self.every - place if self.due(round_index) else self.every - self.rounds - place


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeculationPlan:
    """Which K to speculate with at each occupancy: `ks[n]` while n rows run; the last entry holds beyond."""

    ks: tuple[int, ...]
    proposer: ProposerName
    queue_depth: float
    """Rows running, waiting in the worker and not yet handed out, over live workers, when the plan was made."""
    reason: str
    """One readable sentence."""
    explore: Exploration | None = None
    tokens_per_s: tuple[float, ...] = ()
    """What a worker is expected to generate at each occupancy, as `ks`; empty where the policy does not say."""
    least_ready: float = 0.0
    """Share of the rows that the draft model must have caught up with for its rounds to pay; until then rounds are
    plain. Rounds that explore do not wait."""

    def __post_init__(self) -> None:
        if not self.ks or min(self.ks) < 0 or max(self.ks) > MAX_DRAFT_TOKENS:
            raise ValueError(f"ks={self.ks}: expected at least one K, each between 0 and {MAX_DRAFT_TOKENS}")

    def k_for(self, running: int) -> int:
        """K while `running` rows hold a slot, in a round that explores nothing."""
        return self.ks[min(running, len(self.ks) - 1)]

    def choice(self, running: int, round_index: int) -> tuple[ProposerName, int]:
        """Who drafts, and how many, in this round. Depends on counts alone, never on a token."""
        if (explore := self.exploring(round_index)) is not None:
            return explore.proposer, explore.k
        k = self.k_for(running)
        return (self.proposer if k else "none"), k

    def exploring(self, round_index: int) -> Exploration | None:
        """What this round tries, if it does."""
        return self.explore if self.explore is not None and self.explore.due(round_index) else None

    def expected_tokens_per_s(self, running: int) -> float:
        """What a worker is expected to generate while `running` rows hold a slot; 0.0 where the policy does not say."""
        return self.tokens_per_s[min(running, len(self.tokens_per_s) - 1)] if self.tokens_per_s else 0.0

    @property
    def max_k(self) -> int:
        return max(*self.ks, self.explore.k if self.explore else 0)


def _add(left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    if len(left) < len(right):
        left, right = right, left
    return tuple(a + (right[i] if i < len(right) else 0) for i, a in enumerate(left))


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptanceCounts:
    """Sums over rounds of rows. A draft is one row's round with K_i > 0.

    acceptance_rate = accepted / draft_tokens; acceptance_length = 1 + accepted / drafts;
    conditional_i = accepted_i / reached_i; unconditional_i = accepted_i / proposed_i.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    recovered_tokens: int = 0
    """Tokens drawn from the residual after a rejection."""
    bonus_tokens: int = 0
    """Tokens drawn from the target after every draft of the round was accepted; plain decoding draws none."""
    proposed_per_position: tuple[int, ...] = ()
    """Drafts with K_i > i."""
    reached_per_position: tuple[int, ...] = ()
    """Drafts with K_i > i whose first i tokens were all accepted."""
    accepted_per_position: tuple[int, ...] = ()

    def __add__(self, other: AcceptanceCounts) -> AcceptanceCounts:
        return AcceptanceCounts(
            drafts=self.drafts + other.drafts,
            draft_tokens=self.draft_tokens + other.draft_tokens,
            accepted_tokens=self.accepted_tokens + other.accepted_tokens,
            recovered_tokens=self.recovered_tokens + other.recovered_tokens,
            bonus_tokens=self.bonus_tokens + other.bonus_tokens,
            proposed_per_position=_add(self.proposed_per_position, other.proposed_per_position),
            reached_per_position=_add(self.reached_per_position, other.reached_per_position),
            accepted_per_position=_add(self.accepted_per_position, other.accepted_per_position),
        )

    @property
    def acceptance_rate(self) -> float:
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def acceptance_length(self) -> float:
        """Mean tokens a draft yields, the recovered or bonus token included; 1.0 when nothing was drafted."""
        return 1.0 + (self.accepted_tokens / self.drafts if self.drafts else 0.0)

    @property
    def conditional(self) -> tuple[float, ...]:
        pairs = zip(self.accepted_per_position, self.reached_per_position, strict=True)
        return tuple(a / r if r else 0.0 for a, r in pairs)

    @property
    def unconditional(self) -> tuple[float, ...]:
        pairs = zip(self.accepted_per_position, self.proposed_per_position, strict=True)
        return tuple(a / n if n else 0.0 for a, n in pairs)


@dataclass(frozen=True, kw_only=True, slots=True)
class CostPoint:
    """What rounds of one shape took, prefill aside. Rounds that compiled or captured a graph are no part."""

    proposer: ProposerName
    """"none" where k is 0."""
    k: int
    running: int
    """Rows of each round."""
    context: float
    """Mean tokens of a row when the round began (length of its KV)."""
    rounds: int
    seconds: float
    """Of all these rounds together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillPoint:
    """What forwards of about one size took in which the draft model alone prefilled."""

    forwards: int
    tokens: int
    """Of all of them together, as the seconds."""
    seconds: float

    def __add__(self, other: PrefillPoint) -> PrefillPoint:
        return PrefillPoint(
            forwards=self.forwards + other.forwards,
            tokens=self.tokens + other.tokens,
            seconds=self.seconds + other.seconds,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """What a worker has timed before its first row; empty where that could not be measured."""

    rounds: tuple[CostPoint, ...] = ()
    draft_prefills: tuple[PrefillPoint, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What rounds and rows have shown: all that a policy learns from. All of it is past."""

    verified: Mapping[ProposerName, AcceptanceCounts] = field(default_factory=dict)
    """By who drafted."""
    rounds: Mapping[ProposerName, int] = field(default_factory=dict)
    """Rounds with K > 0, by who drafted."""
    row_rounds: Mapping[ProposerName, int] = field(default_factory=dict)
    """Rows of those rounds, those without a draft included."""
    costs: tuple[CostPoint, ...] = ()
    rows: int = 0
    """Rows that ended."""
    input_tokens: int = 0
    """Prompt tokens of those rows."""
    output_tokens: int = 0
    """Generated tokens of those rows."""
    draft_prefills: tuple[PrefillPoint, ...] = ()
    running: int = 0
    """Rows of the latest round; 0 without any."""
    draft_behind: float = 0.0
    """`StepReport.draft_behind` of the latest round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardRound:
    """What one engine step did for the rows of one shard."""

    rows: int = 0
    """Rows of this shard that took part in the round."""
    prefill_tokens: int = 0
    """Tokens fed to the target ahead of rounds, those of preempted rows once more."""
    preemptions: int = 0
    """Rows that lost their slot because KV memory ran out; they are recomputed later, with the same tokens."""
    verified: AcceptanceCounts = AcceptanceCounts()
    """All that the target verified: what the policy learns from."""
    emitted_tokens: int = 0
    """Tokens that became output."""
    emitted_accepted_tokens: int = 0
    """Accepted draft tokens among them."""
    gaps_s: tuple[float, ...] = ()
    """Per row that emitted: seconds since its previous emission (inter-token latency)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """What one engine step did: at most one prefill chunk, one round and the completions that fell out."""

    k: int
    running: int
    """Rows that took part in the round (occupancy)."""
    waiting: int
    """Rows submitted that hold no slot, or no longer."""
    slots: int
    seconds: float
    phases: Mapping[Phase, float] = field(default_factory=dict)
    """Seconds by phase of the work that the step read; `host` is what is left of `seconds`."""
    shards: Mapping[int, ShardRound] = field(default_factory=dict)
    completions: tuple[Completion, ...] = ()
    proposer: ProposerName = "none"
    """Who drafted in the round; "none" where k is 0."""
    context: float = 0.0
    """Mean tokens of a row when the round began."""
    round_s: float = 0.0
    """What the round took on the device, waiting for the host included; 0 where that says nothing of such rounds,
    because a graph was captured meanwhile."""
    draft_prefill_tokens: int = 0
    """Tokens that the draft model prefilled or caught up with."""
    draft_prefill_s: float = 0.0
    draft_behind: float = 0.0
    """Mean tokens of a row of the round that the draft model had not seen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """What an engine needs to know beside its models. Part of a run's tuning, except `method` and the rates."""

    slots: int = 16
    """Rows that generate at once."""
    max_model_len: int = 0
    """Longest prompt + output, in tokens; 0 takes what the models allow."""
    max_k: int = 0
    """Widest round that any plan of this run may ask for."""
    proposer: ProposerChoice = "none"
    """"auto": the plan says which, among the draft model (where there is one) and n-grams."""
    method: Method = "standard"
    synthetic_rates: tuple[float, ...] = ()
    """Unconditional acceptance per position, non-increasing; only with method "synthetic"."""
    ngram_max: int = 3
    """Longest suffix that the n-gram proposer looks for."""
    ngram_min: int = 1
    prefill_budget: int = 2048
    """Most prompt tokens of one prefill step."""
    page_size: int = 64
    """Tokens of one KV page."""

    @property
    def pages_per_row(self) -> int:
        """Block-table width: pages of the longest row, and of the drafts that may be written past its end."""
        return -(-(self.max_model_len + self.max_k + 1) // self.page_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardReport:
    """The small message that goes back to the driver once a shard's part is published."""

    shard: int
    attempt: int
    worker: str
    rows: int
    failed_rows: int
    part: str
    telemetry: Mapping[str, object]
    """The flat record that also stands in the part's footer (telemetry schema, docs/telemetry.md)."""
    verified: AcceptanceCounts = AcceptanceCounts()
    evidence: Evidence = Evidence()
    """For the policy, which shares it with all workers."""

"""Vocabulary that every part of specpipe uses. Read this page first.

From the dataset to the output:

- `Shard`: a fixed range of rows of one input file; the unit of dispatch, publishing and retry.
- `Request`: one output row, ready for an engine: prompt tokens, `SamplingParams` and seed. A *score row* has
  continuations instead: given texts that are scored, not generated.
- `Completion`: the output of a request, with `RowTiming` and, where requested, `Logprobs`; for a score row `Score`s.

Rows and rounds:

- *slot*: place of one running row in an engine. *Running* rows hold a slot, *waiting* rows do not.
- *round*: one pass of all running rows. A *proposer* (`ProposerName`) drafts K tokens for each row, the target model
  verifies them and adds one more. K = 0 is plain decoding.
- *method* (`Method`): the rule by which verification accepts draft tokens.
- *occupancy*: rows that take part in a round. *Queue depth*: rows not yet finished, per worker.
- *preemption*: a row loses its slot because KV memory ran out, and is computed again later.

Policy and measurements:

- `SpeculationPlan`: K for each occupancy, as a policy decided it; `Exploration`: rounds that measure another K.
- `AcceptanceCounts`: draft tokens proposed, reached and accepted, by position.
- `Evidence`: observations that a policy learns from; `CostPoint`: measured seconds of rounds; `Profile`: those measured
  before a worker's first row.
- `StepReport`: one engine step; `ShardRound`: the part of it that belongs to one shard; `ShardReport`: message of a
  worker once a shard's *part* (its output file) is published. `Phase`: what telemetry charges seconds to.

Runs:

- *run*: a job's output folder, filled over one or more *starts*. An *epoch* numbers the starts.
- *identity*: the settings that make the outputs; a run resumes only where they are equal. *Tuning*: the others.
- `EngineConfig`: sizes and methods of an engine. `resolve_device` and `resolve_dtype` replace "auto".
- `KVScaleTable`: scales of KV pages in 8 bits, the same in all workers and starts.
- `specpipe.core.defaults`: defaults and limits that several packages use, each in one place.

All classes are frozen, keyword-only, slotted dataclasses. This package imports neither torch nor Ray nor NumPy, so that
a driver, a test or a notebook can import it cheaply.
"""

from specpipe.core.acceptance_counts import AcceptanceCounts
from specpipe.core.completion import Completion, Logprobs, RowTiming, Score
from specpipe.core.defaults import (
    ALLOCATOR_SLACK,
    BACKUP_S,
    EXPECTED_OUTPUT_TOKENS,
    GPU_MEMORY_SHARE,
    MAX_ATTEMPTS,
    MAX_DRAFT_TOKENS,
    MAX_SHARDS_IN_FLIGHT,
    MAX_TOP_LOGPROBS,
    PREFILL_BUDGET,
    QUEUED_ROWS_PER_SLOT,
    SHARDS_IN_FLIGHT,
    STALL_S,
    admission_batch,
    followed_ks,
)
from specpipe.core.dtypes import DTYPE_BYTES, resolve_device, resolve_dtype
from specpipe.core.engine_config import EngineConfig
from specpipe.core.evidence import CostPoint, Evidence, Profile
from specpipe.core.kv_scales import KVScaleTable, LayerScales, ModelScales
from specpipe.core.literals import (
    DRAFT_SOURCES,
    PHASES,
    AppliesTo,
    DeviceChoice,
    DeviceName,
    DraftSource,
    DtypeChoice,
    DtypeName,
    FinishReason,
    KVDtypeChoice,
    Method,
    Phase,
    ProposerChoice,
    ProposerName,
    QuantizeChoice,
)
from specpipe.core.request import Request
from specpipe.core.sampling_params import SamplingParams
from specpipe.core.shard import Shard
from specpipe.core.shard_report import ShardReport
from specpipe.core.speculation_plan import Exploration, SpeculationPlan
from specpipe.core.step_report import ShardRound, StepReport

__all__ = [
    "ALLOCATOR_SLACK",
    "BACKUP_S",
    "DRAFT_SOURCES",
    "DTYPE_BYTES",
    "EXPECTED_OUTPUT_TOKENS",
    "GPU_MEMORY_SHARE",
    "MAX_ATTEMPTS",
    "MAX_DRAFT_TOKENS",
    "MAX_SHARDS_IN_FLIGHT",
    "MAX_TOP_LOGPROBS",
    "PHASES",
    "PREFILL_BUDGET",
    "QUEUED_ROWS_PER_SLOT",
    "SHARDS_IN_FLIGHT",
    "STALL_S",
    "AcceptanceCounts",
    "AppliesTo",
    "Completion",
    "CostPoint",
    "DeviceChoice",
    "DeviceName",
    "DraftSource",
    "DtypeChoice",
    "DtypeName",
    "EngineConfig",
    "Evidence",
    "Exploration",
    "FinishReason",
    "KVDtypeChoice",
    "KVScaleTable",
    "LayerScales",
    "Logprobs",
    "Method",
    "ModelScales",
    "Phase",
    "Profile",
    "ProposerChoice",
    "ProposerName",
    "QuantizeChoice",
    "Request",
    "RowTiming",
    "SamplingParams",
    "Score",
    "Shard",
    "ShardReport",
    "ShardRound",
    "SpeculationPlan",
    "StepReport",
    "admission_batch",
    "followed_ks",
    "resolve_device",
    "resolve_dtype",
]

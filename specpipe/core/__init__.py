"""The vocabulary that every part of specpipe speaks.

Frozen, keyword-only, slotted dataclasses. This package imports neither torch nor Ray, so that a driver,
a test or a notebook can use it for nothing.
"""

from specpipe.core.acceptance import AcceptanceCounts
from specpipe.core.devices import DTYPE_BYTES, DeviceName, DtypeName, dtype_on
from specpipe.core.engine_config import IN_FLIGHT, MOST_IN_FLIGHT, ROWS_AHEAD, EngineConfig, rows_at_once
from specpipe.core.evidence import CostPoint, Evidence, PrefillPoint, Profile
from specpipe.core.names import MAX_DRAFT_TOKENS, PHASES, FinishReason, Method, Phase, ProposerChoice, ProposerName
from specpipe.core.plan import Exploration, SpeculationPlan
from specpipe.core.reports import ShardReport, ShardRound, StepReport
from specpipe.core.rows import Completion, Logprobs, Request, RowTiming, Shard
from specpipe.core.sampling import MAX_TOP_LOGPROBS, SamplingParams

__all__ = [
    "DTYPE_BYTES",
    "IN_FLIGHT",
    "MAX_DRAFT_TOKENS",
    "MAX_TOP_LOGPROBS",
    "MOST_IN_FLIGHT",
    "PHASES",
    "ROWS_AHEAD",
    "AcceptanceCounts",
    "Completion",
    "CostPoint",
    "DeviceName",
    "DtypeName",
    "EngineConfig",
    "Evidence",
    "Exploration",
    "FinishReason",
    "Logprobs",
    "Method",
    "Phase",
    "PrefillPoint",
    "Profile",
    "ProposerChoice",
    "ProposerName",
    "Request",
    "RowTiming",
    "SamplingParams",
    "Shard",
    "ShardReport",
    "ShardRound",
    "SpeculationPlan",
    "StepReport",
    "dtype_on",
    "rows_at_once",
]

"""Defaults and limits that several packages use. Everything else reads them here or from the job model's fields."""

from __future__ import annotations

MAX_DRAFT_TOKENS = 32
"""Largest K. The kernels are compiled for at most this many draft tokens a row."""
FOLLOWED_KS = (1, 3, 7, 11, 15, 23, 31)
"""K of rounds that follow earlier answers, up to the job's limit, which is one too. They are few, since each is a graph
for every batch size."""
MAX_TOP_LOGPROBS = 20
"""Most alternatives whose log-probabilities a row may request for each token."""
PREFILL_BUDGET = 2048
"""Prompt tokens of one prefill step, at most."""
GPU_MEMORY_SHARE = 0.95
"""Share of the GPU memory that is free beside activations; CUDA takes the rest for the graphs themselves."""
ALLOCATOR_SLACK = 1.25
"""Bytes that torch reserves for activations over those in use at once."""
CPU_PAGE_SIZE = 16
"""Tokens of a KV page on a CPU, at most: prompts share all but 15 tokens of what they have in common."""
EXPECTED_OUTPUT_TOKENS = 256.0
"""Estimate of a row's output length, in tokens, before any row has ended."""
STALL_S = 900.0
"""Seconds after which a worker whose engine step or answer has not ended counts as hung."""
BACKUP_S = 10.0
"""Seconds that one of the last shards must have been running before an idle worker gets a copy of it."""
MAX_ATTEMPTS = 3
"""Attempts at a shard before the run goes on without it."""
SHARDS_IN_FLIGHT = 2
"""Shards that a worker holds at once, so that its slots stay full when one of them ends."""
MAX_SHARDS_IN_FLIGHT = 16
"""Shards that a worker holds at most, where shards are small."""
QUEUED_ROWS_PER_SLOT = 1.5
"""Rows per slot for a worker where shards are small: a third of them may end before its next status arrives."""


def followed_ks(limit: int) -> tuple[int, ...]:
    """Returns the K that rounds which follow earlier answers may have, ascending. limit: the largest."""
    return (*(k for k in FOLLOWED_KS if k < limit), limit)


def admission_batch(slots: int) -> int:
    """Returns the number of new rows that get a slot together, as a rule.

    A prefill of one row reads all weights once, as a prefill of ten rows does, so rows are admitted in groups.
    """
    return max(1, slots // 16)

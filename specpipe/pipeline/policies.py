"""A job's policy, and what its driver and its workers tune with."""

from __future__ import annotations

import pyarrow as pa

from specpipe.job import JobSpec
from specpipe.speculation.learning import Learning
from specpipe.speculation.make import make_policy
from specpipe.speculation.policy import Policy
from specpipe.speculation.tuner import Tuner
from specpipe.telemetry.sums import evidence

_LATEST = 256  # shards of earlier starts that say what acceptance is like now


def policy_of(job: JobSpec) -> Policy:
    speculation = job.speculation
    return make_policy(
        speculation.policy,
        k=speculation.num_speculative_tokens,
        max_running=speculation.max_running,
        proposers=job.proposers,
    )


def learning_of(job: JobSpec, done: pa.Table) -> Learning:
    """What the driver knows at a start: all that the shards of earlier starts, rows of the shard table, have shown."""
    learning = Learning(
        slots=job.workers.slots, proposers=job.proposers, output_tokens=float(job.sampling.max_new_tokens)
    )
    if done.num_rows:
        latest = done.sort_by([("finished_at", "descending")]).slice(0, _LATEST)
        learning.see(None, evidence(latest))
    return learning


def tuner_of(job: JobSpec) -> Tuner:
    return Tuner(
        policy_of(job),
        slots=job.workers.slots,
        proposers=job.proposers,
        output_tokens=float(job.sampling.max_new_tokens),
    )

"""A job's policy, and what its driver and its workers tune with."""

from __future__ import annotations

import pyarrow as pa

from specpipe.job import JobSpec
from specpipe.models.source import ModelSource
from specpipe.pipeline.store.cost_cache import CostCache
from specpipe.speculation.make_policy import make_policy
from specpipe.speculation.policy import Policy
from specpipe.speculation.run_estimates import RunEstimates
from specpipe.speculation.tuner import Tuner
from specpipe.telemetry.shard_table import evidence

_LATEST = 256  # shards of earlier starts that say what acceptance is like now


def policy_of(job: JobSpec) -> Policy:
    speculation = job.speculation
    return make_policy(
        speculation.policy,
        k=speculation.num_speculative_tokens,
        max_running=speculation.max_running,
        proposers=job.proposers,
    )


def cost_cache_of(job: JobSpec, target: ModelSource, draft: ModelSource | None) -> CostCache | None:
    """Where a policy that weighs costs keeps them from one run to the next; None for others."""
    if job.speculation.policy != "goodput":
        return None
    return CostCache(
        {
            "target": target.revision,
            "draft": draft.revision if draft is not None else None,
            "draft_dtype": job.model.draft_dtype,
            "method": job.speculation.method,
        }
    )


def learning_of(job: JobSpec, done: pa.Table, cache: CostCache | None) -> RunEstimates:
    """What the driver knows at a start: what rounds took in earlier runs, and what the shards of earlier starts of this
    one, rows of the shard table, have shown."""
    known = {"known": cache.load} if cache is not None else {}
    learning = RunEstimates(
        slots=job.workers.slots,
        proposers=job.proposers,
        prefill_budget=job.workers.prefill_budget,
        output_tokens=float(job.sampling.max_new_tokens),
        **known,
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
        prefill_budget=job.workers.prefill_budget,
        output_tokens=float(job.sampling.max_new_tokens),
    )

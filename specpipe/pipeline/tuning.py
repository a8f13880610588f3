"""The speculation policy of a job, and the estimates that it starts with on the driver and on workers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from specpipe.job import JobSpec
from specpipe.pipeline.prepare import PreparedJob
from specpipe.pipeline.store.cost_cache import CostCache
from specpipe.speculation.estimates.run_estimates import RunEstimates
from specpipe.speculation.policies.make_policy import make_policy
from specpipe.speculation.policies.policy import Policy
from specpipe.speculation.tuner import Tuner
from specpipe.telemetry.shard_table import evidence

_RECENT_SHARDS = 256  # latest shards of earlier starts from which acceptance is estimated


def job_policy(job: JobSpec) -> Policy:
    """Returns the policy that `speculation.policy` names."""
    speculation = job.speculation
    return make_policy(
        speculation.policy,
        k=speculation.num_speculative_tokens,
        replay_k=speculation.replay_k,
        max_running=speculation.max_running,
        proposers=job.proposers,
        applies_to=speculation.applies_to,
    )


def job_tuner(job: JobSpec) -> Tuner:
    """Returns a worker's tuner, which applies the policy between two shard orders."""
    return Tuner(job_policy(job), **_engine_facts(job))


def job_cost_cache(prepared: PreparedJob) -> CostCache | None:
    """Returns the cache of measured round costs for this pair of models; None for policies that use no costs."""
    job = prepared.job
    if job.speculation.policy != "goodput":
        return None
    return CostCache(
        {
            "target": prepared.target.revision,
            "draft": prepared.draft.revision if prepared.draft is not None else None,
            "quantize": [job.model.quantize, job.model.quantize_draft, job.model.kv_dtype],
            "method": job.speculation.method,
        }
    )


def job_estimates(job: JobSpec, published: pa.Table, cache: CostCache | None) -> RunEstimates:
    """Returns the driver's estimates at a start.

    `published`: rows of telemetry.shard_schema from earlier starts of this run, for acceptance. `cache`: round costs
    of earlier runs.
    """
    facts = _engine_facts(job)
    estimates = RunEstimates(**facts) if cache is None else RunEstimates(**facts, cached_costs=cache.load)
    if published.num_rows:
        latest = published.sort_by([("finished_at", "descending")]).slice(0, _RECENT_SHARDS)
        estimates.add(None, evidence(latest))
    return estimates


def _engine_facts(job: JobSpec) -> dict[str, Any]:
    """The settings of a job that estimates of acceptance and cost depend on."""
    return {
        "slots": job.workers.slots,
        "proposers": job.proposers,
        "output_tokens": float(job.sampling.max_new_tokens),
    }

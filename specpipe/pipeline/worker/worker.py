"""A worker: reads the rows of a shard, runs them through its engine, publishes the part and reports it.

A plain class. `cluster.ray_pool` wraps it in a Ray actor with several threads: several shards run side by side, so that
slots stay full when one of them ends.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from specpipe.core import Request, Shard, ShardReport
from specpipe.data import publish_part, to_table
from specpipe.errors import SpecpipeError
from specpipe.pipeline.failures import ShardError
from specpipe.pipeline.logs import log_fields
from specpipe.pipeline.messages import EngineGauges, ShardOrder, WorkerInfo, WorkerStatus
from specpipe.pipeline.replay.run_answers import open_answers
from specpipe.pipeline.store.ledger import done_record
from specpipe.pipeline.worker.config import WorkerConfig
from specpipe.pipeline.worker.engine_host import EngineHost
from specpipe.pipeline.worker.engine_steps import WARM_UP_SHARD
from specpipe.pipeline.worker.failed_rows import FailedRows
from specpipe.pipeline.worker.shard_reader import ShardReader
from specpipe.telemetry.engine_totals import EngineTotals
from specpipe.telemetry.shard_meter import ShardMeter
from specpipe.telemetry.shard_record import ShardRecord
from specpipe.telemetry.timeline_sampler import TimelineSampler

log = logging.getLogger(__name__)
CPU_WARM_UP_TOKENS = 8
"""Tokens of a warm-up row on a CPU, at most: nothing is compiled there, so a few rounds allocate all that later ones
need."""


def _shortened(request: Request) -> Request:
    """Returns the request with at most CPU_WARM_UP_TOKENS new tokens."""
    limit = min(request.sampling.max_new_tokens, CPU_WARM_UP_TOKENS)
    return dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, max_new_tokens=limit))


@contextmanager
def _errors_as(error_class: Callable[[str], SpecpipeError]) -> Iterator[None]:
    """Raises errors that are no SpecpipeError as `error_class(text)`, which can be pickled whatever they were."""
    try:
        yield
    except SpecpipeError:
        raise
    except Exception as error:
        log.error("%s", traceback.format_exc())
        raise error_class(f"{type(error).__name__}: {error}") from None


class Worker:
    """Owner of one engine. `start` is called first; then `run_shard` and `status`, from any thread."""

    def __init__(self, name: str, config: WorkerConfig) -> None:
        self._name, self._config = name, config
        self._refused_rows = 0
        self._lock = threading.Lock()
        self._host: EngineHost
        self._reader: ShardReader

    def start(self, warm_up: ShardOrder | None) -> WorkerInfo:
        """Checks the output folder, loads the models and runs the first rows of `warm_up` without publishing them."""
        with _errors_as(SpecpipeError):
            host = socket.gethostname()
            self._config.folder.check_probe(self._config.probe, host)
            sampler = TimelineSampler(
                worker=self._name, epoch=self._config.epoch, interval_s=self._config.timeline_interval_s
            )
            self._host = EngineHost(self._config, sampler)
            answers = open_answers(self._config.answers, self._host.builder) if self._config.answers else None
            self._reader = ShardReader(self._config.prepared, self._host.builder, answers)
            began = time.perf_counter()
            if warm_up is not None:
                self._warm_up(warm_up)
            facts = {**self._host.facts, "host": host, "pid": os.getpid(), "warm_up_s": time.perf_counter() - began}
            return WorkerInfo(facts=facts, profile=self._host.profile, kv_scales=self._host.kv_scales)

    def _warm_up(self, order: ShardOrder) -> None:
        shard = order.shard
        stop = min(shard.stop, shard.start + self._config.job.data.warmup_rows)
        rows = self._reader.rows(dataclasses.replace(shard, index=WARM_UP_SHARD, stop=stop, samples=1))
        requests = [dataclasses.replace(request, warm_up=True) for request in rows.requests]
        if self._config.device == "cpu":
            requests = [_shortened(request) for request in requests]
        self._host.run(WARM_UP_SHARD, requests, order.plan, order.priors)

    def run_shard(self, order: ShardOrder) -> ShardReport:
        """Runs a shard. Blocks until its part is published.

        Raises EngineError when the engine has died, StaleRunError when a newer start owns the folder, and ShardError or
        another SpecpipeError when this attempt failed and nothing was published.
        """
        with log_fields(shard=order.shard.index, attempt=order.attempt), _errors_as(ShardError):
            report = self._run_shard(order)
            log.info("published %s: %d rows, %d of them failed", report.part, report.rows, report.failed_rows)
            return report

    def _run_shard(self, order: ShardOrder) -> ShardReport:
        started_at, began = time.time(), time.perf_counter()
        shard, folder = order.shard, self._config.folder
        published = FailedRows.read(folder, shard, self._config.run_id) if order.failed_only else None
        if order.attempt > 1 and not order.failed_only and (report := self._published(shard)) is not None:
            return report
        requests, refused, shard_hash = self._reader.rows(shard)
        if published is not None:
            requests, refused = published.select(requests, refused, shard_hash)
        kept = None if published is not None else self._reader.kept_columns(shard)
        load_s = time.perf_counter() - began
        self._host.use_kv_scales(order.kv_scales)
        completions, meter = self._host.run(shard.index, requests, order.plan, order.priors)
        for completion in refused:
            meter.add_completion(completion)
        record = self._record(order, meter, started_at, load_s)
        with self._lock:
            self._refused_rows += len(refused)
        if published is not None:
            table, record = published.merge([*completions, *refused], record)
        else:
            table = to_table([*completions, *refused], shard.rows, kept)
        folder.check_epoch(self._config.epoch)
        if not order.failed_only and (report := self._published(shard)) is not None:
            return report  # another worker has published a copy of this shard; the first complete part stays
        part = folder.part_name(shard.index)
        publish_part(folder.file(part), table, shard_hash=shard_hash, telemetry=record.to_dict())
        return dataclasses.replace(_report(record, part), evidence=self._host.evidence())

    def _record(self, order: ShardOrder, meter: ShardMeter, started_at: float, load_s: float) -> ShardRecord:
        """Returns the telemetry of a shard that ends now. `started_at` in Unix seconds."""
        return meter.record(
            run_id=self._config.run_id,
            shard=order.shard.index,
            attempt=order.attempt,
            epoch=self._config.epoch,
            worker=self._name,
            plan=order.plan,
            synthetic=self._config.job.speculation.method == "synthetic",
            started_at=started_at,
            finished_at=time.time(),
            load_s=load_s,
        )

    def _published(self, shard: Shard) -> ShardReport | None:
        """Returns the report of a complete part, by an attempt whose report was lost or by a copy; None without one."""
        record = done_record(self._config.folder, shard, self._config.run_id)
        return None if record is None else _report(record, self._config.folder.part_name(shard.index))

    def status(self, after: int, final: bool = False) -> WorkerStatus:
        """Returns counters so far, and the timeline intervals after Unix second `after`; `final` adds the unfinished
        one."""
        status = self._host.status(after=after, final=final)
        return dataclasses.replace(status, rows_done=status.rows_done + self._refused_rows)

    def measured(self) -> tuple[EngineTotals, EngineGauges] | None:
        """Returns sums and state of the current engine; None while there is none.

        Rows that never reached an engine count as finished with reason "refused".
        """
        if (measured := self._host.measured()) is not None:
            measured[0].finished["refused"] = self._refused_rows
        return measured

    def close(self) -> None:
        """Stops the engine's thread. Shards in flight fail."""
        if hasattr(self, "_host"):
            self._host.close()


def _report(record: ShardRecord, part: str) -> ShardReport:
    return ShardReport(
        shard=record.shard,
        attempt=record.attempt,
        worker=record.worker,
        rows=record.rows,
        failed_rows=record.failed_rows,
        part=part,
        telemetry=record.to_dict(),
        verified=record.verified,
    )

"""A worker: reads the rows of a shard, runs them through its engine, publishes the part, reports.

A plain class, which the Ray pool wraps in an actor with several threads: shards run side by side, so that the slots
stay full across shard borders.
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
from typing import Any

from specpipe.core import Completion, Request, Shard, ShardReport
from specpipe.data import (
    RowHasher,
    expand_samples,
    publish_part,
    read_kept_columns,
    read_rows,
    repeat_rows,
    require_unchanged,
    to_table,
)
from specpipe.errors import SpecpipeError
from specpipe.pipeline.failures import ShardError
from specpipe.pipeline.logs import log_fields
from specpipe.pipeline.messages import EngineGauges, ShardOrder, WorkerInfo, WorkerStatus
from specpipe.pipeline.store.ledger import done_record
from specpipe.pipeline.worker.config import WorkerConfig
from specpipe.pipeline.worker.engine_host import EngineHost
from specpipe.pipeline.worker.engine_loop import WARM_UP_SHARD
from specpipe.pipeline.worker.failed_rows import FailedRows
from specpipe.telemetry.engine_totals import EngineTotals
from specpipe.telemetry.shard_record import ShardRecord
from specpipe.telemetry.timeline_sampler import TimelineSampler

log = logging.getLogger(__name__)


@contextmanager
def _as(wrap: Callable[[str], SpecpipeError]) -> Iterator[None]:
    """Our own errors pass; others become `wrap(their text)`, which pickles whatever they were."""
    try:
        yield
    except SpecpipeError:
        raise
    except Exception as error:
        log.error("%s", traceback.format_exc())
        raise wrap(f"{type(error).__name__}: {error}") from None


class Worker:
    """Owns one engine. `start` first; then `run_shard` and `status` from any thread."""

    def __init__(self, name: str, config: WorkerConfig) -> None:
        self._name, self._config = name, config
        self._refused_rows = 0
        self._lock = threading.Lock()
        self._host: EngineHost

    def start(self, warm_up: ShardOrder | None) -> WorkerInfo:
        """Check the output folder, load the models, run the first rows of `warm_up` and throw them away."""
        with _as(SpecpipeError):
            host = socket.gethostname()
            self._config.folder.check_probe(self._config.probe, host)
            sampler = TimelineSampler(
                worker=self._name, epoch=self._config.epoch, interval_s=self._config.timeline_interval_s
            )
            self._host = EngineHost(self._config, sampler)
            began = time.perf_counter()
            if warm_up is not None:
                self._warm_up(warm_up)
            facts = {**self._host.facts, "host": host, "pid": os.getpid(), "warm_up_s": time.perf_counter() - began}
            return WorkerInfo(facts=facts, profile=self._host.profile)

    def _warm_up(self, order: ShardOrder) -> None:
        shard = order.shard
        stop = min(shard.stop, shard.start + self._config.job.data.warmup_rows)
        requests, _, _ = self._read(dataclasses.replace(shard, index=WARM_UP_SHARD, stop=stop, samples=1))
        self._host.run(WARM_UP_SHARD, requests, order.plan, order.priors)

    def run_shard(self, order: ShardOrder) -> ShardReport:
        """Blocks until the shard's part is published.

        Raises EngineError when the engine has died, StaleRunError when a newer start owns the folder, ShardError or
        another SpecpipeError when this attempt has failed and nothing was published.
        """
        with log_fields(shard=order.shard.index, attempt=order.attempt), _as(ShardError):
            report = self._run_shard(order)
            log.info("published %s: %d rows, %d of them failed", report.part, report.rows, report.failed_rows)
            return report

    def _run_shard(self, order: ShardOrder) -> ShardReport:
        started_at, began = time.time(), time.perf_counter()
        shard, folder = order.shard, self._config.folder
        before = FailedRows.of(folder, shard, self._config.run_id) if order.failed_only else None
        if order.attempt > 1 and not order.failed_only and (report := self._published(shard)) is not None:
            return report
        requests, refused, shard_hash = self._read(shard)
        if before is not None:
            requests, refused = before.select(requests, refused, shard_hash)
        kept = None if before is not None else self._read_kept(shard)
        load_s = time.perf_counter() - began
        completions, meter = self._host.run(shard.index, requests, order.plan, order.priors)
        for completion in refused:
            meter.add_completion(completion)
        record = meter.record(
            run_id=self._config.run_id,
            shard=shard.index,
            attempt=order.attempt,
            epoch=self._config.epoch,
            worker=self._name,
            plan=order.plan,
            synthetic=self._config.job.speculation.method == "synthetic",
            started_at=started_at,
            finished_at=time.time(),
            load_s=load_s,
        )
        with self._lock:
            self._refused_rows += len(refused)
        if before is not None:
            table, record = before.merge([*completions, *refused], record)
        else:
            table = to_table([*completions, *refused], shard.rows, kept)
        folder.check_epoch(self._config.epoch)
        if not order.failed_only and (report := self._published(shard)) is not None:
            return report  # a copy of this shard on another worker was faster: the first whole part stays
        part = folder.part_name(shard.index)
        publish_part(folder.file(part), table, shard_hash=shard_hash, telemetry=record.to_dict())
        return dataclasses.replace(_report(record, part), evidence=self._host.evidence())

    def _published(self, shard: Shard) -> ShardReport | None:
        """The report of a part that is there and whole: by an attempt whose report was lost, or by a copy."""
        record = done_record(self._config.folder, shard, self._config.run_id)
        return None if record is None else _report(record, self._config.folder.part_name(shard.index))

    def _read(self, shard: Shard) -> tuple[list[Request], list[Completion], str]:
        """Requests, the rows that cannot be one, and the hash of all rows as they were read."""
        builder = self._host.builder
        hasher = RowHasher()
        requests: list[Request] = []
        refused: list[Completion] = []
        file = self._config.files[shard.file]
        require_unchanged(file)
        for row in read_rows(file, shard.start, shard.stop, builder.columns):
            hasher.update(row)
            for built in expand_samples(builder.build(row, shard), shard.samples):
                if isinstance(built, Request):
                    requests.append(built)
                else:
                    refused.append(built)
        return requests, refused, hasher.hexdigest()

    def _read_kept(self, shard: Shard) -> Any:
        if self._config.kept_schema is None:
            return None
        kept = read_kept_columns(self._config.files[shard.file], shard.start, shard.stop, self._config.kept_schema)
        return repeat_rows(kept, shard.samples)

    def status(self, after: int, final: bool = False) -> WorkerStatus:
        """Counters so far, and the timeline since Unix second `after`; `final`: with the interval that is not over."""
        status = self._host.status(after=after, final=final)
        return dataclasses.replace(status, rows_done=status.rows_done + self._refused_rows)

    def measured(self) -> tuple[EngineTotals, EngineGauges] | None:
        """What the present engine has done, and rows that never reached one, as "refused"; None while none is built."""
        if (measured := self._host.measured()) is not None:
            measured[0].finished["refused"] = self._refused_rows
        return measured

    def close(self) -> None:
        """Stop the engine's thread; shards in flight fail."""
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

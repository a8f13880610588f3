"""A worker's engine and its thread; built again for smaller batches when the device's memory runs out."""

from __future__ import annotations

import dataclasses
import gc
import logging
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from specpipe.core import Completion, Evidence, KVScaleTable, Profile, Request, SpeculationPlan
from specpipe.data import RequestBuilder
from specpipe.errors import SpecpipeError
from specpipe.pipeline.failures import EngineError, MemoryFailure, is_out_of_memory
from specpipe.pipeline.messages import EngineGauges, WorkerStatus
from specpipe.pipeline.tuning import job_tuner
from specpipe.pipeline.worker.build import build_parts
from specpipe.pipeline.worker.config import WorkerConfig, WorkerParts
from specpipe.pipeline.worker.engine_loop import EngineLoop
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.telemetry.engine_totals import EngineTotals
from specpipe.telemetry.shard_meter import ShardMeter
from specpipe.telemetry.timeline_sampler import TimelineSampler

log = logging.getLogger(__name__)
_MIN_PREFILL_BUDGET = 64


class EngineHost:
    """Owner of a worker's engine. `run` and `status` may be called from any thread."""

    def __init__(self, config: WorkerConfig, sampler: TimelineSampler) -> None:
        """Builds the engine. Raises ModelError, MachineError, and EngineError when not even one slot fits."""
        self._config, self._sampler = config, sampler
        self._lock = threading.Lock()
        self._notes: list[str] = []
        self._finished_rows = 0
        self._replaced: WorkerStatus | None = None
        """Counters of the engines that ran out of memory; None while the first one runs."""
        self.builder: RequestBuilder
        self.facts: Mapping[str, Any]
        self.profile: Profile
        self._loop: EngineLoop | None = self._build()

    def _build(self) -> EngineLoop:
        while True:
            try:
                parts = self._build_parts()
            except SpecpipeError:
                raise
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                reason = str(error)
            else:
                self.builder, self.facts, self.profile = parts.builder, parts.facts, parts.profile
                self._config = dataclasses.replace(self._config, kv_scales=parts.kv_scales)
                return EngineLoop(parts.engine, self._sampler, job_tuner(self._config.job))
            self._halve(reason)
            _free_memory()

    def _build_parts(self) -> WorkerParts:
        """Builds the parts on a thread that ends.

        Every thread that computes keeps OpenMP threads. With those of two threads on a worker's processors, libgomp
        waits at barriers by sleeping: CPU rounds took 1.6 times as long as in the start-up profile.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="build") as thread:
            return thread.submit(self._config.build_parts or build_parts, self._config).result()

    def _halve(self, reason: str) -> None:
        """Halves slots and prefill budget. Raises EngineError when there is one slot left."""
        workers = self._config.job.workers
        if workers.slots == 1:
            raise EngineError(f"the device's memory does not hold one row beside the models: {reason}")
        slots = workers.slots // 2
        prefill_budget = max(_MIN_PREFILL_BUDGET, workers.prefill_budget // 2)
        self._config = self._config.with_engine_limits(slots=slots, prefill_budget=prefill_budget)
        self._note(
            f"out of memory with {workers.slots} slots: the worker continues with {slots} and runs its shards again. "
            f"Set workers.slots or workers.prefill_budget lower, or model.max_model_len ({reason.splitlines()[0]})"
        )

    def _note(self, text: str) -> None:
        log.warning("%s", text)
        self._notes.append(text)

    def run(
        self, shard: int, requests: Sequence[Request], plan: SpeculationPlan, priors: PolicyInputs | None
    ) -> tuple[list[Completion], ShardMeter]:
        """Runs all rows of a shard; from their start again, in smaller batches, when memory runs out. Blocks.

        Raises EngineError when the engine has died or dies meanwhile.
        """
        while True:
            with self._lock:
                loop = self._loop
            if loop is None:
                raise EngineError("the engine could not be built again")
            try:
                completions, meter = loop.run(shard, requests, plan, priors)
            except MemoryFailure as failure:
                self._rebuild(loop, str(failure))
                continue
            with self._lock:
                self._finished_rows += len(completions)
            return completions, meter

    @property
    def kv_scales(self) -> KVScaleTable:
        """Scales of the engine's KV pages in 8 bits."""
        return self._config.kv_scales

    def use_kv_scales(self, scales: KVScaleTable) -> None:
        """Builds the engine again if it has other scales of KV pages. Only before the first shard do they differ.

        GPUs of different kinds may measure different scales.
        """
        with self._lock:
            if self._loop is None or all(scales.get(model) == own for model, own in self.kv_scales.items()):
                return
            log.info("the run has other scales of KV pages than this worker measured: its engine is built again")
            self._loop.close()
            self._loop = None
            _free_memory()
            self._config = dataclasses.replace(self._config, kv_scales=scales)
            self._loop = self._build()

    def _rebuild(self, loop: EngineLoop, reason: str) -> None:
        """Replaces `loop` by one of a smaller engine. Each of its shards calls this; the first call does the work."""
        with self._lock:
            if self._loop is not loop:
                return
            idle = dataclasses.replace(loop.status(after=0), running=0, waiting=0, in_step_s=0.0, samples=())
            self._replaced = dataclasses.replace(idle, rows_done=self._finished_rows)
            loop.close()
            self._loop = None
            del loop
            self._halve(reason)
            _free_memory()
            self._loop = self._build()

    def status(self, *, after: int, final: bool) -> WorkerStatus:
        """Returns counters over all engines so far, timeline intervals after Unix second `after`, and notes."""
        loop, replaced = self._loop, self._replaced
        if loop is None:
            assert replaced is not None
            status = replaced
        else:
            status = loop.status(after=after, final=final)
            if replaced is not None:
                status = dataclasses.replace(status, rows_done=status.rows_done + replaced.rows_done)
        notes, self._notes = tuple(self._notes), []
        if status.in_step_s > self._config.stall_s:
            notes = (*notes, f"one engine step takes {status.in_step_s:.0f} s:\n{stacks()}")
        return dataclasses.replace(status, notes=notes)

    def measured(self) -> tuple[EngineTotals, EngineGauges] | None:
        """Returns sums and state of the current engine; None while it is built again."""
        loop = self._loop
        return None if loop is None else (loop.totals(), loop.gauges())

    def evidence(self) -> Evidence:
        """Returns the measurements for the policy since they were last taken, here or by `status`."""
        loop = self._loop
        return Evidence() if loop is None else loop.evidence()

    def close(self) -> None:
        """Stops the engine's thread. Shards in flight fail."""
        if (loop := self._loop) is not None:
            loop.close()


def stacks() -> str:
    """Returns the stack of every thread of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


def _free_memory() -> None:
    """Returns the memory of a deleted engine from torch's cache to the device."""
    gc.collect()
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()

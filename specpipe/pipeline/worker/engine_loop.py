"""The thread that steps an engine while shards wait for their rows."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Sequence

from specpipe.core import Request, SpeculationPlan
from specpipe.pipeline.failures import EngineError, MemoryFailure, is_out_of_memory
from specpipe.pipeline.worker.engine_protocol import EngineProtocol
from specpipe.pipeline.worker.engine_steps import EngineSteps, ShardResult
from specpipe.speculation.estimates.policy_inputs import PolicyInputs
from specpipe.speculation.tuner import Tuner
from specpipe.telemetry.shard_meter import ShardMeter
from specpipe.telemetry.timeline_sampler import TimelineSampler

log = logging.getLogger(__name__)


class EngineLoop(EngineSteps):
    """Steps an engine on a thread of its own while shards are in flight. If a step raises, all of them fail.

    Public methods may be called from any thread, except `step`, which the thread calls.
    """

    def __init__(self, engine: EngineProtocol, sampler: TimelineSampler, tuner: Tuner) -> None:
        super().__init__(engine, sampler, tuner)
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def run(
        self, shard: int, requests: Sequence[Request], plan: SpeculationPlan, priors: PolicyInputs | None
    ) -> ShardResult:
        """Runs all rows of a shard. Blocks. `plan` and `priors` come from the shard order.

        Raises EngineError when the engine has died or dies meanwhile.
        """
        if not requests:
            return ShardResult([], ShardMeter())
        result = self.submit(shard, requests, plan, priors)
        self._wake.set()
        return result.result()

    def close(self) -> None:
        """Stops stepping. Shards in flight fail."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            while not self._closing:
                if self.step() is None:
                    self._wake.wait()
                    self._wake.clear()
            self.fail(EngineError("the engine stopped: the worker was stopped"))
        except BaseException as error:  # of any kind, also from a device library: callers must not wait forever
            log.error("%s", traceback.format_exc())
            kind = MemoryFailure if is_out_of_memory(error) else EngineError
            self.fail(kind(f"the engine stopped: {type(error).__name__}: {error}"))

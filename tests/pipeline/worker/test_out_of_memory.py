"""Tests of a device that runs out of memory: the batch shrinks and no row is lost."""

from pathlib import Path

import pytest
from support.fake_engine import FakeEngine
from support.fake_workers import InProcessBackend, fake_parts, make_job, outputs

from specpipe.core import StepReport
from specpipe.pipeline.failures import EngineError, is_out_of_memory
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.store.verify import verify
from specpipe.pipeline.worker.config import WorkerConfig, WorkerParts


class OutOfMemoryError(RuntimeError):
    """Has the name of torch's error, by which workers recognise it without importing torch."""


class Device(FakeEngine):
    """Holds `room` rows. Fails in the `step`-th step that runs more: prefill is the first one of a row."""

    def __init__(self, engine: FakeEngine, room: int, step: int) -> None:
        super().__init__(engine.config, step_s=0.002)
        self._room, self._left = room, step

    def step(self) -> StepReport | None:
        report = super().step()
        if report is not None and report.running > self._room:
            self._left -= 1
            if not self._left:
                raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return report


class Devices:
    def __init__(self, room: int, *, step: int = 1, build: int = 1_000) -> None:
        self.room, self.step, self.build = room, step, build
        self.slots: list[int] = []

    def __call__(self, config: WorkerConfig) -> WorkerParts:
        self.slots.append(config.job.workers.slots)
        if config.job.workers.slots > self.build:
            raise RuntimeError("CUDA error: out of memory")  # as a graph capture says it
        parts = fake_parts(config)
        return WorkerParts(engine=Device(parts.engine, self.room, self.step), builder=parts.builder, facts=parts.facts)


@pytest.fixture(autouse=True)
def no_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out gc.collect(), which takes 0.2 s beside all that other tests have imported."""
    monkeypatch.setattr("specpipe.pipeline.worker.engine_host.gc.collect", lambda: 0)


@pytest.mark.parametrize("step", [1, 4])
def test_batch_shrinks_until_it_fits_with_identical_outputs(
    tmp_path: Path, step: int, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ("workers.slots=12", "workers.shard_tokens=120", "workers.prefill_budget=256")
    execute(make_job(tmp_path, *settings, f"output.path={tmp_path / 'roomy'}"), backend=InProcessBackend())
    devices = Devices(3, step=step)
    result = execute(make_job(tmp_path, *settings), backend=InProcessBackend(build_parts=devices))
    assert (result.state, result.exit_code) == ("complete", 0)
    assert devices.slots == [12, 6, 3]
    # how many drafts a row had depends on nothing but the row, so even these columns agree
    assert outputs(tmp_path / "out").equals(outputs(tmp_path / "roomy"))
    assert verify(str(tmp_path / "out")).complete
    # in the driver's log, whatever becomes of the worker's
    assert "worker-0: out of memory with 12 slots: the worker continues with 6" in caplog.text
    assert set(result.summary["workers"]) == {"worker-0"}


def test_engine_that_does_not_fit_is_built_smaller(tmp_path: Path) -> None:
    devices = Devices(99, build=4)
    result = execute(make_job(tmp_path, "workers.slots=16"), backend=InProcessBackend(build_parts=devices))
    assert (result.state, devices.slots) == ("complete", [16, 8, 4])


def test_device_too_small_for_one_row_ends_the_run(tmp_path: Path) -> None:
    job = make_job(tmp_path, "workers.slots=2")
    with pytest.raises(EngineError, match=r"does not hold one row beside the models.*Tried to allocate"):
        execute(job, backend=InProcessBackend(build_parts=Devices(0)))


def test_prefill_budget_shrinks_with_the_slots(tmp_path: Path) -> None:
    seen: list[int] = []

    def build_parts(config: WorkerConfig) -> WorkerParts:
        seen.append(config.job.workers.prefill_budget)
        if config.job.workers.slots > 4:
            raise OutOfMemoryError("CUDA out of memory")
        return fake_parts(config)

    job = make_job(tmp_path, "workers.slots=16", "workers.prefill_budget=200")
    execute(job, backend=InProcessBackend(build_parts=build_parts))
    assert seen == [200, 100, 64]


def test_out_of_memory_errors_are_recognised() -> None:
    import torch

    assert is_out_of_memory(torch.OutOfMemoryError("x"))
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_graph_capture_error_after_out_of_memory_is_recognised() -> None:
    import torch

    with pytest.raises(RuntimeError) as caught:
        try:
            raise torch.OutOfMemoryError("x")
        finally:  # as torch.cuda.graph does
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
    assert is_out_of_memory(caught.value)

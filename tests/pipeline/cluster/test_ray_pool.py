"""Tests of errors that Ray raises for dead workers."""

from ray.exceptions import RayError

from specpipe.pipeline.cluster.ray_pool import _specpipe_error
from specpipe.pipeline.failures import EngineError


def test_worker_death_keeps_its_cause_without_ray_ids() -> None:
    error = _specpipe_error(
        RayError("The actor died.\n\tclass_name: ExportingWorker\n\tactor_id: 3c53\n\tpid: 7\nKilled by SIGKILL.")
    )
    assert isinstance(error, EngineError)
    assert str(error) == (
        "the worker's process died (RayError: The actor died. Killed by SIGKILL.); if it ran out of memory, lower "
        "workers.slots or model.max_model_len"
    )


def test_long_reason_of_a_death_is_cut() -> None:
    assert len(str(_specpipe_error(RayError("x" * 5000)))) < 450

"""What Ray says when a worker dies, without its own identifiers."""

from ray.exceptions import RayError

from specpipe.pipeline.cluster.ray_pool import _specpipe_error
from specpipe.pipeline.failures import EngineError


def test_a_death_is_told_by_its_cause() -> None:
    error = _specpipe_error(
        RayError("The actor died.\n\tclass_name: ExportingWorker\n\tactor_id: 3c53\n\tpid: 7\nKilled by SIGKILL.")
    )
    assert isinstance(error, EngineError)
    assert str(error) == "the worker's process died (RayError: The actor died. Killed by SIGKILL.)"


def test_a_long_story_is_cut() -> None:
    assert len(str(_specpipe_error(RayError("x" * 5000)))) < 450

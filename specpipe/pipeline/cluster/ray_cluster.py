"""Connection to Ray: a local cluster by default, or the one that RAY_ADDRESS names."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from specpipe.errors import MachineError
from specpipe.job import JobSpec
from specpipe.pipeline.cluster.placement import Placement, place
from specpipe.pipeline.interrupts import hold_interrupts

log = logging.getLogger(__name__)
_CONNECT_S = 5.0
_CLUSTER_ADVICE = (
    ". If the cluster is up: RAY_AUTH_MODE, the token (RAY_AUTH_TOKEN or ~/.ray/auth_token) and Ray's version must "
    "be the same here as in the cluster"
)
_OBJECT_STORE_BYTES = 100 * 2**20  # only small messages cross Ray


def ray_start() -> str:
    """Returns the step that `connected` waits for."""
    address = os.environ.get("RAY_ADDRESS")
    return f"joining the Ray cluster {address}" if address else "starting Ray on this machine, some seconds"


@contextmanager
def connected(job: JobSpec, *, verbose: bool) -> Iterator[Placement]:
    """Connects to Ray while the block lasts. A connection that exists already is used and left open.

    No environment variable is put into a runtime_env, since a dashboard would show the secrets in it.
    """
    import ray

    owned = not ray.is_initialized()
    address = os.environ.get("RAY_ADDRESS")
    logs = ""
    try:
        if owned:
            with hold_interrupts():
                logs = _start(address, verbose=verbose)
            log.info("workers log to %s", logs)
        resources = ray.cluster_resources()
        machines = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
        cpus, gpus = resources.get("CPU", 1.0), resources.get("GPU", 0.0)
        placement = place(job, cpus=cpus, gpus=gpus, elastic=bool(address), machines=machines)
        yield replace(placement, logs=logs)
    finally:
        if owned:
            ray.shutdown()


def _start(address: str | None, *, verbose: bool) -> str:
    """Starts or joins a cluster and returns the folder of Ray's logs. Raises MachineError."""
    import ray

    # Otherwise Ray empties CUDA_VISIBLE_DEVICES in workers that reserve no GPU.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # For the threads of workers: otherwise each keeps about 6 MB in Arrow's pool, and a malloc heap of its own.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    os.environ.setdefault("MALLOC_ARENA_MAX", "4")
    # Threads that wait for each other sleep soon: beside a process that keeps a core, CPU rounds are 11 times as fast.
    os.environ.setdefault("GOMP_SPINCOUNT", "4000")
    level = logging.INFO if verbose else logging.ERROR
    advice = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if address:
                _require_listener(address)
                advice = _CLUSTER_ADVICE
                context = ray.init(address=address, log_to_driver=verbose, logging_level=level)
            else:
                # Ray would start a Python process for each CPU beside its own services: the run starts its workers.
                os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
                context = ray.init(
                    address="local",
                    include_dashboard=False,
                    log_to_driver=verbose,
                    logging_level=level,
                    object_store_memory=_OBJECT_STORE_BYTES,
                )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            where = f"RAY_ADDRESS={address}" if address else "this machine"
            raise MachineError(f"Ray cannot be reached or started ({where}): {error}{advice}") from error
    return os.path.join(context.address_info["session_dir"], "logs")


def _require_listener(address: str) -> None:
    """Raises OSError when the address does not accept connections. Ray itself would retry for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()

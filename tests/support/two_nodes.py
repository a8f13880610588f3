"""A run on two raylets of this machine, `python -m support.two_nodes FOLDER ROWS`: one is killed in the middle."""

import logging
import os
import signal
import sys
import threading
from pathlib import Path

from ray.cluster_utils import Cluster
from support.fake_workers import make_job, wait_for
from support.faults import FaultyBackend

from specpipe.job import JobSpec
from specpipe.pipeline.run.run import execute


def two_node_job(folder: Path, rows: int, *overrides: str) -> JobSpec:
    settings = ("workers.count=2", "workers.cpus_per_worker=1", "workers.max_attempts=9")
    return make_job(folder, *settings, *overrides, rows=rows)


def parts(folder: Path) -> int:
    return len(os.listdir(folder / "out/outputs")) if (folder / "out/outputs").exists() else 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    folder, rows = Path(sys.argv[1]), int(sys.argv[2])
    node = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    second = cluster.add_node(**node)
    os.environ["RAY_ADDRESS"] = cluster.address
    backend = FaultyBackend(folder)

    def kill_a_node() -> None:
        wait_for(lambda: len(backend.pids) == 2 and parts(folder) > 10, 120)
        (raylet,) = second.all_processes["raylet"]
        os.kill(raylet.process.pid, signal.SIGKILL)
        (folder / "killed").touch()

    threading.Thread(target=kill_a_node, daemon=True).start()
    result = execute(two_node_job(folder, rows), backend=backend)
    assert (folder / "killed").exists(), "the run was over before the node was killed"
    cluster.shutdown()
    sys.exit(result.exit_code)

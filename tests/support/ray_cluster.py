"""A real Ray cluster of two nodes on this machine, with token authentication, started as in operation."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.fake_workers import wait_for

_BIN = Path(sys.executable).parent
_START_TIMEOUT_S = 150  # for Ray's start on a busy machine


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class RayCluster:
    """Two raylets; `submit` goes through the job server, as from another machine."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._said = folder, folder / "ray_start.log"
        self.gcs, dashboard, head, second, *rest = free_ports(6)
        self.metrics = (head, second)
        self.dashboard = f"http://127.0.0.1:{dashboard}"
        self.env = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "PYTEST_"))},
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "of-this-test",
            "RAY_metrics_report_interval_ms": "1000",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{_BIN}:{os.environ['PATH']}",
        }
        shared = [f"--temp-dir={folder}", "--num-gpus=0", "--object-store-memory=100000000", "--block"]
        agents = [f"--dashboard-agent-listen-port={port}" for port in rest]
        own = ("--head", "--node-ip-address=127.0.0.1", f"--port={self.gcs}", f"--dashboard-port={dashboard}", *shared)
        joins = (f"--address=127.0.0.1:{self.gcs}", *shared[1:])
        self._nodes = [self._start(*own, "--num-cpus=1", f"--metrics-export-port={head}", agents[0])]
        self._wait_for(dashboard)
        self._nodes.append(self._start(*joins, "--num-cpus=2", f"--metrics-export-port={second}", agents[1]))

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[RayCluster]:
        # not below pytest's folder: the paths of Ray's sockets there are over the 107 bytes that Linux allows
        with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
            cluster = cls(Path(folder))
            try:
                yield cluster
            finally:
                cluster.stop()

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self._said, "ab") as said:
            return subprocess.Popen(
                [_BIN / "ray", "start", *arguments],
                env=self.env,
                start_new_session=True,
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    def _wait_for(self, port: int) -> None:
        def listens() -> bool:
            assert self._nodes[0].poll() is None, f"ray start has ended: {self._said.read_text()[-2000:]}"
            with socket.socket() as knock:
                return knock.connect_ex(("127.0.0.1", port)) == 0

        wait_for(listens, _START_TIMEOUT_S)

    def submit(self, *arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Runs `ray job submit` and waits for its end."""
        command = [_BIN / "ray", "job", "submit", "--address", self.dashboard, *arguments]
        return subprocess.run(command, env=self.env, cwd=cwd, capture_output=True, text=True, timeout=280)

    def start_submit(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Starts `ray job submit`."""
        command = [_BIN / "ray", "job", "submit", "--address", self.dashboard, *arguments]
        return subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def ray(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([_BIN / "ray", *arguments], env=self.env, capture_output=True, text=True, timeout=120)

    @property
    def logs(self) -> Path:
        return self._folder / "session_latest/logs"

    def stop(self) -> None:
        for node in reversed(self._nodes):
            node.send_signal(signal.SIGTERM)
            try:
                node.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(node.pid, signal.SIGKILL)

"""One job and a hundred random kills, of its workers and sometimes of its driver."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support.fake_workers import InProcessBackend, outputs
from support.soak import soak_job

from specpipe.pipeline.run.run import execute
from specpipe.pipeline.store.verify import verify

KILLS = int(os.environ.get("SPECPIPE_SOAK_KILLS", "100"))
ROWS = 160 * KILLS
TESTS = str(Path(__file__).parents[1])


def start(folder: Path) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([TESTS, *sys.path])
    command = [sys.executable, "-m", "support.soak", str(folder), str(ROWS)]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with open(folder / "log", "ab") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


def alive(folder: Path) -> list[int]:
    """Returns the workers whose process exists."""
    pids = [int(name) for name in os.listdir(folder / "pids")] if (folder / "pids").exists() else []
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def parts(folder: Path) -> int:
    return len(os.listdir(folder / "out/outputs")) if (folder / "out/outputs").exists() else 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_hundred_random_kills_lose_nothing(tmp_path: Path) -> None:
    dice, live, kills, drivers = random.Random(7), start(tmp_path), 0, 0
    try:
        while kills < KILLS:
            seen = parts(tmp_path)
            while parts(tmp_path) <= seen and live.poll() is None:
                time.sleep(0.02)
            time.sleep(dice.uniform(0.0, 1.0))
            assert live.poll() is None, f"over after {kills} kills: {(tmp_path / 'log').read_text()[-2000:]}"
            if dice.random() < 0.08:
                live.kill()
                live.wait()
                live, drivers = start(tmp_path), drivers + 1
            elif workers := alive(tmp_path):
                with suppress(ProcessLookupError):
                    os.kill(dice.choice(workers), signal.SIGKILL)
            else:
                continue
            kills += 1
        assert live.wait(timeout=900) == 0, (tmp_path / "log").read_text()[-2000:]
    finally:
        live.kill()
    found = verify(str(tmp_path / "out"))
    assert found.complete, "\n".join(map(str, found.findings))
    assert found.verified_rows == ROWS
    execute(soak_job(tmp_path, ROWS, f"output.path={tmp_path / 'calm'}"), backend=InProcessBackend())
    assert outputs(tmp_path / "out")["generated_token_ids"] == outputs(tmp_path / "calm")["generated_token_ids"]
    print(f"{kills} kills, {drivers} of them of the driver")

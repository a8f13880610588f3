"""Runs in this process without Ray: real workers, driver and folder, engines without a model."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file
from support.byte_encoder import ByteEncoder
from support.fake_engine import FakeEngine

import specpipe.models.tiny
from specpipe.core import EngineConfig, ShardReport
from specpipe.data import list_files
from specpipe.job import JobSpec, parse_job
from specpipe.models.source import ModelSource
from specpipe.pipeline.cluster.placement import Placement
from specpipe.pipeline.driver.progress import Progress
from specpipe.pipeline.messages import ShardOrder, WorkerInfo, WorkerStatus
from specpipe.pipeline.prepare import PreparedJob
from specpipe.pipeline.store.folder import RunFolder
from specpipe.pipeline.worker.build import make_builder
from specpipe.pipeline.worker.config import WorkerConfig, WorkerParts
from specpipe.pipeline.worker.worker import Worker


def write_rows(path: Path, count: int, **changes: Any) -> Path:
    """A Parquet file of prompts; `changes` replace the prompt of single rows: r3=None, r5="BAD"."""
    prompts = [f"prompt {i}" for i in range(count)]
    for name, prompt in changes.items():
        prompts[int(name[1:])] = prompt
    pq.write_table(pa.table({"prompt": prompts, "tag": [f"t{i}" for i in range(count)]}), path)
    return path


def make_job(folder: Path, *overrides: str, rows: int = 24) -> JobSpec:
    """A job over `rows` prompts in `folder`, four rows a shard."""
    if not (folder / "rows.parquet").exists():
        write_rows(folder / "rows.parquet", rows)
    for model in ("target", "draft"):  # enough to be found; FakeEngine needs no weights
        (folder / model).mkdir(exist_ok=True)
        (folder / model / "config.json").write_text('{"max_position_embeddings": 200}')
        save_file({"weight": np.zeros((4, 4), np.float32)}, folder / model / "model.safetensors")
    values = {
        "model": {"target": str(folder / "target"), "draft": str(folder / "draft")},
        "data": {"path": str(folder / "rows.parquet")},
        "sampling": {"max_new_tokens": 10},
        "speculation": {"policy": "fixed"},
        "workers": {"slots": 3, "shard_tokens": 50},
        "output": {"path": str(folder / "out")},
    }
    return parse_job(values, overrides, source="test")


TINY = Path(specpipe.models.tiny.__file__).parent / "target"


def real_models(folder: Path, **changes: object) -> None:
    """Gives the models of `make_job` configuration, weights and tokenizer of a real one."""
    config = json.loads((TINY / "config.json").read_text()) | {"eos_token_id": None}
    for model in ("target", "draft"):
        (folder / model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 200, **changes}))
        for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(TINY / name, folder / model)


SOURCE = ModelSource(path="", name="fake", revision="0" * 16)


def fake_parts(config: WorkerConfig, **engine: Any) -> WorkerParts:
    job = config.job
    engine_config: EngineConfig = job.engine_config(200)
    builder = make_builder(job, ByteEncoder(), max_model_len=200, vocab_size=1000)
    return WorkerParts(engine=FakeEngine(engine_config, **engine), builder=builder, facts={"device": "fake"})


def worker_config(job: JobSpec, **changes: Any) -> WorkerConfig:
    """Returns a worker configuration in a new epoch of the job's output folder."""
    folder = RunFolder.at(job.output.path)
    prepared: dict[str, Any] = {
        "job": job,
        "files": tuple(list_files(job.data.path)),
        "kept": None,
        "target": SOURCE,
        "draft": None,
    }
    prepared |= {name: changes.pop(name) for name in prepared.keys() & changes.keys()}
    values: dict[str, Any] = {
        "prepared": PreparedJob(**prepared),
        "folder": folder,
        "run_id": "feedfeedfeedfeed",
        "epoch": folder.begin_epoch(),
        "probe": folder.write_probe(),
        "device": "cpu",
        "threads": 1,
        "build_parts": fake_parts,
    }
    return WorkerConfig(**(values | changes))


class InProcessWorker:
    """The real Worker on threads of this process."""

    def __init__(self, name: str, config: WorkerConfig, threads: ThreadPoolExecutor) -> None:
        self.name = name
        self.worker = Worker(name, config)
        self._threads = threads

    def placed(self) -> Future[None]:
        return self._threads.submit(lambda: None)

    def start(self, warm_up: ShardOrder | None) -> Future[WorkerInfo]:
        return self._threads.submit(self.worker.start, warm_up)

    def run_shard(self, order: ShardOrder) -> Future[ShardReport]:
        return self._threads.submit(self.worker.run_shard, order)

    def status(self, after: int, final: bool) -> Future[WorkerStatus]:
        return self._threads.submit(self.worker.status, after, final)

    def stop(self) -> None:
        self.worker.close()


@dataclass
class InProcessBackend:
    """Runs `workers` workers on threads. `build_parts(config)` builds the parts of each."""

    build_parts: Callable[[WorkerConfig], WorkerParts] = fake_parts
    workers: int = 1
    device: Literal["cpu", "cuda"] = "cpu"
    logs: str = ""
    waits_for: str = ""
    spawned: list[InProcessWorker] = field(default_factory=list)
    config: WorkerConfig | None = None

    @contextmanager
    def connect(self, job: JobSpec) -> Iterator[Placement]:
        with ThreadPoolExecutor(32) as self.threads:  # waits for every worker to end
            yield Placement(workers=self.workers, device=self.device, cpus=1.0, logs=self.logs)

    def pool(self, config: WorkerConfig, placement: Placement) -> InProcessBackend:
        import dataclasses

        self.config = dataclasses.replace(config, build_parts=self.build_parts)
        return self

    def watcher(self, config: WorkerConfig) -> Callable[[Progress], None]:
        return lambda progress: None

    def spawn(self, name: str) -> InProcessWorker:
        assert self.config is not None
        self.spawned.append(InProcessWorker(name, self.config, self.threads))
        return self.spawned[-1]


def outputs(folder: Path) -> pa.Table:
    """All published rows, in order."""
    parts = sorted((folder / "outputs").glob("part-*.parquet"))
    return pa.concat_tables([pq.read_table(part) for part in parts])


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Raises TimeoutError unless the condition comes true."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError("the condition did not come true")
        time.sleep(0.005)

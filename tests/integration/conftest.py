"""One Ray and one small pair of models for all integration tests."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

os.environ.setdefault("OMP_NUM_THREADS", "1")

ROWS = 24
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    import ray

    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")  # a Python process for each CPU that no test needs
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(TESTS), *([before] if before else [])]
    )  # workers find tests/support
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20
        )
        yield
        ray.shutdown()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `target` and `draft`, which agrees with it most of the time."""
    from support.engines import perturbed
    from support.small_models import make_small_model, small_tokenizer
    from transformers import AutoModelForCausalLM

    root = tmp_path_factory.mktemp("pair")
    make_small_model("llama", root / "target", seed=1)
    target, draft = (AutoModelForCausalLM.from_pretrained(root / "target") for _ in range(2))
    perturbed(draft, target, noise=0.02).save_pretrained(root / "draft")
    small_tokenizer().save_pretrained(root / "draft")
    return root


@pytest.fixture
def write_job(tmp_path: Path, pair: Path) -> Callable[..., Path]:
    """Writes job.yaml over ROWS prompts; keyword arguments replace whole sections or add to them."""

    def write(**sections: dict[str, Any]) -> Path:
        data = tmp_path / "rows.parquet"
        if not data.exists():
            pq.write_table(pa.table({"prompt": [f"What is {i} plus {i % 7}?" for i in range(ROWS)]}), data)
        job: dict[str, dict[str, Any]] = {
            "model": {"target": str(pair / "target"), "draft": str(pair / "draft")},
            "data": {"path": str(data)},
            "sampling": {"max_new_tokens": 24},
            "speculation": {"policy": "fixed"},
            # One thread each: beside the other test process, two that wait for each other take 8 times as long.
            "workers": {"slots": 4, "shard_tokens": 100, "cpus_per_worker": 1},
            "output": {"path": str(tmp_path / "out")},
        }
        for name, values in sections.items():
            job[name] = job[name] | values
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(job))
        return path

    return write

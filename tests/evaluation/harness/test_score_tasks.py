"""Tasks that score given texts: recorded, run and replayed with the results of lm-eval's own definitions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from support.fake_workers import InProcessBackend, outputs

from specpipe.core import StepReport
from specpipe.errors import OutputError
from specpipe.evaluation.harness.recording import record
from specpipe.evaluation.harness.replay import replay
from specpipe.job import parse_job
from specpipe.models.loader import load_model
from specpipe.models.source import resolve
from specpipe.models.tokenizer import load_tokenizer
from specpipe.pipeline.run.run import RunResult, execute
from specpipe.pipeline.store.verify import verify
from specpipe.pipeline.worker.build import build_parts
from specpipe.pipeline.worker.config import WorkerConfig, WorkerParts
from specpipe.pipeline.worker.engine_protocol import EngineProtocol

pytestmark = pytest.mark.usefixtures("among_the_tasks", "only_our_tasks")
TASKS = ["--tasks", "tiny_all", "--include_path", "jobs/tasks"]


class OneByOne(TemplateLM):
    """lm-eval's transformers backend without batches: HFLM._loglikelihood_tokens and loglikelihood_rolling."""

    def __init__(self, max_length: int, target: str = "builtin:tiny") -> None:
        super().__init__()
        source = resolve(target, "target")
        self.tokenizer = load_tokenizer(source)
        self._model = load_model(source, "cpu", torch.float32, "eager")
        self._length = max_length
        self.seen: dict[tuple[str, ...], tuple[float, bool]] = {}

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        bos = self.tokenizer.bos_token_id
        return int(self.tokenizer.eos_token_id if bos is None else bos)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        special = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        if add_special_tokens is None and string.startswith(self.tokenizer.decode(self.prefix_token_id)):
            special = {"add_special_tokens": False}
        return list(self.tokenizer.encode(string, **special))

    def _loglikelihood_tokens(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
        return [self._score(context, continuation) for _, context, continuation in requests]

    def _score(self, context: list[int], continuation: list[int]) -> tuple[float, bool]:
        ids = torch.tensor([(context + continuation)[-(self._length + 1) :][:-1]])
        with torch.inference_mode():
            logits = F.log_softmax(self._model(input_ids=ids).logits[0, -len(continuation) :], dim=-1)
        wanted = torch.tensor(continuation)
        own = logits.gather(1, wanted[:, None])
        return float(own.sum()), bool((logits.argmax(-1) == wanted).all())

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        answers: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        self.seen |= {tuple(r.args): answer for r, answer in zip(requests, answers, strict=True)}
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        answers = []
        for request in requests:
            windows = get_rolling_token_windows(
                self.tok_encode(*request.args), self.prefix_token_id, self._length, context_len=1
            )
            answers.append(sum(self._score(*make_disjoint_window(window))[0] for window in windows))
            self.seen[tuple(request.args)] = (answers[-1], False)
        return answers

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        return [""] * len(requests)


def scored_by_lm_eval(limit: int, max_length: int, tasks: Sequence[str] = ("tiny_choices", "tiny_solutions")) -> Any:
    """Returns results, and (log-probability, is_greedy) by request, of lm-eval over transformers."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    model = OneByOne(max_length)
    found = simple_evaluate(
        model=model, tasks=list(tasks), task_manager=TaskManager(include_path="jobs/tasks"), limit=limit,
        bootstrap_iters=0,
    )  # fmt: skip
    return found["results"], model.seen


def replayed(folder: Path) -> tuple[dict[str, Any], dict[tuple[str, ...], tuple[float, bool]]]:
    """Returns the results of a replay, and (log-probability, is_greedy) by request of its score tasks."""
    [file] = folder.glob("results_*.json")
    seen: dict[tuple[str, ...], tuple[float, bool]] = {}
    for samples in folder.glob("samples_*.jsonl"):
        for sample in map(json.loads, samples.read_text().splitlines()):
            for arguments, [answer] in zip(sample["arguments"].values(), sample["resps"], strict=False):
                if "choices" in samples.name:
                    seen[tuple(arguments.values())] = float(answer[0]), str(answer[1]) == "True"
                elif "solutions" in samples.name:
                    seen[tuple(arguments.values())] = float(answer), False
    return json.loads(file.read_text())["results"], seen


def metrics(results: dict[str, Any]) -> dict[str, float]:
    return {
        f"{task} {name}": value
        for task in ("tiny_choices", "tiny_solutions")
        for name, value in results[task].items()
        if isinstance(value, float) and "stderr" not in name
    }


def check_equal(folder: Path, limit: int, max_length: int) -> None:
    results, seen = replayed(folder)
    expected_results, expected = scored_by_lm_eval(limit, max_length)
    assert seen.keys() == expected.keys() and len(seen) == 5 * limit
    for request, (logprob, is_greedy) in expected.items():
        assert seen[request][0] == pytest.approx(logprob, abs=1e-4, rel=1e-6)
        assert seen[request][1] == is_greedy
    assert metrics(results) == pytest.approx(metrics(expected_results), rel=1e-5) and len(metrics(results)) == 5


@pytest.mark.slow
def test_all_kinds_of_tasks_run_in_one_job_with_lm_evals_results(
    tiny_run: Callable[..., RunResult], tmp_path: Path
) -> None:
    path = str(tmp_path / "requests.parquet")
    assert record([*TASKS, "--limit", "4"], path, target="builtin:tiny") == 4 + 16 + 4
    rows = pq.read_table(path).to_pylist()
    assert [row["task"] for row in rows] == ["tiny_word_problems"] * 4 + ["tiny_choices"] * 16 + ["tiny_solutions"] * 4
    tiny_run("run", "sampling.max_new_tokens=8", data={"path": path})

    scored = replay(str(tmp_path / "run"))

    check_equal(Path(scored.folder), 4, 1024)
    reasons = outputs(tmp_path / "run")["finish_reason"].to_pylist()
    assert "scored" not in reasons[:4] and set(reasons[4:]) == {"scored"}
    fewer = replay(str(tmp_path / "run"), ["--limit", "2"], out=str(tmp_path / "fewer"))
    assert len(replayed(Path(fewer.folder))[1]) == 10


@pytest.mark.slow
@pytest.mark.parametrize("max_length", [24, 40])
def test_long_contexts_and_texts_are_cut_as_by_lm_eval(
    tiny_run: Callable[..., RunResult], tmp_path: Path, max_length: int
) -> None:
    path = str(tmp_path / "requests.parquet")
    tasks = ["--tasks", "tiny_choices,tiny_solutions", "--include_path", "jobs/tasks", "--limit", "6"]
    record(tasks, path, target="builtin:tiny", max_length=max_length)
    rows = pq.read_table(path).to_pylist()
    assert max(len(row["prompt_token_ids"]) + len(row["continuations"][0]) for row in rows) == max_length + 1
    assert sum(row["task"] == "tiny_solutions" for row in rows) > 6, "some texts have several windows"
    tiny_run("run", data={"path": path})
    check_equal(Path(replay(str(tmp_path / "run")).folder), 6, max_length)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "workers"),
    [
        (["workers.slots=1"], 1),
        (["workers.slots=32", "workers.shard_tokens=100000"], 1),
        (["speculation.policy=off"], 2),
    ],
)
def test_slots_shards_and_workers_change_nothing(tmp_path: Path, overrides: list[str], workers: int) -> None:
    path = str(tmp_path / "requests.parquet")
    record([*TASKS, "--limit", "24"], path, target="builtin:tiny")
    job = {
        "model": {"target": "builtin:tiny", "draft": "builtin:tiny", "device": "cpu"}, "data": {"path": path},
        "speculation": {"policy": "fixed"}, "workers": {"slots": 8, "shard_tokens": 1500},
        "output": {"path": str(tmp_path / "run")},
    }  # fmt: skip
    backend = InProcessBackend(build_parts=build_parts, workers=workers)
    assert execute(parse_job(job, overrides, source="test"), backend=backend).exit_code == 0
    check_equal(Path(replay(str(tmp_path / "run")).folder), 24, 1024)


@pytest.mark.slow
class EngineThatDies:
    """An engine that fails at one of its steps."""

    def __init__(self, engine: EngineProtocol, at_step: int | None) -> None:
        self._engine, self._at_step, self._steps = engine, at_step, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self) -> StepReport | None:
        self._steps += 1
        if self._steps == self._at_step:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return self._engine.step()


@pytest.mark.slow
def test_a_worker_that_dies_in_the_middle_changes_no_score(tmp_path: Path) -> None:
    path = str(tmp_path / "requests.parquet")
    record([*TASKS, "--limit", "12"], path, target="builtin:tiny")
    engines: list[EngineThatDies] = []

    def parts_of_which_the_first_die(config: WorkerConfig) -> WorkerParts:
        parts = build_parts(config)
        engines.append(EngineThatDies(parts.engine, at_step=None if engines else 9))
        return replace(parts, engine=engines[-1])

    job = {
        "model": {"target": "builtin:tiny", "draft": "builtin:tiny", "device": "cpu"}, "data": {"path": path},
        "speculation": {"policy": "fixed"}, "workers": {"slots": 4, "shard_tokens": 1500},
        "output": {"path": str(tmp_path / "run")},
    }  # fmt: skip
    result = execute(parse_job(job, source="test"), backend=InProcessBackend(build_parts=parts_of_which_the_first_die))
    assert result.exit_code == 0 and len(engines) > 1
    check_equal(Path(replay(str(tmp_path / "run")).folder), 12, 1024)
    assert not verify(str(tmp_path / "run")).findings


def test_a_missing_window_is_an_error() -> None:
    from specpipe.evaluation.harness.score_rows import rolling_ids, windows_by_text

    ids = ["a:0:0/2", "a:0:1/2", "b:0:0/1", "c:0"]
    assert windows_by_text(ids) == {"a:0": ids[:2], "b:0": ids[2:3]}
    assert rolling_ids("a:0", reversed(ids[:2])) == ids[:2] and rolling_ids("d:0", ()) == []
    with pytest.raises(OutputError, match="no output for 1 of the 2 windows of request a:0"):
        rolling_ids("a:0", ids[:1])

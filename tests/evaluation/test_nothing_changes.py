"""lm-eval scores speculative and plain runs alike, on real tasks. Slow."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.fake_workers import InProcessBackend, outputs

from specpipe.evaluation.compare.compare_paths import compare_paths
from specpipe.evaluation.compare.comparison import Comparison
from specpipe.evaluation.harness.recording import record
from specpipe.evaluation.harness.replay import replay
from specpipe.job import parse_job
from specpipe.models.tiny import TARGET
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.worker.build import build_parts

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("among_the_tasks")]
ROOT = Path(__file__).parents[2]
DOCUMENTS = 40
SMOLLM2 = str(ROOT / "runs/smollm2-input/model")
Scored = Callable[..., Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evaluation")


def recording(folder: Path, name: str, *flags: str) -> Path:
    path = folder / f"{name}.parquet"
    if not path.exists():
        record(flags, str(path), target="builtin:tiny")
    return path


def greedy(folder: Path) -> Path:
    flags = ("--include_path", "jobs/tasks", "--apply_chat_template", "--limit", str(DOCUMENTS))
    return recording(folder, "greedy", "--tasks", "tiny_word_problems", *flags)


def run(folder: Path, name: str, data: Path, *overrides: str, workers: int = 1, **model: str) -> Path:
    """A scored run; once for each name."""
    if not (folder / name).exists():
        job: dict[str, Any] = {
            "name": name,
            "model": {"target": "builtin:tiny", "draft": "builtin:tiny", "device": "cpu", **model},
            "data": {"path": str(data)},
            "speculation": {"policy": "fixed"},
            "workers": {"slots": 8, "shard_tokens": 1500},
            "output": {"path": str(folder / name)},
        }
        backend = InProcessBackend(build_parts=build_parts, workers=workers)
        assert execute(parse_job(job, overrides, source="test"), backend=backend).exit_code == 0
        replay(str(folder / name))
    return folder / name


def against_plain(folder: Path, other: Path) -> Comparison:
    plain = run(folder, "plain", greedy(folder), "speculation.policy=off")
    return compare_paths(str(plain), str(other))


@pytest.mark.parametrize(
    ("name", "overrides", "workers"),
    [
        ("k1", ["speculation.num_speculative_tokens=1"], 1),
        ("k3", ["speculation.num_speculative_tokens=3"], 1),
        ("k7", ["speculation.num_speculative_tokens=7"], 1),
        ("ngram", ["speculation.proposer=ngram"], 1),
        ("two_workers", ["speculation.num_speculative_tokens=3"], 2),
    ],
)
def test_greedy_scores_and_samples_are_the_same(folder: Path, name: str, overrides: list[str], workers: int) -> None:
    comparison = against_plain(folder, run(folder, name, greedy(folder), *overrides, workers=workers))
    assert [metric.finding for metric in comparison.metrics] == ["identical", "identical"]
    assert comparison.metrics[0].mean_a == comparison.metrics[0].mean_b >= 0.95
    assert comparison.texts is not None and comparison.texts.same_tokens == DOCUMENTS
    assert comparison.b.measured["spec_decode_acceptance_length"] > 1.0


def test_the_draft_alone_scores_far_lower(folder: Path, tmp_path: Path) -> None:
    alone = tmp_path / "draft"
    shutil.copytree(TARGET.parent / "draft", alone)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TARGET / name, alone / name)
    comparison = against_plain(
        folder, run(folder, "draft", greedy(folder), "speculation.policy=off", target=str(alone))
    )
    assert comparison.metrics[0].mean_b < 0.2 and comparison.differs


def test_broken_verification_is_scored_and_found(folder: Path, accept_everything: Callable[[], None]) -> None:
    against_plain(folder, run(folder, "plain", greedy(folder), "speculation.policy=off"))
    accept_everything()
    comparison = against_plain(folder, run(folder, "broken", greedy(folder)))
    assert comparison.differs and comparison.verdict.count("DIFFERENT: B is lower") == 1


@pytest.mark.parametrize("method", ["standard", "block"])
def test_sampled_scores_lie_within_two_standard_errors(folder: Path, method: str) -> None:
    """Eight answers a document, so that every document's share of right ones is itself an estimate."""
    task = folder / "sampled"
    task.mkdir(exist_ok=True)
    text = (ROOT / "jobs/tasks/tiny_word_problems.yaml").read_text()
    text = text.replace("task: tiny_word_problems", "task: sampled\nrepeats: 8")
    (task / "sampled.yaml").write_text(text.replace("do_sample: false", "do_sample: true\n  temperature: 1.0"))
    shutil.copy(ROOT / "jobs/tasks/word_problems.py", task)
    flags = ("--include_path", str(task), "--apply_chat_template", "--limit", "25")
    data = recording(folder, "sampled_requests", "--tasks", "sampled", *flags)
    plain = run(folder, "sampled_plain", data, "speculation.policy=off", "seed=1")
    other = run(folder, f"sampled_{method}", data, f"speculation.method={method}", "seed=2")

    comparison = compare_paths(str(plain), str(other))

    assert comparison.texts is not None and comparison.texts.same_text < 200
    assert all(abs(metric.z) <= 2 for metric in comparison.metrics), comparison.metrics
    assert 0.3 < comparison.metrics[0].mean_a < 1.0  # neither all right nor all wrong: the scores can tell


def answered_by_transformers(
    target: str, tasks: list[str], limit: int, max_length: int | None = None, chat: bool = False
) -> dict[str, Any]:
    """Returns what lm-eval's own backend finds. Needs its `hf` extra (accelerate, peft), which specpipe does not."""
    pytest.importorskip("accelerate")
    pytest.importorskip("peft")
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    # torch's log_softmax in fp32 on a CPU is off by 1e-5 a token with a vocabulary of 49,152: 5e-4 in a text of 60
    loaded = {"pretrained": path_of(target), "dtype": "float32", "softmax_dtype": "float64", "max_length": max_length}
    found: dict[str, Any] = simple_evaluate(
        model="hf", model_args={key: value for key, value in loaded.items() if value is not None}, tasks=tasks,
        limit=limit, task_manager=TaskManager(include_path="jobs/tasks"), device="cpu", batch_size=7,
        bootstrap_iters=0, apply_chat_template=chat,
    )  # fmt: skip
    return found


def model_or_skip(target: str) -> str:
    if not target.startswith("builtin:") and not Path(target).exists():
        pytest.skip(f"{target} is made by jobs/prepare_smollm2.py")
    return target


@pytest.mark.parametrize(("target", "limit"), [("builtin:tiny", 200), (SMOLLM2, 8)])
def test_lm_evals_own_transformers_backend_answers_the_same(folder: Path, target: str, limit: int) -> None:
    task = "tiny_word_problems"
    name = f"{Path(model_or_skip(target)).name}_answers"
    theirs = answered_by_transformers(target, [task], limit, chat=True)
    flags = ["--tasks", task, "--include_path", "jobs/tasks", "--apply_chat_template", "--limit", str(limit)]
    record(flags, str(folder / f"{name}.parquet"), target=target)
    asked = pq.read_table(folder / f"{name}.parquet")["prompt"].to_pylist()
    ours = outputs(run(folder, name, folder / f"{name}.parquet", *own_draft(target), target=target))
    samples = [s for s in theirs["samples"][task] if s["filter"] == "strict-match"]
    assert [sample["arguments"][0][0] for sample in samples] == asked and len(asked) == limit
    assert [sample["resps"][0][0] for sample in samples] == ours["generated_text"].to_pylist(), json.dumps(asked[0])
    assert metrics_of(folder / name, task) == pytest.approx(metrics_of_task(theirs, task), rel=1e-5)


@pytest.mark.parametrize(("target", "limit"), [("builtin:tiny", DOCUMENTS), (SMOLLM2, 12)])
def test_lm_evals_own_transformers_backend_scores_the_same(folder: Path, target: str, limit: int) -> None:
    tasks, name = ["tiny_choices", "tiny_solutions"], f"{Path(model_or_skip(target)).name}_scores"
    results = answered_by_transformers(target, tasks, limit, 60)
    flags = ["--tasks", ",".join(tasks), "--include_path", "jobs/tasks", "--limit", str(limit)]
    record(flags, str(folder / f"{name}.parquet"), target=target, max_length=60)
    run(folder, name, folder / f"{name}.parquet", *own_draft(target), target=target)
    largest = 0.0
    for task in tasks:
        ours = samples_of(folder / name, task)
        theirs = {sample["doc_id"]: sample for sample in results["samples"][task]}
        assert theirs.keys() == ours.keys() and len(theirs) == limit
        for doc, sample in theirs.items():
            for expected, found in zip(flat(sample["resps"]), flat(ours[doc]["resps"]), strict=True):
                if str(expected) in ("True", "False"):
                    assert str(expected) == str(found)
                else:
                    assert float(found) == pytest.approx(float(expected), abs=1e-4, rel=1e-6)
                    largest = max(largest, abs(float(found) - float(expected)))
        assert metrics_of(folder / name, task) == pytest.approx(metrics_of_task(results, task), rel=1e-5)
    print(f"{name}: log-probabilities differ by at most {largest:.2g}")


def path_of(target: str) -> str:
    return str(TARGET) if target == "builtin:tiny" else target


def own_draft(target: str) -> list[str]:
    return [] if target == "builtin:tiny" else ["speculation.proposer=ngram", "model.draft=null"]


def metrics_of(run: Path, task: str) -> dict[str, float]:
    [file] = (run / "lm_eval").glob("results_*.json")
    return metrics_of_task(json.loads(file.read_text()), task)


def metrics_of_task(results: dict[str, Any], task: str) -> dict[str, float]:
    found = {k: v for k, v in results["results"][task].items() if isinstance(v, float) and "stderr" not in k}
    assert found
    return found


def samples_of(run: Path, task: str) -> dict[int, dict[str, Any]]:
    [file] = (run / "lm_eval").glob(f"samples_{task}_*.jsonl")
    return {row["doc_id"]: row for row in map(json.loads, file.read_text().splitlines())}


def flat(values: Any) -> list[Any]:
    return [x for value in values for x in flat(value)] if isinstance(values, list | tuple) else [values]

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


def test_lm_evals_own_transformers_backend_answers_the_same(folder: Path, tmp_path: Path) -> None:
    """Needs lm-eval's `hf` extra (accelerate, peft), which specpipe itself does not."""
    pytest.importorskip("accelerate")
    pytest.importorskip("peft")
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    results = simple_evaluate(
        model="hf",
        model_args={"pretrained": str(TARGET), "dtype": "float32"},
        tasks=["tiny_word_problems"],
        task_manager=TaskManager(include_path="jobs/tasks"),
        device="cpu",
        batch_size=32,
        limit=200,
        apply_chat_template=True,
        bootstrap_iters=0,
    )
    flags = ("--include_path", "jobs/tasks", "--apply_chat_template", "--limit", "200")
    data = recording(folder, "two_hundred", "--tasks", "tiny_word_problems", *flags)
    asked = pq.read_table(data)["prompt"].to_pylist()
    ours = outputs(run(folder, "two_hundred_k3", data))["generated_text"].to_pylist()
    theirs = [s for s in results["samples"]["tiny_word_problems"] if s["filter"] == "strict-match"]
    assert [sample["arguments"][0][0] for sample in theirs] == asked and len(asked) == 200
    assert [sample["resps"][0][0] for sample in theirs] == ours, json.dumps(asked[0])


def test_lm_evals_own_transformers_backend_scores_the_same(folder: Path) -> None:
    """Needs lm-eval's `hf` extra, as the test above."""
    pytest.importorskip("accelerate")
    pytest.importorskip("peft")
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    tasks = ["tiny_choices", "tiny_solutions"]
    results = simple_evaluate(
        model="hf",
        model_args={"pretrained": str(TARGET), "dtype": "float32", "max_length": 60},
        tasks=tasks,
        task_manager=TaskManager(include_path="jobs/tasks"),
        device="cpu",
        batch_size=7,
        limit=DOCUMENTS,
        bootstrap_iters=0,
    )
    flags = ["--tasks", ",".join(tasks), "--include_path", "jobs/tasks", "--limit", str(DOCUMENTS)]
    record(flags, str(folder / "scores.parquet"), target="builtin:tiny", max_length=60)
    run(folder, "scores", folder / "scores.parquet")
    ours = {task: samples_of(folder / "scores", task) for task in tasks}
    for task in tasks:
        theirs = {sample["doc_id"]: sample for sample in results["samples"][task]}
        assert theirs.keys() == ours[task].keys() and len(theirs) == DOCUMENTS
        for doc, sample in theirs.items():
            pairs = zip(flat(sample["resps"]), flat(ours[task][doc]["resps"]), strict=True)
            for expected, found in pairs:
                if str(expected) in ("True", "False"):
                    assert str(expected) == str(found)
                else:
                    assert float(found) == pytest.approx(float(expected), abs=1e-4, rel=1e-6)
    [file] = (folder / "scores/lm_eval").glob("results_*.json")
    scored = json.loads(file.read_text())["results"]
    for task in tasks:
        for name, value in results["results"][task].items():
            if isinstance(value, float) and "stderr" not in name:
                assert scored[task][name] == pytest.approx(value, rel=1e-5), (task, name)


def samples_of(run: Path, task: str) -> dict[int, dict[str, Any]]:
    [file] = (run / "lm_eval").glob(f"samples_{task}_*.jsonl")
    return {row["doc_id"]: row for row in map(json.loads, file.read_text().splitlines())}


def flat(values: Any) -> list[Any]:
    return [x for value in values for x in flat(value)] if isinstance(values, list | tuple) else [values]

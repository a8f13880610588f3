"""Prompt tokens and shared ones that a dry run expects, against those of runs."""

import json
from pathlib import Path

import pytest
from support.fake_workers import InProcessBackend, make_job

from specpipe.core import Request, SamplingParams
from specpipe.job import JobSpec
from specpipe.pipeline.run import prompt_tokens
from specpipe.pipeline.run.dry_run import plan_run
from specpipe.pipeline.run.prompt_tokens import PrefixCache, WorkerPages
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.worker.build import build_parts

PAIR = ("model.target=builtin:tiny", "model.draft=builtin:tiny", "speculation.policy=off", "model.max_model_len=512")


def few_shot_job(folder: Path, *overrides: str, groups: int = 3, rows: int = 7) -> JobSpec:
    """Groups of questions behind an example of their own, one question twice, a row that is too long."""
    shots = [
        f"Question {i}: what is {i} plus 4? Answer: it is {i} plus 4, which is {i + 4}. " * 4 for i in range(groups)
    ]
    prompts = [shot + f"What is {row} plus {row // 2}?" for shot in shots for row in [*range(rows), 0]]
    prompts.insert(5, "word " * 600)
    path = folder / "shots.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    settings = ("sampling.max_new_tokens=2", "workers.shard_tokens=800", "workers.slots=4", "workers.count=1")
    return make_job(folder, f"data.path={path}", *PAIR, *settings, *overrides)


def totals(job: JobSpec, workers: int) -> tuple[int, int]:
    result = execute(job, backend=InProcessBackend(build_parts=build_parts, workers=workers))
    return result.summary["total_input_tokens"], result.summary["total_cached_tokens"]


@pytest.mark.parametrize("samples", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_expected_tokens_are_those_of_a_run(tmp_path: Path, samples: int) -> None:
    job = few_shot_job(tmp_path, f"sampling.n={samples}")
    plan = plan_run(job)
    assert plan.shards > 2
    expected = plan.prompts
    assert expected is not None and not expected.estimated
    total, shared = totals(job, 1)
    assert total == expected.total
    assert 0 <= shared - expected.shared < 16 * 3  # questions that are there twice, where a shard ends between them
    assert shared > total / 2


@pytest.mark.slow
def test_several_workers_compute_each_prefix_once(tmp_path: Path) -> None:
    job = few_shot_job(tmp_path, groups=1, rows=60)
    alone = plan_run(job).prompts
    several = plan_run(few_shot_job(tmp_path, "workers.count=3", "workers.cpus_per_worker=0.1", groups=1, rows=60))
    assert alone is not None and several.prompts is not None and several.prompts.estimated
    prefix = alone.shared // 60 // 16 * 16
    assert abs(alone.shared - several.prompts.shared - 2 * prefix) < 3 * 16
    total, shared = totals(job, 3)
    assert total == several.prompts.total
    assert abs(shared - several.prompts.shared) < 3 * 16


def test_large_datasets_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = few_shot_job(tmp_path, groups=20, rows=30)
    exact = plan_run(job).prompts
    monkeypatch.setattr(prompt_tokens, "EXACT_BYTES", 64 << 10)
    monkeypatch.setattr(prompt_tokens, "STRETCHES", 8)
    sampled = plan_run(job).prompts
    assert exact is not None and sampled is not None
    assert (exact.estimated, sampled.estimated) == (False, True)
    assert sampled.total == pytest.approx(exact.total, rel=0.05)
    assert sampled.shared == pytest.approx(exact.shared, rel=0.1)


def request(tokens: list[int], *continuations: tuple[int, ...]) -> Request:
    return Request(
        request_id="", shard=0, row=0, prompt="", prompt_token_ids=tuple(tokens), sampling=SamplingParams(), seed=0,
        continuations=continuations,
    )  # fmt: skip


def test_pages_and_whole_prompts_are_shared_but_never_the_last_token() -> None:
    cache = PrefixCache(WorkerPages(page_size=4, count=100, shared=True))
    rows = [[1] * 10, [1] * 10, [1] * 9 + [2], [1] * 6, [1] * 5, [1], [2] * 10]
    assert [cache.cached_tokens(request(row), 100) for row in rows] == [0, 9, 9, 4, 0, 0, 0]
    cache.end_shard()
    assert cache.cached_tokens(request([1] * 10), 100) == 8


def test_score_rows_share_what_their_first_window_finds() -> None:
    cache = PrefixCache(WorkerPages(page_size=4, count=100, shared=True))
    assert cache.cached_tokens(request([1] * 10, (1,), (2,)), 100) == 0
    assert cache.cached_tokens(request([1] * 10, (1,), (2,)), 100) == 9


def test_pages_that_were_used_least_recently_are_computed_again() -> None:
    cache = PrefixCache(WorkerPages(page_size=4, count=3, shared=True))
    first, second = [1] * 10, [2] * 10
    found = [cache.cached_tokens(request(row), 100) for row in (first, second, first, first)]
    assert found == [0, 0, 4, 9]

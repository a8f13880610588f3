"""A multiple-choice evaluation as score rows, against prefilling each of its distinct tokens once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from specpipe.benchmark.bench_config import ScoreWork
from specpipe.benchmark.synthetic_engine import run_requests
from specpipe.core import Request, SamplingParams
from specpipe.engine.engine import Engine


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreWorkResult:
    """Measurements of one evaluation."""

    requests: int
    """Choices that got a log-probability."""
    seconds: float
    """From submission to the last completion."""
    requests_per_s: float
    prompt_tokens: int
    """Tokens of prompt and choice, summed over all choices, as a server without shared prefixes computes them."""
    distinct_tokens: int
    """Tokens that have to be computed: common ones once, those of a question once, those of each choice."""
    prefill_tokens: int
    """Tokens that the target computed."""
    plain_seconds: float
    """Time of prefilling as many tokens in rows that share nothing and score one token each."""

    @property
    def ratio(self) -> float:
        """Time of the evaluation in units of `plain_seconds`."""
        return self.seconds / self.plain_seconds


def measure_score_work(engine: Engine, work: ScoreWork) -> ScoreWorkResult:
    """Measures the evaluation after a warm-up of a tenth of it; no token was ever run before."""
    seeds = count()
    warm_up = replace(work, questions=max(1, work.questions // 10))
    for rows in (score_requests(engine, warm_up, next(seeds)), plain_requests(engine, warm_up, next(seeds))):
        run_requests(engine, rows, 0)
    plain_seconds, _ = run_requests(engine, plain_requests(engine, work, next(seeds)), 0)
    seconds, steps = run_requests(engine, score_requests(engine, work, next(seeds)), 0)
    requests = work.questions * work.choices
    return ScoreWorkResult(
        requests=requests,
        seconds=seconds,
        requests_per_s=requests / seconds,
        prompt_tokens=requests * work.row_tokens,
        distinct_tokens=work.distinct_tokens,
        prefill_tokens=sum(part.prefill_tokens for step in steps for part in step.shards.values()),
        plain_seconds=plain_seconds,
    )


def score_requests(engine: Engine, work: ScoreWork, seed: int) -> list[Request]:
    """Returns one row a question, of random tokens that no other seed has."""
    random = np.random.default_rng([seed, work.questions])
    shared = _tokens(engine, random, work.shared_tokens)
    return [
        _request(
            row,
            (*shared, *_tokens(engine, random, work.question_tokens)),
            tuple(_tokens(engine, random, work.choice_tokens) for _ in range(work.choices)),
        )
        for row in range(work.questions)
    ]


def plain_requests(engine: Engine, work: ScoreWork, seed: int) -> list[Request]:
    """Returns rows that share nothing, as long as those of the evaluation, with as many tokens as it has distinct."""
    random = np.random.default_rng([seed, work.questions])
    rows = max(1, round(work.distinct_tokens / work.row_tokens))
    return [
        _request(row, _tokens(engine, random, work.row_tokens - 1), (_tokens(engine, random, 1),))
        for row in range(rows)
    ]


def _tokens(engine: Engine, random: np.random.Generator, size: int) -> tuple[int, ...]:
    return tuple(random.integers(0, engine.target.vocab_size, size).tolist())


def _request(row: int, prompt: tuple[int, ...], continuations: tuple[tuple[int, ...], ...]) -> Request:
    return Request(
        request_id=str(row),
        shard=0,
        row=row,
        prompt="",
        prompt_token_ids=prompt,
        sampling=SamplingParams(),
        seed=row,
        continuations=continuations,
    )

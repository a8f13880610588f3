"""jobs/sharegpt.yaml through the whole pipeline: under any tuning the tokens are those of `transformers` and the target
alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from support.fake_workers import InProcessBackend, outputs

from specpipe.job import load_job
from specpipe.models.tiny import TARGET
from specpipe.pipeline.cluster.backend import Backend, RayBackend
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.worker.build import build_parts

ROOT = Path(__file__).parents[2]
FEW, SHORT, LONG = 4, 48, 300
"""Rows of the default tests, and new tokens of a row there and in the slow tests."""
SPECULATION = {
    "plain": ["speculation.policy=off"],
    "no-proposer": ["speculation.proposer=none"],
    **{f"draft-K{k}": [f"speculation.num_speculative_tokens={k}"] for k in (1, 3, 7)},
    **{f"ngram-K{k}": ["speculation.proposer=ngram", f"speculation.num_speculative_tokens={k}"] for k in (1, 3, 7)},
}

Tokens = list[list[int]]
Reference = Callable[[int, int], Tokens]


@pytest.fixture(scope="module")
def reference() -> Reference:
    """Greedy tokens [rows][max_new_tokens] of the first rows, each prompt alone in fp32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(TARGET)
    chats = pq.read_table(ROOT / "jobs/data/sharegpt_sample.parquet")["conversations"].to_pylist()
    done: dict[int, Tokens] = defaultdict(list)
    """By new tokens a row."""

    def generate(rows: int, max_new_tokens: int) -> Tokens:
        known = done[max_new_tokens]
        for chat in chats[len(known) : rows]:
            turn = [{"role": "user", "content": chat[0]["value"]}]
            prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt")["input_ids"]
            out = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                max_new_tokens=max_new_tokens,
                eos_token_id=None,  # as ignore_eos
                pad_token_id=0,
            )
            known.append(out[0, prompt.shape[1] :].tolist())
        return known[:rows]

    return generate


def run_sample(out: Path, *overrides: str, backend: Backend | None = None) -> Tokens:
    path = ROOT / "jobs/data/sharegpt_sample.parquet"
    where = [f"data.path={path}", "data.warmup_rows=0", f"output.path={out}"]
    job = load_job(ROOT / "jobs/sharegpt.yaml", [*where, *overrides])
    result = execute(job, backend=backend or InProcessBackend(build_parts=build_parts))
    assert (result.state, result.exit_code) == ("complete", 0)
    if job.speculation.policy == "fixed" and job.speculation.proposer != "none":
        assert result.summary["spec_decode_accepted_tokens"] > 0
    else:
        assert result.summary["spec_decode_num_drafts"] == 0
    tokens: Tokens = outputs(out)["generated_token_ids"].to_pylist()
    return tokens


@pytest.mark.parametrize(
    ("speculation", "workers", "slots", "shard_tokens"),
    [pytest.param("no-proposer", 1, 16, 32768, marks=pytest.mark.slow), ("draft-K3", 2, 1, 1)],
)
def test_greedy_rows_equal_the_target_alone(
    speculation: str, workers: int, slots: int, shard_tokens: int, reference: Reference, tmp_path: Path
) -> None:
    tuning = [f"data.limit={FEW}", f"workers.slots={slots}", f"workers.shard_tokens={shard_tokens}"]
    changes = [*SPECULATION[speculation], *tuning, f"sampling.max_new_tokens={SHORT}"]
    here = InProcessBackend(build_parts=build_parts, workers=workers)
    assert run_sample(tmp_path / "out", *changes, backend=here) == reference(FEW, SHORT)


@pytest.mark.slow
def test_invariant_draws_are_the_same_with_any_proposer(tmp_path: Path) -> None:
    sampling = ["sampling.temperature=0.8", "sampling.top_p=0.95", "sampling.max_new_tokens=30"]
    drawn = [
        run_sample(
            tmp_path / speculation,
            "speculation.method=invariant",
            f"data.limit={FEW}",
            *sampling,
            *SPECULATION[speculation],
            f"workers.slots={slots}",
            f"workers.shard_tokens={shard_tokens}",
            backend=InProcessBackend(build_parts=build_parts, workers=workers),
        )
        for speculation, workers, slots, shard_tokens in [
            ("plain", 1, 16, 32768),
            ("draft-K7", 1, 3, 200),
            ("ngram-K3", 1, 1, 1),
        ]
    ]
    assert drawn[1:] == drawn[:1] * 2


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    ("speculation", "workers", "slots", "shard_tokens"),
    [
        ("plain", 1, 16, 32768),
        ("no-proposer", 2, 7, 1000),
        ("draft-K1", 2, 16, 3000),
        ("draft-K3", 1, 16, 32768),
        ("draft-K3", 2, 5, 500),
        ("draft-K7", 1, 64, 3000),
        ("draft-K7", 1, 3, 700),
        ("ngram-K1", 1, 16, 3000),
        ("ngram-K1", 2, 3, 1),
        ("ngram-K3", 2, 16, 500),
        ("ngram-K7", 1, 7, 32768),
    ],
)
def test_every_greedy_row_on_ray_equals_the_target_alone(
    speculation: str, workers: int, slots: int, shard_tokens: int, reference: Reference, tmp_path: Path
) -> None:
    tuning = [f"workers.count={workers}", f"workers.slots={slots}", f"workers.shard_tokens={shard_tokens}"]
    tokens = run_sample(tmp_path / "out", *SPECULATION[speculation], *tuning, backend=RayBackend())
    assert tokens == reference(64, LONG)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_invariant_row_is_the_same_with_any_proposer(tmp_path: Path) -> None:
    drawn: list[Tokens] = []
    for index, speculation in enumerate(SPECULATION):
        tuning = [f"workers.slots={3 + 4 * index}", f"workers.shard_tokens={500 + 4000 * index}"]
        sampled = ["speculation.method=invariant", "sampling.temperature=1", "sampling.max_new_tokens=100"]
        drawn.append(run_sample(tmp_path / speculation, *sampled, *tuning, *SPECULATION[speculation]))
    assert drawn[1:] == drawn[:1] * (len(SPECULATION) - 1)

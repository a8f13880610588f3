"""Score rows in a job: beside rows that generate, over shards and workers, retried, verified, and summed."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from support.byte_encoder import ByteEncoder
from support.fake_engine import score_of
from support.fake_workers import InProcessBackend, make_job, outputs

from specpipe.core import Completion, Request, SamplingParams
from specpipe.data import row_seed
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.store.verify import verify

ROWS = 18


def write_mixed_rows(path: Path) -> None:
    """Every third row generates; row 4 of the others fails."""
    prompts = [f"question {i}" for i in range(ROWS)]
    continuations = [None if i % 3 == 0 else ["yes", "no", f"maybe {i}"][: 1 + i % 3] for i in range(ROWS)]
    prompts[4] = "BAD"
    table = pa.table({"prompt": prompts, "continuations": pa.array(continuations, pa.list_(pa.string()))})
    pq.write_table(table, path)


def expected_scores(row: int, count: int) -> list[dict[str, object]]:
    encoded = ByteEncoder().encode_continuations(f"question {row}", ["yes", "no", f"maybe {row}"][:count])
    request = Request(
        request_id="", shard=0, row=0, prompt="", prompt_token_ids=encoded.token_ids, sampling=SamplingParams(),
        seed=row_seed(0, row), continuations=encoded.continuations,
    )  # fmt: skip
    scores = [score_of(request, i) for i in range(count)]
    return [{"logprob": s.logprob, "num_tokens": s.num_tokens, "is_greedy": s.is_greedy} for s in scores]


def test_mixed_rows_are_scored_or_generated_in_order(tmp_path: Path) -> None:
    write_mixed_rows(tmp_path / "rows.parquet")
    job = make_job(tmp_path, "sampling.logprobs=0")
    result = execute(job, backend=InProcessBackend(workers=2))

    rows = outputs(tmp_path / "out").to_pylist()
    assert result.exit_code == 3 and result.summary["failed"] == 1
    assert [row["finish_reason"] for row in rows] == [
        "length" if i % 3 == 0 else "error" if i == 4 else "scored" for i in range(ROWS)
    ]
    for i, row in enumerate(rows):
        if row["finish_reason"] == "scored":
            assert row["scores"] == expected_scores(i, 1 + i % 3) and row["generated_text"] == ""
            assert [len(tokens) for tokens in row["score_logprobs"]] == [s["num_tokens"] for s in row["scores"]]
        else:
            assert row["scores"] is None and row["score_logprobs"] is None
    scored = sum(score["num_tokens"] for row in rows for score in row["scores"] or ())
    assert result.summary["total_scored_tokens"] == scored > 0
    assert result.summary["scored_throughput"] > 0 and result.summary["input_throughput"] > 0
    found = verify(str(tmp_path / "out"))
    assert not found.findings, found.findings


def test_verify_finds_a_missing_score(tmp_path: Path, monkeypatch) -> None:
    write_mixed_rows(tmp_path / "rows.parquet")

    def without_the_last(**fields: Any) -> Completion:
        return Completion(**fields | {"scores": fields.get("scores", ())[:1]})

    monkeypatch.setattr("support.fake_engine.Completion", without_the_last)
    execute(make_job(tmp_path), backend=InProcessBackend())
    texts = [finding.text for finding in verify(str(tmp_path / "out")).findings]
    assert any("1 scores; expected 3, one per continuation of the input" in text for text in texts), texts

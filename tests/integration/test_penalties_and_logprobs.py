"""Penalties and log-probabilities from job file and rows to output columns, an export and a resumed run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from support.fake_workers import InProcessBackend, outputs

from specpipe.cli.main import main
from specpipe.errors import OutputError
from specpipe.job import load_job
from specpipe.pipeline.run.run import execute
from specpipe.pipeline.worker.build import build_parts

ROWS = (
    {},
    {"logprobs": True, "top_logprobs": 3},
    {"logprobs": False, "repetition_penalty": 1},
    {"repetition_penalty": 1.5, "temperature": 0.9, "top_k": 4, "logprobs": True, "top_logprobs": 20},
    {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1},
    {"presence_penalty": 3},
)


def go(path: Path, *overrides: str) -> list[dict[str, Any]]:
    job = load_job(path, [*overrides, "output.max_failed_rows=1"])
    result = execute(job, backend=InProcessBackend(build_parts=build_parts, workers=2))
    assert (result.state, result.exit_code) == ("complete", 0)
    rows: list[dict[str, Any]] = outputs(Path(job.output.path)).to_pylist()
    return rows


def expected(folder: Path, row: dict[str, Any], own: dict[str, Any]) -> torch.Tensor:
    """Returns log-probabilities [tokens, V] at the generated positions, computed from their definitions."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    prompt, output = tokenizer(row["prompt"])["input_ids"], row["generated_token_ids"]
    assert len(prompt) == row["num_input_tokens"]
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([prompt + output])).logits[0].double()
    logits = logits[len(prompt) - 1 : -1]
    repetition = own.get("repetition_penalty", 1.2)
    for i, x in enumerate(logits):
        for token in {*prompt, *output[:i]}:
            x[token] = x[token] / repetition if x[token] > 0 else x[token] * repetition
            times = output[:i].count(token)
            x[token] -= own.get("frequency_penalty", 0) * times + own.get("presence_penalty", 0) * (times > 0)
    logits /= own.get("temperature") or 1
    if "top_k" in own:
        logits = logits.masked_fill(logits < logits.topk(own["top_k"]).values[:, -1:], -torch.inf)
    return logits.log_softmax(-1)


@pytest.mark.parametrize("speculation", ["policy=off", "proposer=ngram", "num_speculative_tokens=3"])
def test_penalties_and_logprobs_of_job_and_rows_reach_the_outputs(
    write_job: Callable[..., Path], pair: Path, tmp_path: Path, speculation: str
) -> None:
    data = tmp_path / "rows.jsonl"
    bodies = [{"prompt": f"What is {i} plus 3? What is", **own} for i, own in enumerate(ROWS)]
    data.write_text("".join(json.dumps({"custom_id": str(i), "body": b}) + "\n" for i, b in enumerate(bodies)))
    path = write_job(data={"path": str(data)}, sampling={"repetition_penalty": 1.2, "logprobs": 0})

    rows = go(path, f"speculation.{speculation}")

    for row, own in zip(rows[:-1], ROWS, strict=False):
        log_p = expected(pair / "target", row, own)
        ids = torch.tensor(row["generated_token_ids"])
        if not own.get("temperature"):
            assert ids.tolist() == log_p.argmax(-1).tolist()
        if own.get("logprobs") is False:
            assert [row[name] for name in ("generated_logprobs", "top_token_ids", "top_token_logprobs")] == [None] * 3
            continue
        assert row["generated_logprobs"] == pytest.approx(log_p.gather(1, ids[:, None])[:, 0].tolist(), abs=1e-4)
        wanted = min(own.get("top_logprobs", 0), own.get("top_k", 320))
        top = log_p.topk(wanted).values.tolist()
        for token_ids, values, row_p, best in zip(
            row["top_token_ids"], row["top_token_logprobs"], log_p, top, strict=True
        ):
            assert values == pytest.approx(best, abs=1e-4) == row_p[token_ids].tolist()
    assert "presence_penalty is 3.0; expected between -2 and 2" in rows[-1]["error"]
    assert rows[-1]["generated_logprobs"] is None

    out = str(tmp_path / "out")
    assert CliRunner().invoke(main, ["verify", out]).exit_code == 0
    with pytest.raises(OutputError, match=r"sampling\.logprobs"):
        go(path, f"speculation.{speculation}", "sampling.logprobs=1")
    assert CliRunner().invoke(main, ["convert", out, "--to", "openai-batch", "--out", f"{out}.jsonl"]).exit_code == 0
    choices = [json.loads(line)["response"] for line in Path(f"{out}.jsonl").read_text().splitlines()][:-1]
    logprobs = [choice["body"]["choices"][0]["logprobs"] for choice in choices]
    assert logprobs[2] is None and logprobs[1]["token_logprobs"] == rows[1]["generated_logprobs"]
    assert [len(top) for top in logprobs[1]["top_logprobs"]] == [3] * len(rows[1]["generated_token_ids"])

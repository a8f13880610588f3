"""Replayer: answers in order, one row per occurrence, and only from complete runs on the same recording."""

import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs

from specpipe.errors import DataError, JobError, OutputError
from specpipe.evaluation.harness.lm_eval_models import Replayer
from specpipe.evaluation.harness.recorded_requests import SCHEMA, PromptCutter, request_rows
from specpipe.evaluation.harness.replay import replay
from specpipe.models.source import resolve
from specpipe.models.tokenizer import load_tokenizer
from specpipe.pipeline.run.run import RunResult

TinyRun = Callable[..., RunResult]
SAMPLED = {"do_sample": True, "temperature": 2.0, "max_gen_toks": 6}
QUESTIONS = ("What is 2 plus 3?", "Name two colours.", "What is 2 plus 3?", "Hello.")
PROMPTS = [f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in QUESTIONS]


@pytest.fixture
def requests(tmp_path: Path) -> list[Any]:
    """Requests, recorded in tmp_path/requests.parquet."""
    found = [SimpleNamespace(args=(prompt, SAMPLED), task_name="t", doc_id=i) for i, prompt in enumerate(PROMPTS)]
    cutter = PromptCutter(tokenizer=load_tokenizer(resolve("builtin:tiny", "target")), max_length=1024)
    rows = list(request_rows(found, cutter, normalize_gen_kwargs, handle_stop_sequences))
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), tmp_path / "requests.parquet")
    return found


@pytest.fixture
def run(tiny_run: TinyRun, requests: list[Any], tmp_path: Path) -> Callable[..., Replayer]:
    """A replayer of a run on the recording (or on `path`)."""

    def make(*overrides: str, path: str = "requests.parquet", **sections: Any) -> Replayer:
        tiny_run("run", *overrides, data={"path": str(tmp_path / path)}, **sections)
        return Replayer(run=str(tmp_path / "run"), target="builtin:tiny")

    return make


def test_answers_come_in_the_order_of_requests(
    run: Callable[..., Replayer], requests: list[Any], tmp_path: Path
) -> None:
    answers = run().generate_until(requests)
    parts = [pq.read_table(part) for part in sorted((tmp_path / "run/outputs").glob("part-*"))]
    assert answers == pa.concat_tables(parts)["generated_text"].to_pylist()
    assert answers[0] != answers[2]  # one request twice: each with draws of its own
    replayer = Replayer(run=str(tmp_path / "run"), target="builtin:tiny")
    assert replayer.generate_until(requests[:2]) == answers[:2]  # a smaller --limit
    assert replayer.generate_until(requests[1:2]) == answers[1:2]


def test_a_missing_row_is_an_error_with_the_count(run: Callable[..., Replayer], requests: list[Any]) -> None:
    with pytest.raises(OutputError, match="no output for 1 of 4 requests"):
        run("data.limit=3").generate_until(requests)


def test_a_failed_row_is_an_error_with_its_reason(run: Callable[..., Replayer], requests: list[Any]) -> None:
    replayer = run("model.max_model_len=12", output={"max_failed_rows": 4})
    with pytest.raises(OutputError, match=r"of the requests failed \(the first, .*expected at most 11"):
        replayer.generate_until(requests)


def test_another_prompt_is_an_error(run: Callable[..., Replayer], requests: list[Any], tmp_path: Path) -> None:
    table = pq.read_table(tmp_path / "requests.parquet")
    table = table.set_column(1, "prompt", pa.array(["?"] * 4, pa.string()))
    pq.write_table(table, tmp_path / "other.parquet")
    with pytest.raises(OutputError, match="has another prompt in the run"):
        run(path="other.parquet").generate_until(requests)


def test_a_synthetic_run_is_neither_replayed_nor_scored(synthetic_run: str, requests: list[Any]) -> None:
    with pytest.raises(OutputError, match="synthetic"):
        Replayer(run=synthetic_run, target="builtin:tiny").generate_until(requests)
    with pytest.raises(OutputError, match="synthetic"):
        replay(synthetic_run)


def test_a_run_on_other_data_cannot_be_scored(tiny_run: TinyRun, tmp_path: Path) -> None:
    tiny_run("chat", "sampling.max_new_tokens=2", "data.limit=1")
    with pytest.raises(DataError, match="is not a recording of an evaluation"):
        replay(str(tmp_path / "chat"))


def test_a_template_that_rejects_system_turns_gets_none() -> None:
    replayer = Replayer(run="none", target="builtin:tiny")
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert replayer.apply_chat_template(chat).endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert "/" not in replayer.tokenizer_name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert replayer.chat_template(True) == replayer.tokenizer.chat_template
    replayer.tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "[{{ m.content }}]{% endfor %}"
    )
    assert replayer.apply_chat_template(chat) == "[Hi]"
    replayer.tokenizer.chat_template = None
    with pytest.raises(JobError, match="has no chat template"):
        replayer.apply_chat_template(chat)

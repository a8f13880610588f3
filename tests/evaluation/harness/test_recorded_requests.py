"""lm-eval's requests as rows, encoded as its transformers backend does, and refusal of unsupported ones."""

from types import SimpleNamespace
from typing import Any

import pytest
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs

from specpipe.errors import JobError
from specpipe.evaluation.harness.recorded_requests import PromptCutter, RequestIds, request_key, request_rows
from specpipe.models.source import resolve
from specpipe.models.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(resolve("builtin:tiny", "target"))


def rows(tokenizer: Any, *asked: tuple[str, dict[str, Any]], max_length: int = 64) -> list[dict[str, Any]]:
    requests = [SimpleNamespace(args=args, task_name="task", doc_id=i) for i, args in enumerate(asked)]
    cutter = PromptCutter(tokenizer=tokenizer, max_length=max_length)
    return list(request_rows(requests, cutter, normalize_gen_kwargs, handle_stop_sequences))


def test_a_greedy_request_has_no_sampling_values(tokenizer: Any) -> None:
    asked = {"until": ["\n\n"], "max_gen_toks": 9, "do_sample": False, "temperature": 0.7}
    [row] = rows(tokenizer, ("What is 2 plus 2?", asked))
    assert row["prompt_token_ids"] == tokenizer("What is 2 plus 2?")["input_ids"]
    assert (row["temperature"], row["max_tokens"], row["top_p"]) == (0.0, 9, None)
    assert row["stop"] == ["\n\n", "<|im_end|>"]


def test_a_sampled_request_keeps_its_parameters(tokenizer: Any) -> None:
    asked = {"until": "Q:", "max_tokens": 5, "do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 4}
    asked["repetition_penalty"] = 1.2
    [row] = rows(tokenizer, ("Hi", asked))
    assert [row[k] for k in ("temperature", "top_p", "top_k", "min_p", "max_tokens")] == [0.7, 0.9, 4, None, 5]
    assert row["stop"] == ["Q:", "<|im_end|>"] and row["repetition_penalty"] == 1.2


def test_missing_arguments_have_the_defaults_of_lm_eval(tokenizer: Any) -> None:
    [row] = rows(tokenizer, ("Hi", {}), max_length=1024)
    assert (row["max_tokens"], row["temperature"], row["stop"]) == (256, 0.0, ["<|im_end|>"])


def test_a_long_prompt_keeps_its_end(tokenizer: Any) -> None:
    text = "one two three four five six seven eight nine ten " * 9
    whole = tokenizer(text)["input_ids"]
    [row] = rows(tokenizer, (text, {"max_gen_toks": 20}))
    assert row["prompt_token_ids"] == whole[-44:] and len(whole) > 44
    assert row["prompt"] == text
    with pytest.raises(JobError, match="has max_gen_toks 64, but the model's length is 64"):
        rows(tokenizer, (text, {"max_gen_toks": 64}))


def test_a_prompt_that_begins_with_bos_gets_no_second_one(tokenizer: Any) -> None:
    class WithBos:
        bos_token = "<s>"

        def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
            body = [2] * len(text.removeprefix("<s>"))
            bos = text.startswith("<s>") + options.get("add_special_tokens", True)
            return {"input_ids": [1] * bos + body}

    plain = PromptCutter(tokenizer=WithBos(), max_length=50)
    assert plain.token_ids("<s>ab", 5) == plain.token_ids("ab", 5) == [1, 2, 2]
    assert PromptCutter(tokenizer=WithBos(), max_length=50, add_bos_token=False).token_ids("ab", 5) == [2, 2]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"no_repeat_ngram_size": 3}, "sets no_repeat_ngram_size=3, which specpipe does not support"),
        ({"num_beams": 4}, "num_beams=4"),
        ({"max_length": 99}, "max_length=99"),
        ({"do_sample": True}, "do_sample without a temperature"),
    ],
)
def test_requests_with_unsupported_arguments_are_refused(tokenizer: Any, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        rows(tokenizer, ("Hi", asked))
    assert rows(tokenizer, ("Hi", {"num_beams": 1, "repetition_penalty": 1.0, "max_gen_toks": 9}))


def test_repeated_requests_have_different_ids() -> None:
    ids = RequestIds()
    asked = ("Hi", {"do_sample": True, "temperature": 1.0})
    found = [
        ids.next("generate_until", *asked),
        ids.next("generate_until", *asked),
        ids.next("generate_until", "Ho", asked[1]),
        ids.next("generate_until", *asked),
    ]
    key = request_key("generate_until", *asked)
    assert found == [f"{key}:0", f"{key}:1", f"{request_key('generate_until', 'Ho', asked[1])}:0", f"{key}:2"]
    assert request_key("generate_until", "Hi", {"temperature": 1.0, "do_sample": True}) == key
    assert request_key("generate_until", "Hi", {"do_sample": True, "temperature": 0.9}) != key

"""Request builder: rows become requests, or errors with place and reason."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.byte_encoder import ByteEncoder, Encoded

from specpipe.core import Completion, Request, SamplingParams, Shard
from specpipe.data import RequestBuilder, Row, expected_identity, row_seed, to_table
from specpipe.data.requests.prompts import Message, find_prompt
from specpipe.errors import InputError, ModelError

_KEYS = ("role", "content", "from", "value", "type", "text", "messages", "prompt", "human", "user")
SHARD = Shard(index=4, file="data/a.jsonl", start=100, stop=200, first_row=1100)


class AwkwardEncoder(ByteEncoder):
    """A chat is written as lines of role and content."""

    bos_token_id = ord("<")

    def encode(self, prompt: str | Sequence[Message]) -> Encoded:
        if prompt == "crash":
            raise RuntimeError("tokenizer panic")
        if prompt == "no template":
            raise ModelError("the target has no chat template")
        text = prompt if isinstance(prompt, str) else "".join(f"{m['role']}: {m['content']}\n" for m in prompt)
        return super().encode(text)


def builder(**changes: object) -> RequestBuilder:
    settings: dict[str, Any] = {"sampling": SamplingParams(), "job_seed": 0, "max_model_len": 1000, "vocab_size": 256}
    return RequestBuilder(encoder=AwkwardEncoder(), **(settings | changes))


def build(values: dict[str, object], **changes: object) -> Request:
    request = builder(**changes).build(Row(index_in_file=107, values=values), SHARD)
    assert isinstance(request, Request), request
    return request


def refused(values: dict[str, object] | None, error: str = "", **changes: object) -> Completion:
    completion = builder(**changes).build(Row(index_in_file=107, values=values, error=error), SHARD)
    assert isinstance(completion, Completion) and completion.finish_reason == "error"
    return completion


def test_a_plain_prompt_is_encoded_as_it_stands() -> None:
    request = build({"prompt": "hé"})
    assert request.prompt == "hé" and request.prompt_token_ids == tuple("hé".encode())
    assert (request.request_id, request.shard, request.row) == ("1107", 4, 7)
    assert request.sampling == SamplingParams() and request.seed == row_seed(0, 1107)


def turns(*pairs: tuple[str, object]) -> dict[str, object]:
    return {"conversations": [{"from": who, "value": value} for who, value in pairs]}


def chat(*pairs: tuple[object, object]) -> dict[str, object]:
    return {"messages": [{"role": role, "content": content, "name": None} for role, content in pairs]}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (turns(("human", "hi"), ("gpt", "yo"), ("human", "more")), "user: hi\n"),
        (turns(("system", "be kind"), ("user", "hi"), ("gpt", "yo")), "system: be kind\nuser: hi\n"),
        (chat(("system", "s"), ("user", "a"), ("tool", "b")), "system: s\nuser: a\ntool: b\n"),
        (chat(("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])), "user: ab\n"),
        ({"custom_id": "q", "body": {"model": "m", "n": 1, **chat(("user", "x"))}}, "user: x\n"),
        ({"custom_id": "q", "body": {"prompt": "x"}, "prompt": "not this"}, "x"),
        ({"messages": '[{"role": "user", "content": "x"}]'}, "user: x\n"),
        ({"conversations": '[{"from": "human", "value": "x"}, {"from": "gpt"}]', "prompt": None}, "user: x\n"),
    ],
)  # fmt: skip
def test_chats_conversations_and_batch_lines_are_prompts(values: dict[str, object], text: str) -> None:
    assert build(values).prompt == text


def test_empty_contents_that_chat_apis_write_are_served() -> None:
    call = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]}
    turns_ = [{"role": "system", "content": ""}, {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]
    for assistant in (call, call | {"content": None}, call | {"content": ""}):
        prompt = find_prompt({"messages": [*turns_, assistant]}, None)
        assert [m["content"] for m in prompt.messages] == ["", "Hi", ""]


def test_token_ids_are_taken_as_they_are() -> None:
    request = build({"prompt_token_ids": [1, 2, 255], "prompt": "shown"})
    assert (request.prompt_token_ids, request.prompt) == ((1, 2, 255), "shown")
    assert build({"prompt_token_ids": [1], "prompt": "half \ud800"}).prompt == "half ?"


def test_a_named_column_goes_before_the_usual_ones() -> None:
    assert build({"question": "this", "prompt": "not this"}, prompt_column="question").prompt == "this"
    assert "column question: no value" in refused({"question": None, "prompt": "x"}, prompt_column="question").error


@pytest.mark.parametrize(
    ("column", "value", "request_id"),
    [("request_id", "a", "a"), ("custom_id", "b", "b"), ("id", 12, "12"), ("id", None, "1107")],
)
def test_a_row_may_name_itself(column: str, value: object, request_id: str) -> None:
    assert build({"prompt": "x", column: value}).request_id == request_id


def test_a_row_brings_its_own_sampling_values() -> None:
    own = {"temperature": 1, "top_p": 0.5, "top_k": 3.0, "max_tokens": 9, "stop": "END", "seed": 5, "min_p": None}
    expected = SamplingParams(temperature=1.0, top_p=0.5, top_k=3, max_new_tokens=9, stop=("END",), seed=5)
    request = build({"prompt": "x", **own})
    assert request.sampling == expected and request.seed == 5
    batch_line = {"body": {"prompt": "x", **own, "stop": ["END"]}, "temperature": "not looked at"}
    assert build(batch_line).sampling == expected


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"logprobs": 3}, {"logprobs": 3}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 4}, {"logprobs": 4}),
        ({"logprobs": False, "top_logprobs": 0}, {"logprobs": None}),
        ({"repetition_penalty": 1.2, "presence_penalty": -1, "frequency_penalty": 0.5},
         {"repetition_penalty": 1.2, "presence_penalty": -1.0, "frequency_penalty": 0.5}),
    ],
)  # fmt: skip
def test_penalties_and_logprobs_of_a_row_replace_the_jobs(own: dict[str, object], expected: dict[str, object]) -> None:
    job = SamplingParams(logprobs=7, presence_penalty=1.0)
    found = build({"body": {"prompt": "x", **own}}, sampling=job).sampling
    assert found == dataclasses.replace(job, **expected)


def test_n_of_a_body_may_equal_the_jobs() -> None:
    shard = dataclasses.replace(SHARD, samples=3)
    for n in (3, 1, None):
        row = Row(index_in_file=107, values={"body": {"prompt": "x", "n": n}})
        assert isinstance(builder().build(row, shard), Request)
    row = Row(index_in_file=107, values={"body": {"prompt": "x", "n": 2}})
    assert "expected sampling.n of the job, 3" in builder().build(row, shard).error


def test_a_row_with_an_outputs_seed_repeats_its_draws() -> None:
    derived = build({"prompt": "x"}).seed
    assert build({"prompt": "x", "seed": derived}, job_seed=99).seed == derived


def test_row_seeds_are_63_bits_of_job_and_row() -> None:
    seeds = {row_seed(job, row) for job in range(20) for row in range(50)}
    assert len(seeds) == 1000 and min(seeds) >= 0 and 2**62 < max(seeds) < 2**63


def test_new_tokens_are_limited_to_what_the_prompt_leaves() -> None:
    assert build({"prompt": "x" * 999}).sampling.max_new_tokens == 1
    assert build({"prompt": "x" * 990}, sampling=SamplingParams(max_new_tokens=10)).sampling.max_new_tokens == 10


@pytest.mark.parametrize(
    ("prompt", "new_tokens", "read", "generates"),
    [
        ("x" * 700 + "y" * 800, 200, "y" * 800, 200),  # cut, so that the new tokens fit
        ("x" * 800, 200, "x" * 800, 200),
        ("<" + "x" * 700 + "y" * 799, 200, "<" + "y" * 799, 200),  # a beginning-of-sequence token stays
        ("x" * 700 + "y" * 500, 990, "y" * 500, 500),  # no less than half is left of a prompt
        ("x" * 500, 990, "x" * 500, 500),
        ("short", 2000, "short", 995),
    ],
)
def test_truncate_left_keeps_the_end_of_a_long_prompt(prompt: str, new_tokens: int, read: str, generates: int) -> None:
    for values in ({"prompt": prompt}, {"prompt_token_ids": list(prompt.encode()), "prompt": prompt}):
        request = build({**values, "max_tokens": new_tokens}, truncate=True)
        assert (request.prompt, bytes(request.prompt_token_ids).decode()) == (read, read)
        assert request.sampling.max_new_tokens == generates


def test_truncation_keeps_a_token_in_the_shortest_model() -> None:
    for length in (2, 3):
        request = build({"prompt": "<" + "x" * 9, "max_tokens": 9}, truncate=True, max_model_len=length)
        assert len(request.prompt_token_ids) == 1 and request.sampling.max_new_tokens == length - 1


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({}, "no prompt: expected a value in one of the columns body, prompt_token_ids"),
        ({"prompt": None}, "no prompt"),
        ({"prompt": ""}, "column prompt: empty"),
        ({"prompt": 3}, "column prompt: 3; expected text, token ids or chat messages"),
        ({"prompt": b"x"}, "column prompt: b'x'; expected text"),
        ({"prompt": "a\ud800"}, "column prompt: a lone surrogate (\\ud800) at character 1"),
        ({"prompt": "x" * 1000}, "the prompt has 1000 tokens; expected at most 999 (max_model_len 1000"),
        ({"prompt": "crash"}, "cannot be encoded: RuntimeError: tokenizer panic"),
        ({"prompt_token_ids": []}, "column prompt_token_ids: an empty list"),
        ({"prompt_token_ids": [1, None]}, "column prompt_token_ids: holds [1, None]"),
        ({"prompt_token_ids": [1, True]}, "column prompt_token_ids: holds [1, True]"),
        ({"prompt_token_ids": [1, 256]}, "token id 256 in the prompt; expected 0 to 255"),
        ({"prompt_token_ids": [-1]}, "token id -1"),
        (turns(("human", "hi")), "column conversations: 1 turn(s); expected the human turn and an answer"),
        (turns(("gpt", "hi"), ("human", "x")), "column conversations: begins with gpt, human; expected a human turn"),
        (turns(("system", "s"), ("gpt", "x")), "begins with system, gpt"),
        (turns(("human", None), ("gpt", "x")), "column conversations[0].value: no value; expected text"),
        (turns(("human", "\udfff"), ("gpt", "x")), "column conversations[0].value: a lone surrogate"),
        ({"messages": ["hi"]}, "column messages: holds ['hi']"),
        (chat((None, "x")), "column messages[0].role: no value; expected one of system"),
        ({"prompt": "a", "id": "a\ud800"}, "column id: 'a\\ud800' has a lone surrogate; expected valid Unicode"),
        ({"prompt": "a", "id": 1.5}, 'expected text or a whole number, such as "1.5" in quotes'),
        ({"messages": [{"role": "user", "content": "a"}], "tools": [{"a": 1}]}, "column tools: [{'a': 1}] is not supp"),
        ({"messages": [{"role": "user", "content": "a"}], "logit_bias": {"1": 2}}, "column logit_bias: {'1': 2} is n"),
        ({"messages": [{"role": "user", "content": "a"}], "n": 3}, "column n: 3; expected sampling.n of the job, 1"),
        ({"messages": [{"role": "user", "tool_calls": []}]}, "column messages[0].content: no value; expected text"),
        (chat(("user", "x"), ("narrator", "y")), "column messages[1].role: 'narrator'; expected one of system"),
        (chat(("user", None)), "column messages[0].content: no value; expected text"),
        (chat(("user", [{"type": "image_url", "image_url": "x"}])), "expected parts of type text"),
        ({"body": {"input": "embed"}}, "column body: has neither messages nor prompt"),
        ({"body": {"prompt": "x", "logit_bias": {"5": 1}}}, "column body.logit_bias: {'5': 1} is not supported"),
        ({"body": {"prompt": "x", "n": 2}}, "column body.n: 2; expected sampling.n of the job, 1"),
        ({"body": {"prompt": "x", "frequency_penalty": 2.5}}, "frequency_penalty is 2.5; expected between -2 and 2"),
        ({"prompt": "x", "logprobs": 21}, "logprobs is 21; expected 0 to 20, or none"),
        ({"prompt": "x", "repetition_penalty": 0}, "repetition_penalty is 0.0; expected above 0"),
        ({"body": {"prompt": ["a", "b"]}}, "column body.prompt: holds ['a', 'b']"),
        ({"prompt": "x", "id": 1.5}, "column id: 1.5; expected text or a whole number"),
        ({"prompt": "x", "temperature": "hot"}, "column temperature: 'hot'; expected a number"),
        ({"prompt": "x", "temperature": math.nan}, "column temperature: nan; expected a number"),
        ({"prompt": "x", "temperature": -1}, "temperature is -1.0; expected 0 or more"),
        ({"prompt": "x", "top_k": 1.5}, "column top_k: 1.5; expected a whole number"),
        ({"prompt": "x", "max_tokens": True}, "column max_tokens: True; expected a number"),
        ({"prompt": "x", "max_tokens": 0}, "max_new_tokens is 0; expected 1 or more"),
        ({"prompt": "x", "ignore_eos": "yes"}, "column ignore_eos: 'yes'; expected true or false"),
        ({"prompt": "x", "stop": [1]}, "column stop: [1]; expected text or a list of texts"),
        ({"prompt": "x", "stop_token_ids": [300]}, "column stop_token_ids: 300; expected 0 to 255"),
        ({"prompt": "x", "top_k": 10**400}, "column top_k: 1000"),
        ({"prompt": "x", "temperature": math.inf}, "column temperature: inf; expected a number"),
        ({"prompt": "x", "seed": 2**63}, f"seed is {2**63}; expected between 0"),
        ({"messages": "[1"}, "column messages: text that is not JSON"),
        ({"conversations": "3"}, "column conversations: 3; expected a list of turns"),
        ({"body": "{}"}, "column body: '{}'; expected an object with messages or prompt"),
        ({"prompt": "x", "seed": -1}, "seed is -1; expected between 0"),
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_a_bad_row_says_where_and_why(values: dict[str, object], error: str) -> None:
    completion = refused(values)
    assert completion.error.startswith("data/a.jsonl, row 107: ") and error in completion.error
    assert completion.request.row == 7


_surrogates_too = st.text(st.characters(), max_size=8) | st.just("a\ud800")
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _surrogates_too | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS) | st.text(), inner, max_size=3),
    max_leaves=8,
)


def require_writable(values: dict[str, object]) -> None:
    shard = dataclasses.replace(SHARD, start=107)
    built = builder().build(Row(index_in_file=107, values=values), shard)
    if isinstance(built, Request):
        assert built.prompt_token_ids and 1 <= built.sampling.max_new_tokens <= 999
        built = Completion(request=built, finish_reason="length")
    assert to_table([built], 1).num_rows == 1


_any_values = st.dictionaries(st.sampled_from(builder().columns), _json, max_size=5)


@settings(max_examples=80, deadline=None)
@given(values=_any_values)
def test_any_row_becomes_a_request_or_a_writable_error(values: dict[str, object]) -> None:
    require_writable(values)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(values=_any_values)
def test_very_many_rows_become_requests_or_writable_errors(values: dict[str, object]) -> None:
    require_writable(values)


def test_an_unreadable_row_keeps_its_position() -> None:
    completion = refused(None, error="the line is not JSON")
    assert completion.error == "data/a.jsonl, row 107: the line is not JSON"
    assert completion.request.row == 7


def test_an_error_row_keeps_its_id_and_prompt() -> None:
    completion = refused({"id": "mine", "prompt": "hello", "temperature": "hot"})
    assert (completion.request.request_id, completion.request.prompt) == ("mine", "hello")


def test_what_no_row_can_do_is_a_model_error() -> None:
    with pytest.raises(ModelError):
        build({"prompt": "no template"})


def test_every_column_that_is_looked_at_is_read() -> None:
    columns = builder(prompt_column="question").columns
    assert {"question", "prompt", "messages", "conversations", "body", "id", "temperature", "seed"} <= set(columns)
    assert len(set(columns)) == len(columns)


def test_input_errors_are_value_errors() -> None:
    assert issubclass(InputError, ValueError)


@pytest.mark.parametrize(
    ("values", "name", "own"),
    [
        ({"prompt": "x", "id": "a", "seed": 7}, "a", {7}),
        ({"prompt": "x", "seed": "hot"}, "3", set()),
        ({"prompt": "x", "id": 1.5, "seed": 7}, "3", set()),
        (None, "3", set()),
    ],
)
def test_bad_rows_have_an_expected_identity_too(values: dict[str, object] | None, name: str, own: set[int]) -> None:
    found = expected_identity(Row(index_in_file=0, values=values), 3, job_seed=5, prompt_column=None)
    assert found == (name, {row_seed(5, 3), *own})

"""Score rows: continuations of every kind become token ids behind the prompt, or an error of the row."""

from __future__ import annotations

import pytest
from support.byte_encoder import ByteEncoder

from specpipe.core import Completion, Request, SamplingParams, Shard
from specpipe.data import RequestBuilder, Row
from specpipe.errors import InputError
from specpipe.models.source import resolve
from specpipe.models.tokenizer import PromptEncoder, load_tokenizer

SHARD = Shard(index=0, file="a.jsonl", start=0, stop=9, first_row=0)


def build(values: dict[str, object], **changes: object) -> Request | Completion:
    sampling = SamplingParams(temperature=0.7, stop=("x",), logprobs=2)
    builder = RequestBuilder(
        encoder=ByteEncoder(), sampling=sampling, job_seed=0, max_model_len=20, vocab_size=256, **changes
    )
    return builder.build(Row(index_in_file=0, values=values), SHARD)


@pytest.mark.parametrize(
    ("values", "prompt", "continuations"),
    [
        ({"prompt": "ab", "continuations": ["c", "de"]}, b"ab", [b"c", b"de"]),
        ({"prompt": "ab", "continuations": [[7], [8, 9]]}, b"ab", [[7], [8, 9]]),
        ({"prompt_token_ids": [1, 2], "continuations": [[3]]}, [1, 2], [[3]]),
        ({"messages": [{"role": "user", "content": "ab"}], "continuations": ["c"]}, b"ab", [b"c"]),
        ({"prompt": "", "continuations": ["c"]}, [0], [b"c"]),
        ({"continuations": [[5, 6]]}, [0], [[5, 6]]),
        ({"prompt": "a" * 19, "continuations": ["b", "bc"]}, b"a" * 19, [b"b", b"bc"]),
        ({"prompt": "", "continuations": ["b" * 40]}, [0], [b"b" * 40]),
    ],
)
def test_prompt_and_continuations_are_token_ids(
    values: dict[str, object], prompt: object, continuations: list[object]
) -> None:
    request = build(values)
    assert isinstance(request, Request), request
    assert request.prompt_token_ids == tuple(prompt)  # type: ignore[arg-type]
    assert request.continuations == tuple(map(tuple, continuations))  # type: ignore[arg-type]
    assert request.sampling == SamplingParams(logprobs=2) and request.new_tokens == 0


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"prompt": "a", "continuations": []}, "column continuations: []; expected a list of texts"),
        ({"prompt": "a", "continuations": "bc"}, "column continuations: 'bc'; expected a list"),
        ({"prompt": "a", "continuations": ["b", 3]}, "column continuations[1]: 3; expected"),
        ({"prompt": "a", "continuations": [[3], [True]]}, "column continuations[1]: [True]; expected"),
        ({"prompt": "a", "continuations": [[3], []]}, "column continuations[1]: []; expected"),
        ({"prompt": "a" * 19, "continuations": ["bcd"]}, "prompt and continuation have 22 tokens; expected at most 21"),
        ({"prompt": "a", "continuations": [[999]]}, "token id 999"),
        ({"prompt_token_ids": [1], "continuations": ["b"]}, "texts behind a prompt of token ids"),
    ],
)
def test_bad_continuations_are_an_error_of_the_row(values: dict[str, object], error: str) -> None:
    completion = build(values)
    assert isinstance(completion, Completion) and error in completion.error


def test_texts_are_encoded_with_the_prompt_as_lm_eval_does() -> None:
    tokenizer = load_tokenizer(resolve("builtin:tiny", "target"))
    encoder = PromptEncoder(tokenizer)

    def ids(text: str) -> list[int]:
        return list(tokenizer(text)["input_ids"])

    for prompt, more in (("Two and two are ", "four"), ("Two and two", " are four"), ("A:\n", "B")):
        found = encoder.encode_continuations(prompt, [more])
        assert list(found.token_ids) == ids(prompt.rstrip()) and found.text == prompt
        assert list(found.continuations[0]) == ids(prompt + more)[len(found.token_ids) :]
    empty = encoder.encode_continuations("", ["four"])
    assert empty.token_ids == (tokenizer.bos_token_id or tokenizer.eos_token_id,)
    assert list(empty.continuations[0]) == tokenizer("four", add_special_tokens=False)["input_ids"]
    with pytest.raises(InputError, match=r"continuation 0 \('wo'\) adds no token to the prompt"):
        encoder.encode_continuations("T", ["wo"])

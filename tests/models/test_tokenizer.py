"""Encoding of prompts: one BOS, chat templates, errors; and end-of-sequence ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.small_models import small_tokenizer

from specpipe.errors import InputError, ModelError
from specpipe.models.source import ModelSource, resolve
from specpipe.models.support import check_pair
from specpipe.models.tokenizer import PromptEncoder, eos_token_ids, load_tokenizer

BOS, EOS = 0, 1
HELLO = [{"role": "user", "content": "Hello"}]


def source_of(folder: Path) -> ModelSource:
    return ModelSource(path=str(folder), name="org/some-model", revision="x")


@pytest.mark.parametrize("prompt", ["The quick brown fox", "<|bos|>The quick brown fox", ""])
def test_a_plain_prompt_has_exactly_one_bos(prompt: str) -> None:
    encoded = PromptEncoder(small_tokenizer()).encode(prompt)
    assert encoded.token_ids[0] == BOS and encoded.token_ids.count(BOS) == 1
    assert encoded.text == prompt


def test_a_chat_is_what_the_template_makes_of_it() -> None:
    encoded = PromptEncoder(small_tokenizer()).encode([*HELLO, {"role": "assistant", "content": "Hi"}, *HELLO])
    assert encoded.text == "<|bos|><|user|>Hello<|end|><|assistant|>Hi<|end|><|user|>Hello<|end|><|assistant|>"
    assert encoded.token_ids.count(BOS) == 1
    expected = small_tokenizer().apply_chat_template(
        [*HELLO, {"role": "assistant", "content": "Hi"}, *HELLO], add_generation_prompt=True
    )
    assert list(encoded.token_ids) == expected["input_ids"]


def test_a_second_bos_of_a_template_is_removed() -> None:
    tokenizer = small_tokenizer.__wrapped__()
    tokenizer.chat_template = "{{ bos_token }}" + tokenizer.chat_template
    assert PromptEncoder(tokenizer).encode(HELLO).token_ids.count(BOS) == 1


def test_the_system_prompt_goes_where_none_is() -> None:
    encoder = PromptEncoder(small_tokenizer(), system_prompt="Be brief.")
    assert encoder.encode(HELLO).text.startswith("<|bos|><|system|>Be brief.<|end|><|user|>Hello")
    assert encoder.encode("Hello") == encoder.encode(HELLO)
    own = [{"role": "system", "content": "Be long."}, *HELLO]
    assert "Be brief." not in encoder.encode(own).text


def test_messages_without_a_template_are_the_jobs_mistake() -> None:
    tokenizer = small_tokenizer.__wrapped__()
    tokenizer.chat_template = None
    with pytest.raises(ModelError, match=r"org/some-model has no chat template.*model\.chat_template"):
        PromptEncoder(tokenizer, name="org/some-model").encode(HELLO)
    with pytest.raises(ModelError, match="no chat template"):
        PromptEncoder(tokenizer, system_prompt="Be brief.")
    assert PromptEncoder(tokenizer).encode("Hello").token_ids[0] == BOS


@pytest.mark.parametrize(
    ("messages", "reason"),
    [([], "no messages"), ([{"role": "pirate", "content": "Arr"}], "unknown role pirate"), ([{}], "rejects")],
)
def test_messages_that_the_template_rejects_are_input_errors(messages: list[dict[str, str]], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        PromptEncoder(small_tokenizer()).encode(messages)


def test_calls_of_tools_that_a_template_leaves_out_are_refused() -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "x"}]}]
    with pytest.raises(InputError, match="has tool_calls, which the chat template of the target leaves out"):
        PromptEncoder(small_tokenizer()).encode(chat)


def test_a_prompt_of_no_tokens_is_refused() -> None:
    tokenizer = small_tokenizer.__wrapped__()
    tokenizer.backend_tokenizer.post_processor = None
    with pytest.raises(InputError, match="empty"):
        PromptEncoder(tokenizer).encode("")


def test_a_long_prompt_is_encoded_without_a_warning() -> None:
    tokenizer = small_tokenizer.__wrapped__()
    tokenizer.model_max_length = 4
    assert len(PromptEncoder(tokenizer).encode("word " * 50).token_ids) > 50


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 2}, None, (2,)),
        ({"eos_token_id": [9, 2]}, {"eos_token_id": 4}, (2, 4, 9)),
        ({"eos_token_id": None}, {"eos_token_id": [5, 3]}, (3, 5)),
        ({}, {}, (EOS,)),
    ],
)
def test_eos_ids_of_model_and_generation_config(
    tmp_path: Path, config: dict[str, object], generation: dict[str, object] | None, expected: tuple[int, ...]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert eos_token_ids(source_of(tmp_path), small_tokenizer()) == expected


def test_loading_takes_a_template_from_a_file(tmp_path: Path) -> None:
    small_tokenizer().save_pretrained(tmp_path)
    template = tmp_path / "other.jinja"
    template.write_text("{{ messages[0]['content'] }}!")
    tokenizer = load_tokenizer(source_of(tmp_path), chat_template=str(template))
    assert PromptEncoder(tokenizer).encode(HELLO).text == "Hello!"
    with pytest.raises(ModelError, match="cannot be read"):
        load_tokenizer(source_of(tmp_path), chat_template=str(tmp_path / "missing.jinja"))


def test_the_embedded_pair_shares_its_tokenizer() -> None:
    target, draft = (load_tokenizer(resolve("builtin:tiny", role)) for role in ("target", "draft"))
    check_pair(target, draft)
    assert PromptEncoder(target, system_prompt="Be brief.").encode("Hello").token_ids


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelError, match="org/some-model: no tokenizer can be loaded"):
        load_tokenizer(source_of(tmp_path))


def test_keywords_of_the_job_reach_the_template() -> None:
    tokenizer = small_tokenizer.__wrapped__()
    tokenizer.chat_template = "{{ messages[0]['content'] }}{% if not enable_thinking %} /no_think{% endif %}"
    assert PromptEncoder(tokenizer, template_kwargs={"enable_thinking": False}).encode(HELLO).text == "Hello /no_think"
    assert PromptEncoder(tokenizer, template_kwargs={"enable_thinking": True}).encode(HELLO).text == "Hello"


def test_a_prompt_decodes_to_its_text_with_special_tokens() -> None:
    encoder = PromptEncoder(small_tokenizer())
    encoded = encoder.encode(HELLO)
    assert encoder.decode(encoded.token_ids) == encoded.text
    assert encoder.bos_token_id == BOS


def test_loading_disables_saved_truncation_and_padding(tmp_path: Path) -> None:
    saved = small_tokenizer.__wrapped__()
    saved.backend_tokenizer.enable_truncation(4)
    saved.backend_tokenizer.enable_padding(length=64)
    saved.save_pretrained(tmp_path)
    backend = load_tokenizer(source_of(tmp_path)).backend_tokenizer
    assert backend.truncation is None and backend.padding is None

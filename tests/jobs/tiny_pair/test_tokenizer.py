"""The pair's tokenizer: lossless, one token per digit, ChatML template."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from jobs.tiny_pair.network import END_OF_TEXT_ID, END_OF_TURN_ID
from jobs.tiny_pair.tokenizer import END_OF_TEXT, END_OF_TURN, TURN, VOCAB_SIZE, render
from specpipe.models.tiny import TARGET

TOKENIZER: Any = AutoTokenizer.from_pretrained(TARGET)


@given(st.text(max_size=60))
def test_decoding_returns_any_encoded_text(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@pytest.mark.parametrize("text", ["", " ", "  two  spaces\n\n", "naïve 東京 🦊\u200d\x00", " , . ! n't", "1234 -5,6"])
def test_decoding_returns_awkward_texts(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_digits_are_tokens_of_their_own() -> None:
    assert TOKENIZER.convert_ids_to_tokens(TOKENIZER.encode("90210")) == list("90210")


def test_special_tokens_have_the_ids_that_the_models_name() -> None:
    assert len(TOKENIZER) == VOCAB_SIZE
    assert TOKENIZER.convert_tokens_to_ids([END_OF_TEXT, TURN, END_OF_TURN]) == [END_OF_TEXT_ID, 1, END_OF_TURN_ID]
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id) == (END_OF_TEXT_ID, END_OF_TURN_ID)
    assert TOKENIZER.bos_token_id is None


def test_the_chat_template_writes_the_training_format() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi?"},
        {"role": "assistant", "content": "Hello."},
    ]
    text = TOKENIZER.apply_chat_template(messages, tokenize=False)
    assert text == render([("Hi?", "Hello.")], system="Be brief.")
    opened = TOKENIZER.apply_chat_template(messages[1:2], tokenize=False, add_generation_prompt=True)
    assert opened == f"{TURN}user\nHi?{END_OF_TURN}\n{TURN}assistant\n"

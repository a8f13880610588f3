"""Incremental detokenization: equal to decoding everything, at constant cost per token."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_models import small_tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from specpipe.models.detokenizer import Detokenizer


def sentencepiece_tokenizer() -> Any:
    """As Llama 2's: spaces as ▁, the first one dropped, unknown characters as runs of byte tokens."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁the", "▁a", "b", "c", "▁▁", ".", "é", "▁你"]
    backend = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


TOKENIZERS = {"byte-level": small_tokenizer(), "sentencepiece": sentencepiece_tokenizer()}
BYTES = [f"<0x{byte:02X}>" for byte in "你好🙂".encode()]


def whole(tokenizer: Any, ids: list[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=True)
    return text


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_text_equals_finish_after_every_complete_character(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    size = len(tokenizer)
    common = st.integers(0, size - 1)
    ids = data.draw(st.lists(common | st.sampled_from(list(range(5)) + list(range(size - 9, size))), max_size=30))
    detokenizer = Detokenizer(tokenizer)
    for n, token in enumerate(ids, 1):
        before = detokenizer.text
        added = detokenizer.push(token)
        expected = whole(tokenizer, ids[:n])
        if not expected.endswith("\ufffd"):
            assert detokenizer.text == expected
        assert detokenizer.text in (before + added, added)
    assert detokenizer.finish() == whole(tokenizer, ids)


def test_an_invalid_byte_replaces_its_whole_run() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    detokenizer = Detokenizer(tokenizer)
    for token in tokenizer.convert_tokens_to_ids(["<0x00>", "<0x20>", "<0x80>", "▁"]):
        detokenizer.push(token)
    assert detokenizer.text == "\ufffd\ufffd\ufffd "


@pytest.mark.parametrize("name", TOKENIZERS)
def test_characters_of_several_tokens_appear_whole(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    text = "你好🙂"
    letters = bytes_to_unicode()
    pieces = BYTES if name == "sentencepiece" else [letters[byte] for byte in text.encode()]
    ids = tokenizer.convert_tokens_to_ids(pieces)
    assert len(ids) == 10
    detokenizer = Detokenizer(tokenizer)
    seen = [detokenizer.push(token) for token in ids]
    assert [piece for piece in seen if piece] == ["你", "好", "🙂"]


def test_text_before_an_incomplete_character_is_not_held_back() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    detokenizer = Detokenizer(tokenizer)
    for token in tokenizer.convert_tokens_to_ids(["▁the", "b", "<0xE4>"]):
        detokenizer.push(token)
    assert detokenizer.text == "theb"


def test_special_tokens_leave_no_trace() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    detokenizer = Detokenizer(tokenizer)
    ids = [1, *tokenizer("over the", add_special_tokens=False)["input_ids"], 4, 1]
    for token in ids:
        detokenizer.push(token)
    assert detokenizer.text == detokenizer.finish() == "over the"


def test_the_cost_of_a_token_is_constant() -> None:
    class Counting:
        """Counts the ids that pass through the real tokenizer."""

        ids = 0

        def decode(self, ids: list[int], **kwargs: Any) -> Any:
            self.ids += len(ids)
            return TOKENIZERS["byte-level"].decode(ids, **kwargs)

    counting = Counting()
    detokenizer = Detokenizer(counting)
    ids = TOKENIZERS["byte-level"]("Grüße 你好 and more. " * 100, add_special_tokens=False)["input_ids"]
    for token in ids:
        detokenizer.push(token)
    assert counting.ids < 12 * len(ids)
    assert detokenizer.text == "Grüße 你好 and more. " * 100

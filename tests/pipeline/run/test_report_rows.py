"""Rows of a report: the drafts that were accepted within an answer."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from specpipe.models.source import cached_file
from specpipe.pipeline.run.report_rows import mark_accepted


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    path = cached_file("builtin:tiny", "tokenizer.json", "")
    assert path is not None
    return Tokenizer.from_file(str(path))


def test_accepted_tokens_are_marked_where_they_stand_in_the_text(tokenizer: Tokenizer) -> None:
    text = "Anna has 12 apples, 3 pears and a naïve 🍐."
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    rounds = [2, 0, 3] + [0] * (len(ids) - 9) + [0]  # the last round ends before its own token
    pieces = mark_accepted(tokenizer, text, ids, rounds)
    assert "".join(piece for piece, _ in pieces) == text
    ends = [len(tokenizer.decode(ids[:n])) for n in (2, 4, 7)]
    assert pieces[:3] == [(text[: ends[0]], True), (text[ends[0] : ends[1]], False), (text[ends[1] : ends[2]], True)]
    assert not any(marked for _, marked in pieces[3:])


def test_text_before_a_stop_string_and_plain_rows_are_kept(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one two three", add_special_tokens=False).ids
    assert mark_accepted(tokenizer, "one t", ids, [len(ids)]) == [("one t", True)]
    assert mark_accepted(tokenizer, "one two three", ids, []) == [("one two three", False)]
    assert mark_accepted(None, "one two three", ids, [1, 1]) == [("one two three", False)]


def test_a_model_that_is_not_on_this_machine_is_not_downloaded() -> None:
    assert cached_file("nobody/has-this", "tokenizer.json", "0" * 40) is None

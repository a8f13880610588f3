"""Keys of rows, by which an earlier answer is found: hashes of the prompt, else of the identifier."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from specpipe.core import Request
from specpipe.data.requests.prompts import Prompt, find_prompt
from specpipe.errors import InputError

_MASK = 2**64 - 1
_SAMPLE_STEP = 0x9E3779B97F4A7C15  # odd, so that keys of different samples differ


class RowKeys(NamedTuple):
    """Hashes (64 bits) of one output row."""

    prompts: tuple[int, ...]
    """Hashes of the prompt as the model reads it and as the dataset holds it; empty for a prompt without text."""
    identifier: int
    sample: int

    def candidates(self) -> tuple[int, ...]:
        """Returns keys of answers to follow, best first: equal prompt, then equal identifier; the same sample first."""
        samples = (self.sample, 0) if self.sample else (0,)
        by_prompt = tuple(sample_key(key, sample) for sample in samples for key in self.prompts)
        return (*by_prompt, *(sample_key(self.identifier, sample) for sample in samples))


def request_keys(request: Request, values: Mapping[str, object] | None, prompt_column: str | None) -> RowKeys:
    """Returns the keys of a request. values: its input row; None where no answers are keyed by prompts of a dataset."""
    prompts = [text_key(request.prompt)] if request.prompt else []
    if values is not None and (stored := stored_prompt_key(values, prompt_column)) is not None:
        prompts.append(stored)
    return RowKeys(tuple(dict.fromkeys(prompts)), identifier_key(request.request_id), request.sample)


def stored_prompt_key(values: Mapping[str, object], prompt_column: str | None) -> int | None:
    """Returns the key of a prompt as an input row holds it; None for a row without a valid prompt."""
    column = prompt_column if prompt_column in values else None
    with suppress(InputError):
        return _prompt_key(find_prompt(values, column))
    return None


def _prompt_key(prompt: Prompt) -> int:
    if prompt.text is not None:
        return text_key(prompt.text)
    if prompt.messages:
        return _hash(json.dumps(prompt.messages, sort_keys=True, default=repr).encode(), b"messages")
    return text_key(prompt.shown) if prompt.shown else _hash(repr(prompt.token_ids).encode(), b"tokens")


def text_key(text: str) -> int:
    """Returns the key of a prompt's text."""
    return _hash(text.encode("utf-8", "surrogatepass"), b"text")


def identifier_key(identifier: str) -> int:
    """Returns the key of a row's identifier (`request_id`)."""
    return _hash(identifier.encode("utf-8", "surrogatepass"), b"identifier")


def sample_key(key: int, sample: int) -> int:
    """Returns the key of one sample of a row; that of sample 0 is `key`."""
    return (key + sample * _SAMPLE_STEP) & _MASK


def _hash(data: bytes, kind: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, person=kind).digest(), "little")

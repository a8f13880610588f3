"""Sampling parameters of single rows, which override the job's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from specpipe.core import SamplingParams
from specpipe.errors import InputError

_HUGE = 2.0**64  # above every parameter's range; the comparison also rejects NaN


def row_sampling(values: Mapping[str, object], job: SamplingParams, vocab_size: int) -> SamplingParams:
    """Returns the job's sampling parameters with the row's overrides. Raises InputError with the column's name."""
    own: dict[str, Any] = {}
    for column, (name, convert) in OVERRIDES.items():
        value = values.get(column)
        if value is not None:
            try:
                own[name] = convert(value)
            except InputError as error:
                raise InputError(f"column {column}: {value!r:.60}; expected {error}") from None
    if values.get("logprobs") is False:
        own["logprobs"] = None  # overrides top_logprobs
    if not own:
        return job
    sampling = dataclasses.replace(job, **own)
    if outside := [t for t in sampling.stop_token_ids if t >= vocab_size]:
        raise InputError(f"column stop_token_ids: {outside[0]}; expected 0 to {vocab_size - 1}")
    return sampling


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_HUGE < value < _HUGE:
        raise InputError("a number")
    return float(value)


def integer(value: object) -> int:
    """Returns an int. Accepts integral floats: pandas stores integers with gaps as floats. Raises InputError."""
    number = _number(value)
    if not number.is_integer():
        raise InputError("a whole number")
    return value if isinstance(value, int) else int(number)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InputError("true or false")
    return value


def _logprobs(value: object) -> int | None:
    """Returns a number of log-probabilities. OpenAI's chats send a boolean (and top_logprobs), completions a number."""
    if isinstance(value, bool):
        return 0 if value else None
    return integer(value)


def _strings(value: object) -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise InputError("text or a list of texts")
    return tuple(items)


def _integers(value: object) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise InputError("a list of token ids")
    return tuple(integer(item) for item in value)


OVERRIDES: Mapping[str, tuple[str, Callable[[object], object]]] = {
    "temperature": ("temperature", _number),
    "top_k": ("top_k", integer),
    "top_p": ("top_p", _number),
    "min_p": ("min_p", _number),
    "repetition_penalty": ("repetition_penalty", _number),
    "presence_penalty": ("presence_penalty", _number),
    "frequency_penalty": ("frequency_penalty", _number),
    "logprobs": ("logprobs", _logprobs),
    "top_logprobs": ("logprobs", integer),
    "max_tokens": ("max_new_tokens", integer),
    "max_completion_tokens": ("max_new_tokens", integer),
    "max_new_tokens": ("max_new_tokens", integer),
    "min_tokens": ("min_tokens", integer),
    "ignore_eos": ("ignore_eos", _flag),
    "stop": ("stop", _strings),
    "stop_token_ids": ("stop_token_ids", _integers),
    "seed": ("seed", integer),
}
"""Columns (or keys of an OpenAI body) → sampling parameter and converter. Of several columns for one parameter the last
one is used."""

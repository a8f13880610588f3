"""Prompts of input rows: plain text, token ids, chat messages, a ShareGPT conversation, an OpenAI batch line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from specpipe.data.columns import PROMPT_COLUMNS
from specpipe.errors import InputError

Message = dict[str, object]
_CHAT_ROLES = ("system", "developer", "user", "assistant", "tool", "function", "model", "observation", "ipython")
_TEXT_PARTS = ("text", "input_text", "output_text", None)
_SHAREGPT_ROLES = {"human": "user", "user": "user", "system": "system"}
NO_EFFECT: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "logit_bias": ({},),
    "echo": (False,),
    "tools": ([],),
    "functions": ([],),
    "response_format": ({"type": "text"},),
}
"""Unsupported OpenAI parameters that change the output, with the values that have no effect. Any other value is an
error of the row: an answer to a different request is worse than none."""


class Prompt(NamedTuple):
    """A prompt: `token_ids` if set, else `text` if set, else the chat in `messages`."""

    shown: str
    """Text for the `prompt` column of an error row; for chats the last user turn."""
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[Message, ...] = ()


def find_prompt(values: Mapping[str, object], column: str | None, samples: int = 1) -> Prompt:
    """Returns a row's prompt.

    column: data.prompt; None for the first of PROMPT_COLUMNS with a value. samples: outputs per row, which `n` of an
    OpenAI body must equal. Raises InputError with the column's name.
    """
    if column is not None:
        if values.get(column) is None:
            raise InputError(f"column {column}: no value; expected a prompt (data.prompt names this column)")
        return _prompt_of(column, values[column], values, samples)
    for name in PROMPT_COLUMNS:
        value = values.get(name)
        if value is not None:
            return _prompt_of(name, _unpacked(name, value), values, samples)
    raise InputError(f"no prompt: expected a value in one of the columns {', '.join(PROMPT_COLUMNS)}")


def _unpacked(name: str, value: object) -> object:
    """Parses a chat that is stored as JSON text, as databases export it. Returns any other value unchanged."""
    if not isinstance(value, str) or name not in ("body", "messages", "conversations"):
        return value
    if name == "body":
        raise InputError(f"column body: {_show(value)}; expected an object with messages or prompt")
    try:
        turns = json.loads(value)
    except (ValueError, RecursionError):
        raise InputError(f"column {name}: text that is not JSON: {_show(value)}; expected a list of turns") from None
    if not isinstance(turns, list):
        raise InputError(f"column {name}: {_show(turns)}; expected a list of turns")
    return turns


def request_body(values: Mapping[str, object], column: str | None) -> Mapping[str, object]:
    """Returns the mapping with a row's own sampling values: the body of an OpenAI batch line, else the row itself."""
    body = values.get(column or "body")
    return body if isinstance(body, Mapping) else values


def _prompt_of(name: str, value: object, values: Mapping[str, object], samples: int) -> Prompt:
    if isinstance(value, Mapping):
        return _from_body(name, value, samples)
    if isinstance(value, str):
        return Prompt(shown=_checked_text(name, value), text=value)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return _from_list(name, value, values, samples)
    raise InputError(f"column {name}: {_show(value)}; expected text, token ids or chat messages")


def _from_list(name: str, items: Sequence[object], values: Mapping[str, object], samples: int) -> Prompt:
    if not items:
        raise InputError(f"column {name}: an empty list; expected at least one entry")
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        shown = values.get("prompt")
        return Prompt(shown=shown if isinstance(shown, str) else "", token_ids=tuple(items))  # type: ignore[arg-type]
    entries = [item for item in items if isinstance(item, Mapping)]
    if len(entries) != len(items):
        raise InputError(f"column {name}: holds {_show(items)}; expected token ids, or turns with role and content")
    if "from" in entries[0]:
        return _from_conversation(name, entries)
    _require_no_effect("column ", values, samples)
    return _from_messages(name, entries)


def _from_body(name: str, body: Mapping[str, object], samples: int) -> Prompt:
    _require_no_effect(f"column {name}.", body, samples)
    for key in ("messages", "prompt"):
        if body.get(key) is not None and not isinstance(body[key], Mapping):
            return _prompt_of(f"{name}.{key}", body[key], {}, samples)
    raise InputError(f"column {name}: has neither messages nor prompt; expected one of them")


def _require_no_effect(prefix: str, values: Mapping[str, object], samples: int) -> None:
    """Raises InputError for OpenAI parameters, in a body or beside messages, that would change the output."""
    if values.get("n") not in (None, 1, samples):
        raise InputError(f"{prefix}n: {_show(values['n'])}; expected sampling.n of the job, {samples}")
    for key, without_effect in NO_EFFECT.items():
        value = values.get(key)
        if value is not None and value not in without_effect:
            raise InputError(f"{prefix}{key}: {_show(value)} is not supported; expected no value")


def _from_messages(name: str, entries: Sequence[Mapping[str, object]]) -> Prompt:
    messages, shown = [], ""
    for i, entry in enumerate(entries):
        role = entry.get("role")
        if role not in _CHAT_ROLES:
            raise InputError(f"column {name}[{i}].role: {_show(role)}; expected one of {', '.join(_CHAT_ROLES)}")
        message = {key: value for key, value in entry.items() if value is not None}
        if role == "assistant" and "tool_calls" in message:
            message.setdefault("content", "")  # as chat APIs write; templates read it
        if message.get("content") != "" or role == "user":
            message["content"] = content_text(f"{name}[{i}].content", message.get("content"))
        messages.append(message)
        shown = str(message["content"]) if role == "user" else shown
    return Prompt(shown=shown, messages=tuple(messages))


def content_text(name: str, content: object) -> str:
    """Returns text, or the joined text parts of a list. Raises InputError for other parts, such as images."""
    if isinstance(content, str):
        return _checked_text(name, content)
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InputError(f"column {name}: {_show(content)}; expected text")
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS else None
        if not isinstance(text, str):
            raise InputError(f"column {name}: has a part {_show(part)}; expected parts of type text")
        texts.append(_checked_text(name, text))
    return "".join(texts)


def _from_conversation(name: str, entries: Sequence[Mapping[str, object]]) -> Prompt:
    """Returns the first human turn, after an optional system turn.

    Raises InputError for a conversation without an answer after it, as loaders of benchmarks skip it.
    """
    turns: list[Message] = []
    for i, entry in enumerate(entries[:2]):
        role = _SHAREGPT_ROLES.get(str(entry.get("from")))
        if role is None or (role == "system" and i > 0):
            break
        value = entry.get("value")
        if not isinstance(value, str):
            raise InputError(f"column {name}[{i}].value: {_show(value)}; expected text")
        turns.append({"role": role, "content": _checked_text(f"{name}[{i}].value", value)})
        if role == "user":
            break
    if not turns or turns[-1]["role"] != "user":
        begins = ", ".join(str(entry.get("from")) for entry in entries[:2])
        raise InputError(f"column {name}: begins with {begins}; expected a human turn first, or after a system turn")
    if len(entries) < len(turns) + 1:
        raise InputError(f"column {name}: {len(entries)} turn(s); expected the human turn and an answer at least")
    return Prompt(shown=str(turns[-1]["content"]), messages=tuple(turns))


def _checked_text(name: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        broken = f"\\u{ord(text[error.start]):04x}"
        raise InputError(
            f"column {name}: a lone surrogate ({broken}) at character {error.start}; expected valid Unicode text"
        ) from None
    if not text:
        raise InputError(f"column {name}: empty; expected text")
    return text


def _show(value: object) -> str:
    text = "no value" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

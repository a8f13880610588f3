"""Where a row keeps its prompt: plain text, token ids, chat messages, a ShareGPT conversation, an OpenAI batch line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from specpipe.data.columns import PROMPT_COLUMNS
from specpipe.errors import InputError

Message = dict[str, object]
_CHAT_ROLES = ("system", "developer", "user", "assistant", "tool", "function", "model", "observation", "ipython")
_SHAREGPT_ROLES = {"human": "user", "user": "user", "system": "system"}
_HARMLESS: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "logit_bias": ({},),
    "echo": (False,),
    "tools": ([],),
    "functions": ([],),
    "response_format": ({"type": "text"},),
}
"""Parameters of an OpenAI request that change its output and are not served: with any other value the row is refused,
because an answer to something else than was asked is worse than none."""


class Prompt(NamedTuple):
    """Token ids where they are set, else `text` where it is set, else a chat."""

    shown: str
    """What an error row's `prompt` column holds: for chats the last user turn."""
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[Message, ...] = ()


def find_prompt(values: Mapping[str, object], column: str | None, samples: int = 1) -> Prompt:
    """A row's prompt, from `column` or the first usual one that it has. `samples`: outputs that every row gets.

    Raises InputError that names the column.
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
    """Chats stored as JSON text, as databases export them, become chats; a plain prompt is not what they are."""
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
    """Where a row's own sampling values stand: the body of an OpenAI batch line, else the row itself."""
    body = values.get(column or "body")
    return body if isinstance(body, Mapping) else values


def _prompt_of(name: str, value: object, values: Mapping[str, object], samples: int) -> Prompt:
    if isinstance(value, Mapping):
        return _from_body(name, value, samples)
    if isinstance(value, str):
        return Prompt(shown=_sound(name, value), text=value)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return _from_list(name, value, values)
    raise InputError(f"column {name}: {_show(value)}; expected text, token ids or chat messages")


def _from_list(name: str, items: Sequence[object], values: Mapping[str, object]) -> Prompt:
    if not items:
        raise InputError(f"column {name}: an empty list; expected at least one entry")
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        shown = values.get("prompt")
        return Prompt(shown=shown if isinstance(shown, str) else "", token_ids=tuple(items))  # type: ignore[arg-type]
    entries = [item for item in items if isinstance(item, Mapping)]
    if len(entries) != len(items):
        raise InputError(f"column {name}: holds {_show(items)}; expected token ids, or turns with role and content")
    return _from_conversation(name, entries) if "from" in entries[0] else _from_messages(name, entries)


def _from_body(name: str, body: Mapping[str, object], samples: int) -> Prompt:
    if body.get("n") not in (None, 1, samples):
        raise InputError(f"column {name}.n: {_show(body['n'])}; expected what sampling.n of the job is, {samples}")
    for key, harmless in _HARMLESS.items():
        value = body.get(key)
        if value is not None and value not in harmless:
            raise InputError(f"column {name}.{key}: {_show(value)} is not served; leave it out")
    for key in ("messages", "prompt"):
        if body.get(key) is not None and not isinstance(body[key], Mapping):
            return _prompt_of(f"{name}.{key}", body[key], {}, samples)
    raise InputError(f"column {name}: neither messages nor prompt in it")


def _from_messages(name: str, entries: Sequence[Mapping[str, object]]) -> Prompt:
    messages, shown = [], ""
    for i, entry in enumerate(entries):
        role = entry.get("role")
        if role not in _CHAT_ROLES:
            raise InputError(f"column {name}[{i}].role: {_show(role)}; expected one of {', '.join(_CHAT_ROLES)}")
        message = {key: value for key, value in entry.items() if value is not None}
        if message.get("content") is not None or role != "assistant" or "tool_calls" not in message:
            message["content"] = content_text(f"{name}[{i}].content", message.get("content"))
        messages.append(message)
        shown = str(message["content"]) if role == "user" else shown
    return Prompt(shown=shown, messages=tuple(messages))


def content_text(name: str, content: object) -> str:
    """Text, or the text parts of a list of parts; pictures and sound are refused."""
    if isinstance(content, str):
        return _sound(name, content)
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InputError(f"column {name}: {_show(content)}; expected text")
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") in ("text", None) else None
        if not isinstance(text, str):
            raise InputError(f"column {name}: has a part {_show(part)}; expected parts of type text")
        texts.append(_sound(name, text))
    return "".join(texts)


def _from_conversation(name: str, entries: Sequence[Mapping[str, object]]) -> Prompt:
    """The first human turn, after a system turn where there is one.

    As benchmark loaders do, a conversation with fewer than two turns is no prompt with an answer, and refused.
    """
    turns: list[Message] = []
    for i, entry in enumerate(entries[:2]):
        role = _SHAREGPT_ROLES.get(str(entry.get("from")))
        if role is None or (role == "system" and i > 0):
            break
        value = entry.get("value")
        if not isinstance(value, str):
            raise InputError(f"column {name}[{i}].value: {_show(value)}; expected text")
        turns.append({"role": role, "content": _sound(f"{name}[{i}].value", value)})
        if role == "user":
            break
    if not turns or turns[-1]["role"] != "user":
        begins = ", ".join(str(entry.get("from")) for entry in entries[:2])
        raise InputError(f"column {name}: begins with {begins}; expected a human turn first, or after a system turn")
    if len(entries) < len(turns) + 1:
        raise InputError(f"column {name}: {len(entries)} turn(s); expected the human turn and an answer at least")
    return Prompt(shown=str(turns[-1]["content"]), messages=tuple(turns))


def _sound(name: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        broken = f"\\u{ord(text[error.start]):04x}"
        raise InputError(f"column {name}: half a surrogate pair ({broken}) at {error.start}; expected text") from None
    if not text:
        raise InputError(f"column {name}: empty; expected text")
    return text


def _show(value: object) -> str:
    text = "no value" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

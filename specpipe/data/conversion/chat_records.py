"""Records of chat files: turns of ShareGPT conversations and OpenAI messages, and the prompt in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from specpipe.data.reading.dataset_rows import utf8
from specpipe.data.requests.prompts import content_text
from specpipe.errors import InputError

TurnChoice = Literal["first", "all"]
CHAT_KEYS = ("conversations", "messages")
ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",
    "human": "user",
    "user": "user",
    "prompter": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "observation": "tool",
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "tool_response": "tool",
}
"""Speaker names in common chat files → role in chat templates."""


class ChatTurn(NamedTuple):
    """One turn of a record. `role` is None for a speaker that ROLES does not contain."""

    speaker: str
    role: str | None
    content: object


class ChatPrompt(NamedTuple):
    """A prompt and its answer in the file."""

    messages: tuple[Mapping[str, str], ...]
    """Messages with `role` and `content`."""
    answer: str | None


def chat_turns(record: object) -> list[ChatTurn]:
    """Returns the turns of a record, in order. Raises InputError with a short reason, by which records are counted."""
    entries = record
    if isinstance(record, Mapping):
        entries = next((record[key] for key in CHAT_KEYS if record.get(key) is not None), None)
        if entries is None:
            raise InputError("neither conversations nor messages")
    if isinstance(entries, str):
        entries = _unpacked(entries)
    if not isinstance(entries, Sequence) or not all(isinstance(entry, Mapping) for entry in entries):
        raise InputError("no list of turns")
    turns = [_turn(entry) for entry in entries]
    system = record.get("system") if isinstance(record, Mapping) else None
    if isinstance(system, str) and system and not (turns and turns[0].role == "system"):
        turns.insert(0, ChatTurn("system", "system", system))  # LLaMA-Factory stores it beside the conversation
    if not turns:
        raise InputError("no turns")
    return turns


def _unpacked(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InputError("turns in text that is not JSON") from None


def _turn(entry: Mapping[str, object]) -> ChatTurn:
    speaker = str(entry["from"] if "from" in entry else entry.get("role"))
    content = entry["value"] if "value" in entry else entry.get("content")
    if content is None and entry.get("tool_calls"):
        speaker, content = f"{speaker} (tool_calls)", json.dumps(entry["tool_calls"], ensure_ascii=False, default=float)
        return ChatTurn(speaker, "assistant", content)
    return ChatTurn(speaker, ROLES.get(speaker.lower()), content)


def chat_prompt(turns: Sequence[ChatTurn], take: TurnChoice) -> ChatPrompt:
    """Returns the prompt in a chat. Raises InputError with a short reason, by which records are counted.

    take "first": the first user turn after an optional system turn, of chats with a turn after it, as in benchmarks.
    take "all": every turn before the last answer, which the model then writes.
    """
    count = _first_user(turns) + 1 if take == "first" else len(turns) - (turns[-1].role == "assistant")
    if take == "first" and count == len(turns):
        raise InputError("nothing after the first user turn")
    if not any(turn.role == "user" for turn in turns[:count]):
        raise InputError("no user turn")
    messages = tuple(_message(turn) for turn in turns[:count])
    answered = count < len(turns) and turns[count].role == "assistant"
    return ChatPrompt(messages, _message(turns[count])["content"] if answered else None)


def _first_user(turns: Sequence[ChatTurn]) -> int:
    for i, turn in enumerate(turns):
        if turn.role == "user":
            return i
        if turn.role != "system":
            raise InputError(f"begins with {turn.speaker[:40]}")
    return 0


def _message(turn: ChatTurn) -> dict[str, str]:
    if turn.role is None:
        raise InputError(f"a turn by {turn.speaker[:40]}, which has no known role")
    if turn.content is None or turn.content == "":
        raise InputError(f"an empty turn by {turn.speaker[:40]}")
    try:
        return {"role": turn.role, "content": content_text("value", turn.content)}
    except InputError:
        if isinstance(turn.content, str):
            return {"role": turn.role, "content": utf8(turn.content)}  # a lone surrogate
        raise InputError(f"a turn by {turn.speaker[:40]} that is not text") from None

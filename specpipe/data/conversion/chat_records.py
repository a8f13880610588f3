"""One record of a chat file to a prompt: ShareGPT conversations and OpenAI messages, roles by whatever name."""

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
"""Names that are in use for the speakers of a chat, and the role that chat templates know them by."""


class ChatTurn(NamedTuple):
    """One turn as it stands in the file. `role` is None for a speaker that ROLES does not name."""

    speaker: str
    role: str | None
    content: object


class ChatPrompt(NamedTuple):
    """A prompt, and the answer that the file has for it."""

    messages: tuple[Mapping[str, str], ...]
    """Each with `role` and `content`."""
    answer: str | None


def chat_turns(record: object) -> list[ChatTurn]:
    """The turns of a record, in order. Raises InputError that names what is wrong, short enough to be counted."""
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
        turns.insert(0, ChatTurn("system", "system", system))  # LLaMA-Factory keeps it beside the conversation
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
    """The prompt in a chat. Raises InputError that names what is wrong, short enough to be counted.

    "first": the first user turn, after a system turn where there is one, of chats that go on after it: what benchmarks
    take. "all": everything before the last answer, so that the model writes that one.
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
        raise InputError(f"a turn by {turn.speaker[:40]}, which is no known role")
    if turn.content is None or turn.content == "":
        raise InputError(f"an empty turn by {turn.speaker[:40]}")
    try:
        return {"role": turn.role, "content": content_text("value", turn.content)}
    except InputError:
        if isinstance(turn.content, str):
            return {"role": turn.role, "content": utf8(turn.content)}  # half a surrogate pair
        raise InputError(f"a turn by {turn.speaker[:40]} that is no text") from None

"""Outputs as chats: an OpenAI batch's output file, and ShareGPT conversations."""

from __future__ import annotations

import calendar
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from specpipe.data.requests.prompts import content_text
from specpipe.errors import InputError
from specpipe.evaluation.export.answered_rows import AnsweredRow, answered_rows
from specpipe.evaluation.export.choice_logprobs import choice_logprobs
from specpipe.evaluation.run_outputs import RunOutputs

_CHATS = ("body", "messages", "conversations")
_SPEAKERS = {"user": "human", "assistant": "gpt"}


def write_openai_batch(run: RunOutputs, file: TextIO) -> int:
    """Writes an OpenAI batch's output file: per custom_id a response with one choice per sample, or an error.

    Returns the number of failed output rows.
    """
    failed = 0
    for number, row in enumerate(answered_rows(run, _columns(run))):
        line: dict[str, Any] = {
            "id": f"batch_req_{run.manifest.run_id}_{number}",
            "custom_id": row.outputs[0]["request_id"],
            "response": None,
            "error": None,
        }
        errors = [output["error"] for output in row.outputs if output["finish_reason"] == "error"]
        failed += len(errors)
        if errors:
            line["error"] = {"code": "invalid_request", "message": errors[0]}
        else:
            request_id = f"req_{run.manifest.run_id}_{number}"
            line["response"] = {"status_code": 200, "request_id": request_id, "body": _body(run, row)}
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return failed


def write_sharegpt(run: RunOutputs, file: TextIO) -> int:
    """Writes conversations as one JSON array: the prompt's turns, then the answer. Returns the omitted failed rows."""
    failed, separator = 0, "\n"
    file.write("[")
    for row in answered_rows(run, _columns(run)):
        for output in row.outputs:
            if output["finish_reason"] == "error":
                failed += 1
                continue
            turns = [*_turns(row.values, output["prompt"]), {"from": "gpt", "value": output["generated_text"]}]
            chat = {"id": output["request_id"], "conversations": turns}
            file.write(separator + json.dumps(chat, ensure_ascii=False))
            separator = ",\n"
    file.write("\n]\n")
    return failed


def _columns(run: RunOutputs) -> list[str]:
    named = run.manifest.identity["data.prompt"]
    return [*_CHATS, named] if named and named not in _CHATS else [*_CHATS]


def _body(run: RunOutputs, row: AnsweredRow) -> dict[str, Any]:
    chat, first = bool(_messages(row.values)), row.outputs[0]
    out = sum(output["num_generated_tokens"] for output in row.outputs)
    return {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{first['request_id']}",
        "object": "chat.completion" if chat else "text_completion",
        "created": calendar.timegm(time.strptime(run.manifest.created_at, "%Y-%m-%dT%H:%M:%SZ")),
        "model": str(run.manifest.identity["model.target"]),
        "choices": [_choice(i, output, chat) for i, output in enumerate(row.outputs)],
        "usage": {
            "prompt_tokens": first["num_input_tokens"],
            "completion_tokens": out,
            "total_tokens": first["num_input_tokens"] + out,
        },
    }


def _choice(index: int, output: Mapping[str, Any], chat: bool) -> dict[str, Any]:
    text = output["generated_text"]
    answer = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    logprobs = choice_logprobs(output, chat=chat)
    return {"index": index, **answer, "finish_reason": output["finish_reason"], "logprobs": logprobs}


def _messages(values: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    """Returns the chat of an input row; empty for a plain prompt."""
    body = next((value for value in values.values() if isinstance(value, Mapping)), values)
    for value in body.values():
        if isinstance(value, str) and value.startswith("["):
            try:
                value = json.loads(value)
            except ValueError:
                continue
        if isinstance(value, list) and value and all(isinstance(turn, Mapping) for turn in value):
            return value
    return ()


def _turns(values: Mapping[str, object], prompt: str) -> list[dict[str, str]]:
    """Returns the prompt's turns: all messages, or a conversation up to its first human turn."""
    turns = []
    for turn in _messages(values):
        speaker = str(turn["from"] if "from" in turn else turn.get("role"))
        try:
            text = content_text("content", turn["value"] if "from" in turn else turn.get("content"))
        except InputError:
            text = json.dumps(turn.get("tool_calls"), ensure_ascii=False)
        turns.append({"from": _SPEAKERS.get(speaker, speaker), "value": text})
        if "from" in turn and turns[-1]["from"] == "human":
            break
    return turns or [{"from": "human", "value": prompt}]

"""Log-probabilities of an output row in OpenAI's format. Tokens are named `token_id:7`, because a run stores ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def choice_logprobs(output: Mapping[str, Any], *, chat: bool) -> dict[str, Any] | None:
    """Returns the `logprobs` of a choice in a chat or text completion; None for a row without log-probabilities."""
    if output["generated_logprobs"] is None:
        return None
    ids, own = output["generated_token_ids"], output["generated_logprobs"]
    tops = [
        list(zip(tokens, logprobs, strict=True))
        for tokens, logprobs in zip(output["top_token_ids"], output["top_token_logprobs"], strict=True)
    ]
    if not chat:
        return {
            "tokens": [_name(token) for token in ids],
            "token_logprobs": own,
            "top_logprobs": [{_name(token): logprob for token, logprob in top} for top in tops],
        }
    content = [
        _entry(token, logprob) | {"top_logprobs": [_entry(*pair) for pair in top]}
        for token, logprob, top in zip(ids, own, tops, strict=True)
    ]
    return {"content": content, "refusal": None}


def _name(token: int) -> str:
    return f"token_id:{token}"


def _entry(token: int, logprob: float) -> dict[str, Any]:
    return {"token": _name(token), "logprob": logprob, "bytes": None}

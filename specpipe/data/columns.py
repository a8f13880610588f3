"""Names of columns. No imports: a job file is checked against them before anything is read."""

from __future__ import annotations

LOGPROB_COLUMNS = ("generated_logprobs", "top_token_ids", "top_token_logprobs")
"""The columns of an output part that hold nulls, where a row asked for no log-probabilities."""

OUTPUT_COLUMNS = (
    "request_id",
    "prompt",
    "generated_text",
    "generated_token_ids",
    "num_input_tokens",
    "num_generated_tokens",
    "finish_reason",
    "error",
    "draft_tokens",
    "accepted_tokens",
    "seed",
    "sample",
    *LOGPROB_COLUMNS,
)
"""Columns that every output part has, in this order, before the user's own."""

PROMPT_COLUMNS = ("body", "prompt_token_ids", "messages", "conversations", "prompt")
"""Columns that can hold a prompt, first match wins."""

ID_COLUMNS = ("request_id", "custom_id", "id")
"""Columns that can name a row, first match wins."""

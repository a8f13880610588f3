"""Names of input and output columns. Imports nothing, so that validation of a job file loads no other part of data."""

from __future__ import annotations

LOGPROB_COLUMNS = ("generated_logprobs", "top_token_ids", "top_token_logprobs")
"""Output columns that are null for rows without the sampling parameter `logprobs`."""

SCORE_COLUMNS = ("scores", "score_logprobs")
"""Output columns that are null for rows that generate; the second one also without the sampling parameter
`logprobs`."""

ACCEPTED_PER_ROUND = "accepted_per_round"
"""Output column that is null for rows without drafts."""

OUTPUT_COLUMNS = (
    "request_id",
    "prompt",
    "generated_text",
    "generated_token_ids",
    "num_input_tokens",
    "num_generated_tokens",
    "finish_reason",
    "error",
    "cached_tokens",
    "draft_tokens",
    "accepted_tokens",
    "followed_tokens",
    ACCEPTED_PER_ROUND,
    "seed",
    "sample",
    *LOGPROB_COLUMNS,
    *SCORE_COLUMNS,
)
"""Columns of every output part, in this order. The columns of output.keep_columns follow."""

ADDED_COLUMNS = ("followed_tokens", ACCEPTED_PER_ROUND)
"""Output columns that parts of older versions lack, where they stand for 0 or null."""

PROMPT_COLUMNS = ("body", "prompt_token_ids", "messages", "conversations", "prompt")
"""Input columns that can hold a prompt. The first one with a value is used."""

CONTINUATIONS = "continuations"
"""Input column with the texts (or token ids) that a score row scores."""

ANSWER_COLUMNS = ("generated_text", "answer", "response", "completion", "output", "text")
"""Columns that can hold an earlier answer in a dataset of `speculation.replay`. The first one with a text is used."""

ID_COLUMNS = ("request_id", "custom_id", "id")
"""Input columns that can hold a row's identifier. The first one with a value is used."""

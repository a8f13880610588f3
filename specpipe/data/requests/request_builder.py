"""From a row to a Request, or to the Completion that says why it cannot be one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from specpipe.core import Completion, Request, SamplingParams, Shard
from specpipe.data.columns import ID_COLUMNS, PROMPT_COLUMNS
from specpipe.data.reading.dataset_rows import Row, utf8
from specpipe.data.requests.prompts import Message, Prompt, find_prompt, request_body
from specpipe.data.requests.row_overrides import OVERRIDES, integer, row_sampling
from specpipe.data.requests.row_samples import hash_seed
from specpipe.errors import InputError, SpecpipeError


class EncodedProtocol(Protocol):
    """A prompt as the model reads it: its text, chat template applied, and its token ids."""

    @property
    def text(self) -> str: ...

    @property
    def token_ids(self) -> tuple[int, ...]: ...


class EncoderProtocol(Protocol):
    """Text or chat messages to token ids; adds the job's system prompt. The target's own is in specpipe.models."""

    def encode(self, prompt: str | Sequence[Message]) -> EncodedProtocol:
        """Raises InputError for a prompt that cannot be encoded."""

    @property
    def bos_token_id(self) -> int | None:
        """The token that prompts begin with, where the model has one."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a prompt, special tokens too."""


def row_seed(job_seed: int, row: int) -> int:
    """63 bits from the job's seed and a row's position in the dataset: the same whatever the shards are."""
    return hash_seed(job_seed, row)


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestBuilder:
    """Turns the rows of one job into requests."""

    encoder: EncoderProtocol
    sampling: SamplingParams
    """For rows that bring no values of their own."""
    job_seed: int
    max_model_len: int
    """Longest prompt + output in tokens. A row's max_new_tokens is cut to what its prompt leaves."""
    vocab_size: int
    prompt_column: str | None = None
    truncate: bool = False
    """Whether a prompt that is too long loses its beginning; otherwise it is an error."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Every input column that can make a difference: what `read_rows` needs to read."""
        return input_columns(self.prompt_column)

    def build(self, row: Row, shard: Shard) -> Request | Completion:
        """A Request, or a Completion with finish_reason "error" that says what is wrong and where.

        Raises ModelError where the job asks of the model what it cannot do at all, such as chats without a template.
        """
        position = row.index_in_file - shard.start
        request = Request(
            request_id=str(shard.first_row + position),
            shard=shard.index,
            row=position,
            prompt="",
            prompt_token_ids=(),
            sampling=self.sampling,
            seed=row_seed(self.job_seed, shard.first_row + position),
        )
        try:
            if row.values is None:
                raise InputError(row.error)
            request = dataclasses.replace(request, request_id=_identifier(row.values) or request.request_id)
            prompt = find_prompt(row.values, self.prompt_column, shard.samples)
            request = dataclasses.replace(request, prompt=utf8(prompt.shown))
            sampling = row_sampling(request_body(row.values, self.prompt_column), self.sampling, self.vocab_size)
            seed = request.seed if sampling.seed is None else sampling.seed
            text, token_ids = self._encode(prompt)
            if self.truncate:
                text, token_ids = self._truncated(text, token_ids, sampling.max_new_tokens)
            request = dataclasses.replace(request, prompt=text)
            sampling = self._fit(sampling, len(token_ids))
            return dataclasses.replace(request, prompt_token_ids=token_ids, sampling=sampling, seed=seed)
        except InputError as error:
            message = utf8(f"{shard.file}, row {row.index_in_file}: {error}")
            return Completion(request=request, finish_reason="error", error=message)

    def _encode(self, prompt: Prompt) -> tuple[str, tuple[int, ...]]:
        text, token_ids = utf8(prompt.shown), prompt.token_ids
        if token_ids is None:
            encoded = self._encoded(prompt.messages if prompt.text is None else prompt.text)
            text, token_ids = utf8(encoded.text), encoded.token_ids
        if not token_ids:
            raise InputError("the prompt has no tokens; expected at least one")
        if outside := [t for t in token_ids if not 0 <= t < self.vocab_size]:
            raise InputError(f"token id {outside[0]} in the prompt; expected 0 to {self.vocab_size - 1}")
        return text, token_ids

    def _encoded(self, prompt: str | Sequence[Message]) -> EncodedProtocol:
        try:
            return self.encoder.encode(prompt)
        except SpecpipeError:
            raise
        except Exception as error:  # a template or tokenizer that fails on this row must not cost the others
            raise InputError(f"the prompt cannot be encoded: {type(error).__name__}: {error}") from error

    def _truncated(self, text: str, token_ids: tuple[int, ...], new_tokens: int) -> tuple[str, tuple[int, ...]]:
        """The end of a prompt, so that new_tokens fit behind it, but half of max_model_len at least."""
        room = max(self.max_model_len - new_tokens, self.max_model_len // 2)
        if len(token_ids) <= room:
            return text, token_ids
        bos = token_ids[:1] if token_ids[0] == self.encoder.bos_token_id else ()
        cut = (*bos, *token_ids[len(token_ids) - room + len(bos) :])
        return utf8(self.encoder.decode(cut)), cut

    def _fit(self, sampling: SamplingParams, prompt_tokens: int) -> SamplingParams:
        room = self.max_model_len - prompt_tokens
        if room < 1:
            raise InputError(
                f"the prompt has {prompt_tokens} tokens; expected at most {self.max_model_len - 1} "
                f"(max_model_len {self.max_model_len}, less one to generate); data.on_too_long: truncate_left cuts it"
            )
        if sampling.max_new_tokens <= room:
            return sampling
        return dataclasses.replace(sampling, max_new_tokens=room)


def input_columns(prompt_column: str | None) -> tuple[str, ...]:
    """Every input column that can make a difference to a row, and so to a shard's hash."""
    own = (prompt_column,) if prompt_column else ()
    return tuple(dict.fromkeys((*own, *PROMPT_COLUMNS, *ID_COLUMNS, *OVERRIDES)))


def expected_identity(row: Row, position: int, *, job_seed: int, prompt_column: str | None) -> tuple[str, set[int]]:
    """The request_id of a row's output, and the seeds that may stand beside it. `position` is that in the dataset."""
    seeds = {row_seed(job_seed, position)}
    values = row.values or {}
    try:
        name = _identifier(values) or str(position)
    except InputError:
        return str(position), seeds
    with suppress(InputError):
        own = request_body(values, prompt_column).get("seed")
        if own is not None:
            seeds.add(integer(own))  # a row that failed before its seed was read has the derived one
    return name, seeds


def _identifier(values: Mapping[str, object]) -> str:
    """The row's own id, "" where it has none. Ids need not be unique."""
    for column in ID_COLUMNS:
        value = values.get(column)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise InputError(f"column {column}: {value!r:.60}; expected text or a whole number")
        return utf8(str(value))
    return ""

"""Request builder: an input row becomes a Request, or a Completion with the error of the row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from specpipe.core import Completion, Request, SamplingParams, Shard
from specpipe.data.columns import CONTINUATIONS, ID_COLUMNS, PROMPT_COLUMNS
from specpipe.data.reading.dataset_rows import Row, utf8
from specpipe.data.requests.continuations import Continuations, find_continuations, has_prompt
from specpipe.data.requests.prompts import NO_EFFECT, Message, Prompt, find_prompt, request_body
from specpipe.data.requests.row_overrides import OVERRIDES, integer, row_sampling
from specpipe.data.requests.row_samples import hash_seed
from specpipe.errors import InputError, SpecpipeError


class EncodedProtocol(Protocol):
    """A prompt in the model's form."""

    @property
    def text(self) -> str:
        """Text of the prompt, after the chat template."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Token ids of the prompt."""


class ScoredProtocol(EncodedProtocol, Protocol):
    """A prompt and texts behind it, in the model's form."""

    @property
    def continuations(self) -> tuple[tuple[int, ...], ...]:
        """Token ids of each text."""


Encoded = TypeVar("Encoded", bound=EncodedProtocol)


class EncoderProtocol(Protocol):
    """Encoder of text and chat messages; models.tokenizer.PromptEncoder implements it for the target's tokenizer."""

    def encode(self, prompt: str | Sequence[Message]) -> EncodedProtocol:
        """Returns text and token ids. Raises InputError for a prompt that cannot be encoded."""

    def encode_continuations(self, prompt: str | Sequence[Message], continuations: Sequence[str]) -> ScoredProtocol:
        """Returns the prompt, and the token ids of texts behind it. Raises InputError as `encode`."""

    def encode_answer(self, text: str) -> tuple[int, ...]:
        """Returns the token ids of a text that follows a prompt, without special tokens."""

    @property
    def prefix_token_id(self) -> int:
        """Token that stands for an empty prompt. Raises InputError where the model has none."""

    @property
    def bos_token_id(self) -> int | None:
        """Beginning-of-sequence token; None if the model has none."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of a prompt, special tokens included."""


def row_seed(job_seed: int, row: int) -> int:
    """Returns a 63-bit seed of the job's seed and a row's position in the dataset; independent of sharding."""
    return hash_seed(job_seed, row)


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestBuilder:
    """Builds requests from the rows of one job."""

    encoder: EncoderProtocol
    sampling: SamplingParams
    """Values for rows without their own."""
    job_seed: int
    max_model_len: int
    """Longest prompt + output in tokens. Limits a row's max_new_tokens to the tokens that its prompt leaves."""
    vocab_size: int
    prompt_column: str | None = None
    truncate: bool = False
    """Truncates a prompt that is too long at its beginning; False makes it an error."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Input columns that can change a request; `read_rows` needs only these."""
        return input_columns(self.prompt_column)

    def build(self, row: Row, shard: Shard) -> Request | Completion:
        """Returns a Request, or a Completion with finish_reason "error" whose error names file, row and column.

        Raises ModelError where the model cannot serve the job at all, such as chats without a chat template.
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
            if (continuations := find_continuations(row.values)) is not None:
                return self._score_row(request, row.values, shard.samples, continuations)
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

    def _score_row(
        self, request: Request, values: Mapping[str, object], samples: int, continuations: Continuations
    ) -> Request:
        """Returns the request of a row with continuations. Raises InputError. samples: outputs per row."""
        prompt = Prompt(shown="", text="")
        if has_prompt(values, self.prompt_column):
            prompt = find_prompt(values, self.prompt_column, samples)
        sampling = row_sampling(request_body(values, self.prompt_column), self.sampling, self.vocab_size)
        text, token_ids, scored = self._encode_scored(prompt, continuations)
        for ids in (token_ids, *scored):
            self._check_ids(ids)
        longest = len(token_ids) + max(map(len, scored))
        if longest > self.max_model_len + 1 and prompt.text != "" and not self.truncate:
            raise InputError(
                f"prompt and continuation have {longest} tokens; expected at most {self.max_model_len + 1} "
                f"(max_model_len {self.max_model_len}; the last one is not read), or data.on_too_long: truncate_left"
            )
        return dataclasses.replace(
            request,
            prompt=text,
            prompt_token_ids=token_ids,
            sampling=SamplingParams(logprobs=sampling.logprobs),
            seed=request.seed if sampling.seed is None else sampling.seed,
            continuations=scored,
        )

    def _encode_scored(
        self, prompt: Prompt, continuations: Continuations
    ) -> tuple[str, tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """Returns text and token ids of the prompt, and the token ids of each continuation."""
        texts = [item for item in continuations if isinstance(item, str)]
        if texts:
            if prompt.token_ids is not None:
                raise InputError(
                    f"column {CONTINUATIONS}: texts behind a prompt of token ids; expected lists of token ids"
                )
            encoded = self._encoded(partial(self.encoder.encode_continuations, continuations=texts), prompt)
            return utf8(encoded.text), encoded.token_ids, encoded.continuations
        ids = tuple(item for item in continuations if not isinstance(item, str))
        if prompt.text == "":
            return "", (self.encoder.prefix_token_id,), ids
        return (*self._encode(prompt), ids)

    def _encode(self, prompt: Prompt) -> tuple[str, tuple[int, ...]]:
        text, token_ids = utf8(prompt.shown), prompt.token_ids
        if token_ids is None:
            encoded = self._encoded(self.encoder.encode, prompt)
            text, token_ids = utf8(encoded.text), encoded.token_ids
        if not token_ids:
            raise InputError("the prompt has no tokens; expected at least one")
        self._check_ids(token_ids)
        return text, token_ids

    def _check_ids(self, token_ids: Sequence[int]) -> None:
        if outside := [t for t in token_ids if not 0 <= t < self.vocab_size]:
            raise InputError(f"token id {outside[0]} in the prompt; expected 0 to {self.vocab_size - 1}")

    def _encoded(self, encode: Callable[[str | Sequence[Message]], Encoded], prompt: Prompt) -> Encoded:
        """Calls a method of the encoder with the text or chat of a prompt."""
        try:
            return encode(prompt.messages if prompt.text is None else prompt.text)
        except SpecpipeError:
            raise
        except Exception as error:  # a failure of template or tokenizer is an error of this row only
            raise InputError(f"the prompt cannot be encoded: {type(error).__name__}: {error}") from error

    def _truncated(self, text: str, token_ids: tuple[int, ...], new_tokens: int) -> tuple[str, tuple[int, ...]]:
        """Returns the end of a prompt: max_model_len - new_tokens tokens, at least half of max_model_len."""
        available = max(self.max_model_len - new_tokens, self.max_model_len // 2)
        if len(token_ids) <= available:
            return text, token_ids
        bos = token_ids[:1] if token_ids[0] == self.encoder.bos_token_id else ()
        cut = (*bos, *token_ids[len(token_ids) - available + len(bos) :])
        return utf8(self.encoder.decode(cut)), cut

    def _fit(self, sampling: SamplingParams, prompt_tokens: int) -> SamplingParams:
        available = self.max_model_len - prompt_tokens
        if available < 1:
            raise InputError(
                f"the prompt has {prompt_tokens} tokens; expected at most {self.max_model_len - 1} "
                f"(max_model_len {self.max_model_len} less one generated token), or data.on_too_long: truncate_left"
            )
        if sampling.max_new_tokens <= available:
            return sampling
        return dataclasses.replace(sampling, max_new_tokens=available)


def input_columns(prompt_column: str | None) -> tuple[str, ...]:
    """Returns the input columns that can change a request, and so a shard's hash. prompt_column: data.prompt."""
    own = (prompt_column,) if prompt_column else ()
    return tuple(dict.fromkeys((*own, *PROMPT_COLUMNS, CONTINUATIONS, *ID_COLUMNS, *OVERRIDES, *NO_EFFECT, "n")))


def expected_identity(row: Row, position: int, *, job_seed: int, prompt_column: str | None) -> tuple[str, set[int]]:
    """Returns the request_id of a row's output and its possible seeds. position: the row's position in the dataset."""
    seeds = {row_seed(job_seed, position)}
    values = row.values or {}
    try:
        name = _identifier(values) or str(position)
    except InputError:
        return str(position), seeds
    with suppress(InputError):
        own = request_body(values, prompt_column).get("seed")
        if own is not None:
            seeds.add(integer(own))  # a row that failed before its seed was read has the derived seed
    return name, seeds


def _identifier(values: Mapping[str, object]) -> str:
    """Returns the row's identifier, "" if it has none. Identifiers need not be unique."""
    for column in ID_COLUMNS:
        value = values.get(column)
        if value is None:
            continue
        if isinstance(value, float):
            raise InputError(
                f'column {column}: {value!r:.60}; expected text or a whole number, such as "{value!r:.20}" in quotes'
            )
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise InputError(f"column {column}: {value!r:.60}; expected text or a whole number")
        if utf8(str(value)) != str(value):  # two identifiers could become one
            raise InputError(f"column {column}: {value!r:.60} has a lone surrogate; expected valid Unicode text")
        return str(value)
    return ""

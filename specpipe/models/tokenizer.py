"""Tokenizers: loading, end-of-sequence ids, and encoding of prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specpipe.errors import InputError, ModelError
from specpipe.models.detokenizer import Detokenizer
from specpipe.models.source import ModelSource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Detokenizer", "EncodedPrompt", "PromptEncoder", "eos_token_ids", "load_tokenizer"]

Message = Mapping[str, object]


def load_tokenizer(
    source: ModelSource, *, trust_remote_code: bool = False, chat_template: str | None = None
) -> PreTrainedTokenizerBase:
    """Loads the model's tokenizer. chat_template: path of a Jinja template that replaces its own. Raises ModelError."""
    from transformers import AutoTokenizer

    # The embedded pair shares one tokenizer, stored with the target.
    folder = Path(source.path).parent / "target" if source.name.startswith("builtin:") else source.path
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ModelError(
            f"model {source.name}: no tokenizer can be loaded from {source.path}: {error}; expected the files that "
            "tokenizer.save_pretrained() writes"
        ) from error
    if chat_template is not None:
        try:
            tokenizer.chat_template = Path(chat_template).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"model.chat_template: {chat_template} cannot be read: {error}") from error
    _disable_truncation_and_padding(tokenizer)
    result: PreTrainedTokenizerBase = tokenizer
    return result


def _disable_truncation_and_padding(tokenizer: Any) -> None:
    """Removes truncation and padding that some tokenizer.json files set.

    transformers would remove them at the first call, which fails ("Already borrowed") while another thread encodes.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()


def eos_token_ids(source: ModelSource, tokenizer: Any = None) -> tuple[int, ...]:
    """Returns end-of-sequence ids, ascending: of config.json and generation_config.json, else of the tokenizer."""
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        path = Path(source.path) / name
        stated = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
        found.update([stated] if isinstance(stated, int) else stated or ())
    if not found and getattr(tokenizer, "eos_token_id", None) is not None:
        found.add(tokenizer.eos_token_id)
    return tuple(sorted(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedPrompt:
    """A prompt in the model's form."""

    text: str
    """Text of the prompt; for chats after the chat template."""
    token_ids: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...] = ()
    """Token ids of texts behind the prompt."""


class PromptEncoder:
    """Encodes plain prompts and chats. The result has at most one beginning-of-sequence token at its start."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        system_prompt: str | None = None,
        template_kwargs: Mapping[str, object] | None = None,
        name: str = "the target",
    ) -> None:
        """system_prompt: system turn for chats without one; with it, a plain prompt becomes a user turn.

        template_kwargs: further arguments of the chat template. name: the model's name for messages. Raises ModelError
        for a system prompt where the tokenizer has no chat template.
        """
        self._tokenizer, self._system_prompt, self._name = tokenizer, system_prompt, name
        self._template_kwargs = dict(template_kwargs or {})
        if system_prompt is not None:
            self._require_template()

    def encode(self, prompt: str | Sequence[Message]) -> EncodedPrompt:
        """Returns text and token ids. prompt: text, or chat messages with `role` and `content`.

        Raises InputError for a prompt without tokens or one that the template rejects, ModelError for messages if the
        tokenizer has no chat template.
        """
        if isinstance(prompt, str) and self._system_prompt is None:
            text, ids = prompt, self._ids(prompt, special=True)
        else:
            text = self._apply_template([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt)
            ids = self._ids(text, special=False)
        if not ids:
            raise InputError("the prompt is empty; expected at least one token")
        return EncodedPrompt(text=text, token_ids=ids)

    def encode_continuations(self, prompt: str | Sequence[Message], continuations: Sequence[str]) -> EncodedPrompt:
        """Returns a prompt and the token ids of texts behind it.

        Prompt and text are encoded together and split where the tokens of the prompt end, and spaces at the end of the
        prompt count as part of the text, as in lm-eval (`TemplateLM._encode_pair`). An empty prompt becomes
        `prefix_token_id`. Raises InputError for a text without tokens of its own, and as `encode`.
        """
        is_plain = isinstance(prompt, str) and self._system_prompt is None
        if prompt == "" and is_plain:
            ids: tuple[int, ...] = (self.prefix_token_id,)
            behind = [self._ids(text, special=False) for text in continuations]
            behind = [found[1:] if found[:1] == ids else found for found in behind]
            text = ""
        else:
            text = self.encode(prompt).text
            stripped = text.rstrip()
            ids = self._ids(stripped, special=is_plain)
            behind = [self._ids(text + more, special=is_plain)[len(ids) :] for more in continuations]
        for i, found in enumerate(behind):
            if not found:
                raise InputError(f"continuation {i} ({continuations[i]!r:.40}) adds no token to the prompt")
        return EncodedPrompt(text=text, token_ids=ids or (self.prefix_token_id,), continuations=tuple(behind))

    def encode_answer(self, text: str) -> tuple[int, ...]:
        """Returns the token ids of a text that follows a prompt, without special tokens."""
        return self._ids(text, special=False)

    @property
    def prefix_token_id(self) -> int:
        """Token that stands for an empty prompt: beginning of sequence, else end of sequence. Raises InputError."""
        found = self._tokenizer.bos_token_id
        found = self._tokenizer.eos_token_id if found is None else found
        if found is None:
            raise InputError("the prompt is empty, and the tokenizer has no token for the beginning or end of a text")
        return int(found)

    @property
    def has_chat_template(self) -> bool:
        """True if chats can be encoded."""
        return bool(self._tokenizer.chat_template)

    @property
    def bos_token_id(self) -> int | None:
        """Beginning-of-sequence token; None if the model has none."""
        bos: int | None = self._tokenizer.bos_token_id
        return bos

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of a prompt, special tokens included."""
        text: str = self._tokenizer.decode(list(token_ids), clean_up_tokenization_spaces=False)
        return text

    def _ids(self, text: str, *, special: bool) -> tuple[int, ...]:
        # Templates write their own special tokens. A plain prompt that was copied from one may also begin with BOS.
        # verbose=False: max_model_len limits prompts, so the tokenizer's warning about long ones would mislead.
        ids: list[int] = self._tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
        bos = self._tokenizer.bos_token_id
        if bos is not None and len(ids) > 1 and ids[0] == ids[1] == bos:
            ids = ids[1:]
        return tuple(ids)

    def _apply_template(self, messages: Sequence[Message]) -> str:
        from jinja2 import TemplateError

        self._require_template()
        if not messages:
            raise InputError("the chat has no messages; expected at least one with role and content")
        if self._system_prompt is not None and messages[0].get("role") != "system":
            messages = [{"role": "system", "content": self._system_prompt}, *messages]
        if any(message.get("tool_calls") for message in messages) and not self._knows_tools:
            raise InputError(
                f"the chat has tool_calls, which the chat template of {self._name} leaves out; choose a model whose "
                "template knows tools, or give one with model.chat_template"
            )
        try:
            text: str = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                **{"add_generation_prompt": True, **self._template_kwargs, "tokenize": False},
            )
        except (TemplateError, TypeError, KeyError) as error:
            raise InputError(f"the chat template of {self._name} rejects these messages: {error}") from error
        return text

    @property
    def _knows_tools(self) -> bool:
        return "tool_calls" in str(self._tokenizer.chat_template)

    def _require_template(self) -> None:
        if not self.has_chat_template:
            raise ModelError(
                f"{self._name} has no chat template, but the job has chat messages or a system prompt; choose an "
                "instruction-tuned model, give a template with model.chat_template, or use plain prompts"
            )

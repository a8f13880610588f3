"""The pair's tokenizer: byte-level BPE (encodes any UTF-8 text), one token per digit, ChatML turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from jobs.tiny_pair.phrasing import Exchange

VOCAB_SIZE = 1536
END_OF_TEXT, TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def render(talked: Sequence[Exchange], system: str = "") -> str:
    """Returns the text of a conversation, equal to the chat template's."""
    messages = [("system", system)] if system else []
    for human, gpt in talked:
        messages += [("user", human), ("assistant", gpt)]
    return "".join(f"{TURN}{role}\n{text}{END_OF_TURN}\n" for role, text in messages)


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Trains a byte-level BPE of VOCAB_SIZE tokens. Special tokens have ids 0, 1 and 2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT, TURN, END_OF_TURN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> Any:
    """Writes the files that AutoTokenizer loads. Returns the tokenizer. max_length: tokens."""
    from transformers import PreTrainedTokenizerFast  # slow to import, and not needed by the packing workers

    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN],
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
    wrapped.save_pretrained(folder)
    return wrapped

"""Phrase templates (`{a|b}` picks an alternative, `$name` inserts a value), and the split of a text."""

from __future__ import annotations

import hashlib
import re
from random import Random
from typing import Literal

Split = Literal["train", "heldout"]
Exchange = tuple[str, str]
"""A human turn and the assistant's answer."""

_CHOICE = re.compile(r"\{([^{}]*)\}")
_FIELD = re.compile(r"\$([A-Za-z]+)")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeio])")
_HELDOUT_SHARE = 16


def split_of(text: str) -> Split:
    """Returns the split of a text. One in 16 is held out, by its SHA-256, independent of seed and order."""
    return "heldout" if hashlib.sha256(text.encode()).digest()[0] % _HELDOUT_SHARE == 0 else "train"


def say(rng: Random, template: str, **fields: object) -> str:
    """Fills `$fields`, picks `{alternatives}` from the innermost outwards, and corrects the article in 'a orange'."""
    text = _FIELD.sub(lambda match: str(fields[match[1]]), template)
    while "{" in text:
        text = _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), text)
    return _ARTICLE.sub(r"\1n ", text)


def listing(items: list[str]) -> str:
    """Joins words: 'a', 'a and b', 'a, b and c'."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def article(noun: str) -> str:
    """Returns the noun with 'a' or 'an'."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"

"""Fingerprint of a model's vocabulary, by which token ids of two models are recognised as the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from specpipe.models.source import ModelSource

_OTHER_FILES = ("vocab.json", "tokenizer.model", "spiece.model", "vocab.txt")


def vocabulary_fingerprint(source: ModelSource) -> str:
    """Returns 16 hexadecimal digits of the vocabulary's tokens and ids; "" where no file holds them.

    Added tokens do not count: a chat model has more of them than its base model, and the same vocabulary.
    """
    folder = Path(source.path)
    if source.name.startswith("builtin:"):
        folder = folder.parent / "target"  # the embedded pair shares one tokenizer
    try:
        data = json.loads((folder / "tokenizer.json").read_bytes())["model"]["vocab"]
        return _digest(json.dumps(data, sort_keys=True).encode())
    except (OSError, ValueError, KeyError, TypeError):
        pass
    for path in (*(folder / name for name in _OTHER_FILES), *sorted(folder.glob("*.tiktoken"))):
        if path.is_file():
            return _digest(path.read_bytes())
    return ""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]

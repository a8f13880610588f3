"""The embedded pair `builtin:tiny`, its corpus and the script that trains it (docs/tiny-pair.md)."""

from pathlib import Path

TARGET = Path(__file__).parent / "target"
"""Folder that transformers loads: the target, the tokenizer and the chat template of both."""
DRAFT = Path(__file__).parent / "draft"
"""Folder that transformers loads: the draft. It has no tokenizer of its own."""

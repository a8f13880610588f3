"""Files of the embedded pair `builtin:tiny`. `jobs/tiny_pair` in a checkout generates them (docs/tiny-pair.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

TARGET = Path(__file__).parent / "target"
"""Folder of the target model, in transformers' format, with the tokenizer and chat template of both models."""
DRAFT = Path(__file__).parent / "draft"
"""Folder of the draft model, in transformers' format. It has no tokenizer of its own."""
_SAMPLE_QUESTIONS = Path(__file__).parent / "sample_questions.json"


def sample_questions() -> list[str]:
    """Returns the first question of each conversation in jobs/data/sharegpt_sample.parquet, in its order."""
    return cast(list[str], json.loads(_SAMPLE_QUESTIONS.read_text(encoding="utf-8")))

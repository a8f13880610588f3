"""What things are called, and how large they may be."""

from __future__ import annotations

from typing import Literal

FinishReason = Literal["stop", "length", "error"]
Method = Literal["standard", "block", "invariant", "synthetic"]
ProposerName = Literal["draft", "ngram", "none"]
ProposerChoice = Literal["draft", "ngram", "none", "auto"]
Phase = Literal["load", "prefill", "draft", "verify", "sample", "host"]

PHASES: tuple[Phase, ...] = ("load", "prefill", "draft", "verify", "sample", "host")
MAX_DRAFT_TOKENS = 32  # the widest round that the kernels take

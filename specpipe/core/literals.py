"""Names that job files, telemetry and code share, as literal types."""

from __future__ import annotations

from typing import Literal

DeviceName = Literal["cpu", "cuda"]
"""Device of a worker."""
DeviceChoice = Literal["auto", "cpu", "cuda"]
"""Device as a job file names it; `resolve_device` replaces "auto"."""
DtypeName = Literal["float32", "bfloat16", "float16"]
"""torch dtype of weights and activations."""
DtypeChoice = Literal["auto", "float32", "bfloat16", "float16"]
"""dtype as a job file names it; `resolve_dtype` replaces "auto"."""
QuantizeChoice = Literal["none", "fp8"]
"""Number format that the weights of linear layers are rounded to at load; "none" keeps the checkpoint's."""
KVDtypeChoice = Literal["auto", "fp8"]
"""Number format of KV pages; "auto" is that of the activations."""
FinishReason = Literal["stop", "length", "scored", "error"]
"""Why a row ended: a stop token or string, a length limit, given texts that were scored, or an error."""
Method = Literal["standard", "block", "invariant", "synthetic"]
"""Verification method of a run."""
ProposerName = Literal["draft", "ngram", "replay", "joined", "none"]
"""Proposer of one round; "none" for plain decoding. "replay" follows earlier answers; "joined" does where there is
text to follow, and drafts with the draft model elsewhere."""
ProposerChoice = Literal["draft", "ngram", "replay", "none", "auto"]
"""Proposer as a job file names it; with "auto" the plan chooses one for each round."""
DraftSource = Literal["draft", "ngram", "reference", "corpus"]
"""Origin of a row's drafts in one round: the draft model, the row's own text, its earlier answer, or other answers."""
AppliesTo = Literal["batch", "new"]
"""Rows without drafts above the threshold of `queue_threshold`: all that run, or those that get a slot meanwhile."""
Phase = Literal["load", "prefill", "draft", "verify", "sample", "host"]
"""Phase that telemetry charges time to."""

DRAFT_SOURCES: tuple[DraftSource, ...] = ("draft", "ngram", "reference", "corpus")
PHASES: tuple[Phase, ...] = ("load", "prefill", "draft", "verify", "sample", "host")

"""What the host decides about a round; everything else is device data. A CUDA graph is captured for each key."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from specpipe.core import ProposerName, SamplingParams
from specpipe.engine.state.logprobs import NO_LOGPROBS, logprobs_width


class RoundKey(NamedTuple):
    """By value: rounds of equal keys and batch sizes are one graph."""

    k: int
    proposer: ProposerName
    """"none" exactly where k is 0."""
    all_greedy: bool
    truncated: bool
    width: int
    """Block-table columns that any row of the round can reach."""
    held: bool = False
    """False is a promise that every row has its min_tokens."""
    penalised: bool = False
    """False is a promise that no row has penalties."""
    logprobs: int = NO_LOGPROBS
    """How many of the most likely tokens to tell beside each emitted token's log-probability; or NO_LOGPROBS."""

    @classmethod
    def of(
        cls, asked: Collection[SamplingParams], proposer: ProposerName, k: int, *, width: int, held: bool = False
    ) -> RoundKey:
        """The narrowest that rows fit which ask for these. K is 0 without a proposer, and none drafts where K is 0."""
        drafted = proposer != "none" and k > 0
        return cls(
            k=k if drafted else 0,
            proposer=proposer if drafted else "none",
            all_greedy=all(sampling.greedy for sampling in asked),
            truncated=any(sampling.truncates for sampling in asked),
            width=width,
            held=held,
            penalised=any(sampling.penalises for sampling in asked),
            logprobs=max(logprobs_width(sampling.logprobs) for sampling in asked),
        )


def keys_of(sampling: SamplingParams, choices: Iterable[tuple[ProposerName, int]], *, width: int) -> list[RoundKey]:
    """All that rows which ask for this meet with these proposers and K, in this order."""
    held = (False, True) if sampling.min_tokens else (False,)
    keys = (RoundKey.of([sampling], *choice, width=width, held=h) for choice in choices for h in held)
    return list(dict.fromkeys(keys))

"""The host's decisions about a round; everything else is device data. A CUDA graph is captured for each key."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from specpipe.core import ProposerName, SamplingParams
from specpipe.engine.state.logprobs import NO_LOGPROBS, alternatives_for


class RoundKey(NamedTuple):
    """Compared by value: rounds of equal keys and batch sizes share one graph."""

    k: int
    """Draft tokens of a row, at most."""
    proposer: ProposerName
    """"none" if and only if k is 0."""
    all_greedy: bool
    """True only if every row is greedy."""
    truncated: bool
    """False only if no row truncates its distribution (top_k, top_p, min_p)."""
    width: int
    """Block-table columns that any row of the round can reach."""
    below_min_tokens: bool = False
    """False only if every row has its min_tokens."""
    penalised: bool = False
    """False only if no row has penalties."""
    logprobs: int = NO_LOGPROBS
    """Alternatives to report beside each emitted token's log-probability; NO_LOGPROBS to report none of both."""
    shared: bool = False
    """True if groups of rows read their shared pages together (`PrefixGroups`)."""

    @classmethod
    def of(
        cls,
        sampling: Collection[SamplingParams],
        proposer: ProposerName,
        k: int,
        *,
        width: int,
        below_min_tokens: bool = False,
        shared: bool = False,
    ) -> RoundKey:
        """Returns the most specialised key that is valid for rows with these sampling parameters.

        Proposer "none" and k = 0 imply each other.
        """
        drafted = proposer != "none" and k > 0
        return cls(
            k=k if drafted else 0,
            proposer=proposer if drafted else "none",
            all_greedy=all(params.greedy for params in sampling),
            truncated=any(params.truncates for params in sampling),
            width=width,
            below_min_tokens=below_min_tokens,
            penalised=any(params.penalises for params in sampling),
            logprobs=max(alternatives_for(params.logprobs) for params in sampling),
            shared=shared,
        )


def expected_keys(
    sampling: SamplingParams, choices: Iterable[tuple[ProposerName, int]], *, width: int
) -> list[RoundKey]:
    """Returns the keys of rounds whose rows all have these parameters, for each choice of proposer and K, in order."""
    below = (False, True) if sampling.min_tokens else (False,)
    keys = (RoundKey.of([sampling], *choice, width=width, below_min_tokens=b) for choice in choices for b in below)
    return list(dict.fromkeys(keys))

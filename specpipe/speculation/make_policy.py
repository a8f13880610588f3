"""From a policy's name to the policy."""

from __future__ import annotations

from collections.abc import Sequence

from specpipe.core import ProposerName
from specpipe.speculation.fixed import Fixed
from specpipe.speculation.goodput import Goodput
from specpipe.speculation.off import Off
from specpipe.speculation.policy import Policy
from specpipe.speculation.queue_threshold import QueueThreshold


def make_policy(name: str, *, k: int, max_running: int, proposers: Sequence[ProposerName]) -> Policy:
    """`k`: tokens drafted in a round, or for goodput at most; `max_running`: queue_threshold's limit; `proposers`: what
    workers have, of which goodput chooses and the others take the first. Without any nothing is drafted.

    Raises ValueError for a name that no policy has.
    """
    if name == "off" or not proposers:
        return Off()
    if name == "fixed":
        return Fixed(k=k, proposer=proposers[0])
    if name == "queue_threshold":
        return QueueThreshold(k=k, threshold=max_running, proposer=proposers[0])
    if name == "goodput":
        return Goodput(k=k, proposers=tuple(proposers))
    raise ValueError(f"policy {name!r}: expected off, fixed, queue_threshold or goodput")

"""Makes the proposers of an engine from its configuration."""

from __future__ import annotations

from specpipe.core import EngineConfig, ProposerName
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.proposers.draft_model import DraftModelProposer
from specpipe.engine.proposers.ngram import NGramProposer
from specpipe.engine.proposers.proposer import Proposer
from specpipe.engine.proposers.replay import ReplayProposer


def make_proposers(
    config: EngineConfig, target: ModelRunner, draft: ModelRunner | None
) -> dict[ProposerName, Proposer]:
    """Returns the proposers that a plan may name, the draft model first.

    `config.proposer` "auto" has n-grams, and the draft model where there is one. Where there are earlier answers to
    follow (`config.replay_k`), it has "replay" too.
    """
    proposers = dict[ProposerName, Proposer]()
    assert config.proposer != "draft" or draft is not None, "proposer draft without a draft model"
    if draft is not None and config.proposer in ("draft", "auto"):
        proposers["draft"] = DraftModelProposer(draft, vocab_size=target.vocab_size, method=config.method)
    if config.proposer in ("ngram", "auto"):
        proposers["ngram"] = NGramProposer(config)
    if config.replay_k and config.proposer in ("replay", "auto"):
        proposers["replay"] = ReplayProposer(config, vocab_size=target.vocab_size)
    return proposers

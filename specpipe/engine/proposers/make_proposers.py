"""Makes the proposers of an engine from its configuration."""

from __future__ import annotations

from specpipe.core import EngineConfig, ProposerName
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.proposers.corpus import Corpus
from specpipe.engine.proposers.draft_model import DraftModelProposer
from specpipe.engine.proposers.joined import JoinedProposer
from specpipe.engine.proposers.ngram import NGramProposer
from specpipe.engine.proposers.proposer import Proposer
from specpipe.engine.proposers.replay import ReplayProposer


def make_proposers(
    config: EngineConfig, target: ModelRunner, draft: ModelRunner | None, corpus: Corpus | None
) -> dict[ProposerName, Proposer]:
    """Returns the proposers that a plan may name, the draft model first.

    `config.proposer` "auto" has the draft model, where there is one, and n-grams. Where there are earlier answers to
    follow (`config.replay_k`), it has "replay" too, and with a draft model "joined" in place of
    n-grams. Both follow the corpus, if any.
    """
    proposers = dict[ProposerName, Proposer]()
    assert config.proposer != "draft" or draft is not None, "proposer draft without a draft model"
    if draft is not None and config.proposer in ("draft", "auto"):
        by_model = DraftModelProposer(draft, vocab_size=target.vocab_size, method=config.method)
        proposers["draft"] = by_model
        if config.replay_k and config.proposer == "auto":
            vocab_size = min(target.vocab_size, draft.vocab_size)
            draft_k = config.largest_k("draft")
            proposers["joined"] = JoinedProposer(by_model, draft_k=draft_k, vocab_size=vocab_size, corpus=corpus)
    if config.proposer == "ngram" or (config.proposer == "auto" and "joined" not in proposers):
        proposers["ngram"] = NGramProposer(config)
    if config.replay_k and config.proposer in ("replay", "auto"):
        proposers["replay"] = ReplayProposer(config, vocab_size=target.vocab_size, corpus=corpus)
    return proposers

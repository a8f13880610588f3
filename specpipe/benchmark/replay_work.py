"""A job run again with its own answers as drafts, unchanged or with answers that depart early.

The model is random but certain: a token's successor is fixed, with a margin that no rounding crosses. So the answers of
two runs are equal in 16 bits too, as those of a trained model mostly are. Layers cost what they cost in any model.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from specpipe.benchmark.bench_config import EngineBench
from specpipe.benchmark.model_shapes import random_model
from specpipe.benchmark.synthetic_engine import random_requests, run_policy
from specpipe.core import AcceptanceCounts, Completion, EngineConfig, Profile, Request, SamplingParams
from specpipe.engine.engine import Engine
from specpipe.engine.forward.attention_interface import register
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.kv_memory import sized_engine
from specpipe.engine.state.text_decoder import NoTextDecoder
from specpipe.speculation.estimates.profiled_rounds import PROFILED_CONTEXT, rounds_to_profile
from specpipe.speculation.policies.goodput import Goodput
from specpipe.speculation.policies.off import Off
from specpipe.speculation.policies.policy import Policy

DEPARTED = (0.0, 0.1, 0.5, 1.0)
"""Shares of answers that depart early."""
DEPARTS_AFTER = 8
"""Tokens of such an answer that are still right."""
LAYER_SCALE = 1e-4
"""Factor of what layers add to a token's embedding, so that the head sees the embedding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayResult:
    """Measurements of one run of the job."""

    rows: int
    departed: float | None
    """Share of answers that depart early; None for plain decoding."""
    tokens_per_s: float
    """Output tokens per second, prefill included."""
    ratio: float
    """Times the speed of plain decoding."""
    acceptance_length: float
    followed_share: float
    """Share of the output that came from earlier answers."""
    equal_rows: int
    """Rows with the tokens of plain decoding."""
    rounds: Mapping[str, int]
    """Rounds by proposer and K."""
    late_graphs: int
    """Graphs captured meanwhile."""


def certain_model(bench: EngineBench) -> Any:
    """Returns a model of the target's shape whose next token is a function of the last one, by a random permutation."""
    model = random_model(bench.target, torch.device(bench.device), getattr(torch, bench.dtype))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.mul_(LAYER_SCALE)
        embedding = model.get_input_embeddings().weight
        order = torch.randperm(len(embedding), generator=torch.Generator().manual_seed(1)).to(embedding.device)
        model.get_output_embeddings().weight = nn.Parameter(embedding[order].clone(), requires_grad=False)
    return model


def measure_replay(bench: EngineBench, replay_k: int) -> Iterator[ReplayResult]:
    """Measures plain decoding, then the same rows with their answers as references, for each batch size.

    bench.new_tokens is the length of every answer. Every run is repeated once, and the second one counts: the first
    captures graphs.
    """
    register()
    model = certain_model(bench)
    for batch in bench.batches:
        yield from _ReplayJob(_engine(bench, model, batch, replay_k), bench, batch, replay_k).results()
        gc.collect()  # the next engine needs the memory of this one
        if bench.device == "cuda":
            torch.cuda.empty_cache()


def _engine(bench: EngineBench, model: Any, slots: int, replay_k: int) -> Engine:
    """Returns an engine without a draft model. Prompts are not shared: a second run would have the first one's KV."""
    config = EngineConfig(
        slots=slots,
        max_model_len=bench.max_model_len,
        max_k=max(replay_k, *bench.ks),
        draft_k=max(bench.ks),
        replay_k=replay_k,
        proposer="auto",
        prefill_budget=bench.prefill_budget,
        prefix_sharing=False,
        kv_dtype=bench.kv_dtype,
    )
    runner = ModelRunner(
        model,
        vocab_size=model.config.vocab_size,
        context_length=config.pages_per_row * config.page_size,
        page_size=config.page_size,
        kv_dtype=config.kv_dtype,
    )
    return sized_engine([runner], config, NoTextDecoder(), ())


class _ReplayJob:
    """One batch of rows on one engine."""

    def __init__(self, engine: Engine, bench: EngineBench, batch: int, replay_k: int) -> None:
        self._engine, self._bench = engine, bench
        shapes = rounds_to_profile(batch, replay_k, engine.proposers)
        self._profile = engine.profile(SamplingParams(), shapes, context=PROFILED_CONTEXT, within_s=2.0)
        self._policy = Goodput(k=max(bench.ks), proposers=engine.proposers, replay_k=replay_k)
        lengths = [(bench.prompt_tokens, bench.new_tokens)] * batch
        self._rows = random_requests(lengths, engine.target.vocab_size, batch)

    def results(self) -> Iterator[ReplayResult]:
        """Yields plain decoding, then each share of answers that depart."""
        plain, answers = self._run(self._rows, Off(), None, {}, 1.0)
        yield plain
        for departed in DEPARTED:
            rows = _with_references(self._rows, answers, departed, self._engine.target.vocab_size)
            yield self._run(rows, self._policy, departed, answers, plain.tokens_per_s)[0]

    def _run(
        self,
        rows: Sequence[Request],
        policy: Policy,
        departed: float | None,
        answers: Mapping[int, tuple[int, ...]],
        plain: float,
    ) -> tuple[ReplayResult, dict[int, tuple[int, ...]]]:
        """Runs rows twice. plain: tokens per second to compare with, 1 for none.

        Returns the second run's measurements, and its answers by row.
        """
        profile = Profile() if departed is None else self._profile
        run_policy(self._engine, rows, policy, profile)
        graphs = self._engine.graphs_captured
        gc.collect()
        seconds, steps = run_policy(self._engine, rows, policy, profile)
        done: list[Completion] = [completion for step in steps for completion in step.completions]
        verified = sum((part.verified for step in steps for part in step.shards.values()), AcceptanceCounts())
        tokens = sum(len(completion.token_ids) for completion in done)
        result = ReplayResult(
            rows=len(rows),
            departed=departed,
            tokens_per_s=tokens / seconds,
            ratio=tokens / seconds / plain,
            acceptance_length=verified.acceptance_length,
            followed_share=sum(completion.followed_tokens for completion in done) / tokens,
            equal_rows=sum(answers.get(c.request.row, c.token_ids) == c.token_ids for c in done),
            rounds=dict(Counter(f"{step.proposer} {step.k}" for step in steps if step.running)),
            late_graphs=self._engine.graphs_captured - graphs,
        )
        return (replace(result, ratio=1.0) if departed is None else result), {
            completion.request.row: completion.token_ids for completion in done
        }


def _with_references(
    rows: Sequence[Request], answers: Mapping[int, tuple[int, ...]], departed: float, vocab_size: int
) -> list[Request]:
    """Returns rows with their answers as references; of the first ones, a share `departed`, random behind the start."""
    random, count = np.random.default_rng(0), round(departed * len(rows))
    out = []
    for row in rows:
        answer = answers[row.row]
        if row.row < count:
            other = random.integers(0, vocab_size, len(answer) - DEPARTS_AFTER).tolist()
            answer = (*answer[:DEPARTS_AFTER], *other)
        out.append(replace(row, reference=answer))
    return out

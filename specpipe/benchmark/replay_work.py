"""A job run again with its own answers as drafts, unchanged or with answers that depart early.

The model is random but certain: a token's successor is fixed, with a margin that no rounding crosses. So the answers of
two runs are equal in 16 bits too, as those of a trained model mostly are. Layers cost what they cost in any model.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from specpipe.benchmark.bench_config import EngineBench
from specpipe.benchmark.model_shapes import config_of, random_model
from specpipe.benchmark.synthetic_engine import make_runner, random_requests, run_policy
from specpipe.core import (
    AcceptanceCounts,
    Completion,
    EngineConfig,
    Profile,
    ProposerName,
    Request,
    SamplingParams,
    followed_ks,
)
from specpipe.engine.compile_ahead import EngineCompileAhead
from specpipe.engine.engine import Engine
from specpipe.engine.forward.attention_interface import register
from specpipe.engine.kv_memory import sized_engine
from specpipe.engine.rounds.profiled_rounds import PROFILED_CONTEXT, rounds_to_profile
from specpipe.engine.state.text_decoder import NoTextDecoder
from specpipe.models.loader import outline_of
from specpipe.speculation.policies.fixed import Fixed
from specpipe.speculation.policies.goodput import Goodput
from specpipe.speculation.policies.policy import Policy

DEPARTED = (0.0, 0.1, 0.5, 1.0)
"""Shares of answers that depart early."""
DEPARTS_AFTER = 8
"""Tokens of such an answer that are still right."""
ROWS_PER_SLOT = 3
"""Rows of a job for each slot: rows that depart last longer and must not be all that is measured."""
LAYER_SCALE = 1e-4
"""Factor of what layers add to a token's embedding, so that the head sees the embedding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayResult:
    """Measurements of one run of the job."""

    slots: int
    """Rows that run at once."""
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
    """Returns a model of the target's shape whose next token follows the last one in a random cycle of all tokens."""
    model = random_model(bench.target, torch.device(bench.device), getattr(torch, bench.dtype))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.mul_(LAYER_SCALE)
        embedding = model.get_input_embeddings().weight
        cycle = torch.randperm(len(embedding), generator=torch.Generator().manual_seed(1)).to(embedding.device)
        head = torch.empty_like(embedding)
        head[cycle.roll(-1)] = embedding[cycle]
        model.get_output_embeddings().weight = nn.Parameter(head, requires_grad=False)
    return model


def measure_replay(bench: EngineBench, replay_k: int) -> Iterator[ReplayResult]:
    """Measures plain decoding, then the same rows with their answers as references, for each number of slots.

    bench.batches are these numbers, bench.new_tokens the length of every answer.
    """
    register()
    configs = [_config(bench, slots, replay_k) for slots in sorted(bench.batches, reverse=True)]
    with _kernels_ahead(bench, configs[0]) if bench.device == "cuda" else nullcontext():
        model = certain_model(bench)
    for config in reversed(configs):
        engine = sized_engine([make_runner(model, config)], config, NoTextDecoder(), ())
        yield from _ReplayJob(engine, bench).results()
        del engine
        gc.collect()  # the next engine needs the memory of this one
        if bench.device == "cuda":
            torch.cuda.empty_cache()


def _config(bench: EngineBench, slots: int, replay_k: int) -> EngineConfig:
    """Returns the configuration of an engine that may follow answers or use n-grams.

    Prompts are not shared: a second run would have the first one's KV.
    """
    return EngineConfig(
        slots=slots,
        max_model_len=bench.max_model_len,
        max_k=max(replay_k, *bench.ks),
        draft_k=max(bench.ks),
        replay_k=replay_k,
        proposer="auto",
        prefill_budget=bench.prefill_budget,
        prefix_sharing=False,
    )


def _kernels_ahead(bench: EngineBench, config: EngineConfig) -> EngineCompileAhead:
    """Starts compiling the kernels of all rounds."""
    choices: list[tuple[ProposerName, int]] = [("none", 0), ("ngram", config.draft_k)]
    choices += [("replay", k) for k in followed_ks(config.replay_k)]
    outline = outline_of(config_of(bench.target), getattr(torch, bench.dtype))
    return EngineCompileAhead(
        lambda: [make_runner(outline, config)],
        config,
        NoTextDecoder(),
        (),
        sampling=SamplingParams(),
        choices=choices,
    )


class _ReplayJob:
    """The rows of one job on one engine."""

    def __init__(self, engine: Engine, bench: EngineBench) -> None:
        self._engine, config = engine, engine.config
        shapes = rounds_to_profile(config.slots, config.max_k, engine.proposers)
        self._profile = engine.profile(SamplingParams(), shapes, context=PROFILED_CONTEXT, within_s=2.0)
        self._policy = Goodput(k=config.draft_k, proposers=engine.proposers, replay_k=config.replay_k)
        lengths = [(bench.prompt_tokens, bench.new_tokens)] * (ROWS_PER_SLOT * config.slots)
        self._rows = random_requests(lengths, engine.target.vocab_size, config.slots)

    def results(self) -> Iterator[ReplayResult]:
        """Yields plain decoding, then each share of answers that depart."""
        plain, answers = self._run(self._rows, Fixed(), None, {}, 1.0)
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
        """Measures rows under a policy without estimates but the profile. plain: tokens per second to compare with.

        Rows for all slots run first, which captures graphs. Returns the measurements, and the answers by row.
        """
        profile = Profile() if departed is None else self._profile
        run_policy(self._engine, rows[::ROWS_PER_SLOT], policy, profile)
        graphs = self._engine.graphs_captured
        gc.collect()
        seconds, steps = run_policy(self._engine, rows, policy, profile)
        done: list[Completion] = [completion for step in steps for completion in step.completions]
        verified = sum((part.verified for step in steps for part in step.shards.values()), AcceptanceCounts())
        tokens = sum(len(completion.token_ids) for completion in done)
        result = ReplayResult(
            slots=self._engine.config.slots,
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
    """Returns rows with their answers as references; a share `departed` of them is random behind the start."""
    random = np.random.default_rng(0)
    departing = set(random.permutation(len(rows))[: round(departed * len(rows))].tolist())
    out = []
    for row in rows:
        answer = answers[row.row]
        if row.row in departing:
            other = random.integers(0, vocab_size, len(answer) - DEPARTS_AFTER).tolist()
            answer = (*answer[:DEPARTS_AFTER], *other)
        out.append(replace(row, reference=answer))
    return out

"""Small engines over small models, run until all rows have ended. A test states model, proposer, K and rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from specpipe.core import (
    Completion,
    EngineConfig,
    KVDtypeChoice,
    Method,
    ProposerChoice,
    ProposerName,
    Request,
    SamplingParams,
    SpeculationPlan,
    StepReport,
)
from specpipe.engine.engine import Engine
from specpipe.engine.forward.model_runner import ModelRunner
from specpipe.engine.state.text_decoder import TextDecoder


def slow(*values: object) -> Any:
    """Returns a case of a parametrized test that runs with `-m slow` alone."""
    return pytest.param(*values, marks=pytest.mark.slow)


class PlainDecoder:
    """Token ids as words: "12 7 401 ". Stop strings are matched at the token that completes them."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(f"{token} " for token in token_ids)

    def stream(self, stop: tuple[str, ...]) -> PlainMatcher:
        return PlainMatcher(stop)


class PlainMatcher:
    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop, self._text = stop, ""

    def push(self, token_id: int) -> str | None:
        old = len(self._text)
        self._text += f"{token_id} "
        found = [at for at in (self._text.find(s, max(0, old - len(s) + 1)) for s in self._stop) if at >= 0]
        return self._text[: min(found)] if found else None


def perturbed(model: torch.nn.Module, like: torch.nn.Module, *, noise: float, seed: int = 7) -> torch.nn.Module:
    """Returns `model` with the weights of `like` plus noise: a draft that is accepted often, not always."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for own, theirs in zip(model.parameters(), like.parameters(), strict=True):
            own.copy_(theirs + noise * theirs.std() * torch.randn(theirs.shape, generator=generator))
    return model


def make_engine(
    target: torch.nn.Module,
    draft: torch.nn.Module | None = None,
    *,
    slots: int = 3,
    max_k: int = 3,
    proposer: ProposerChoice = "draft",
    method: Method = "standard",
    max_model_len: int = 96,
    page_size: int = 16,
    prefill_budget: int = 32,
    pages: int | None = None,
    rounds_behind: int | None = None,
    eos_ids: Sequence[int] = (),
    synthetic_rates: tuple[float, ...] = (),
    decoder: TextDecoder | None = None,
    prefix_sharing: bool = True,
    kv_dtype: KVDtypeChoice = "auto",
    replay_k: int = 0,
    corpus_mib: int = 0,
) -> Engine:
    config = EngineConfig(
        slots=slots,
        max_model_len=max_model_len,
        max_k=max(max_k, replay_k),
        draft_k=max_k,
        replay_k=replay_k,
        corpus_mib=corpus_mib,
        proposer=proposer,
        method=method,
        page_size=page_size,
        prefill_budget=prefill_budget,
        synthetic_rates=synthetic_rates,
        prefix_sharing=prefix_sharing,
        kv_dtype=kv_dtype,
    )

    def runner(model: torch.nn.Module) -> ModelRunner:
        vocab_size = model.config.vocab_size
        return ModelRunner(model, vocab_size=vocab_size, context_length=256, page_size=page_size, kv_dtype=kv_dtype)

    return Engine(
        runner(target),
        runner(draft) if draft is not None and proposer in ("draft", "auto") else None,
        config=config,
        decoder=decoder or PlainDecoder(),
        eos_ids=eos_ids,
        num_pages=pages or slots * config.pages_per_row + 1,
        rounds_behind=rounds_behind,
    )


def make_requests(
    count: int, *, vocab_size: int, seed: int = 0, max_new_tokens: int = 20, **sampling: object
) -> list[Request]:
    """Returns requests with random prompts of 1 to 40 tokens, among them one token, a page, and a page and one."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [1, 2, 16, 17, 33, 5, 40, 3, 24, 9]
    prompts = [
        torch.randint(0, vocab_size, (lengths[row % len(lengths)],), generator=generator).tolist()
        for row in range(count)
    ]
    return requests_of(prompts, max_new_tokens=max_new_tokens, **sampling)


def requests_of(prompts: Sequence[Sequence[int]], *, max_new_tokens: int = 6, **sampling: object) -> list[Request]:
    """Returns a request for each prompt, in two shards."""
    return [
        Request(
            request_id=str(row),
            shard=row % 2,
            row=row,
            prompt="",
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(max_new_tokens=max_new_tokens, **sampling),
            seed=1000 + row,
        )
        for row, prompt in enumerate(prompts)
    ]


def plan(*ks: int, proposer: ProposerName = "draft") -> SpeculationPlan:
    return SpeculationPlan(ks=ks, proposer=proposer, queue_depth=0.0, reason="test")


def drain(engine: Engine, limit: int = 5000) -> list[Completion]:
    """Runs the engine until all rows have ended; returns the completions in row order."""
    return completions_of(steps_of(engine, limit))


def steps_of(engine: Engine, limit: int = 5000) -> list[StepReport]:
    """Runs the engine until all rows have ended, checking its integrity after every step; returns all reports."""
    steps: list[StepReport] = []
    for _ in range(limit):
        report = engine.step()
        if report is None:
            assert engine.running == engine.waiting == 0
            return steps
        engine.check_integrity()
        steps.append(report)
    raise AssertionError("the engine does not come to an end")


def completions_of(steps: Sequence[StepReport]) -> list[Completion]:
    """Returns the completions of these steps in row order."""
    return sorted((c for step in steps for c in step.completions), key=lambda c: c.request.row)


def run(engine: Engine, requests: Sequence[Request], *ks: int) -> list[Completion]:
    proposer = engine.config.proposer
    engine.submit(requests, plan(*ks, proposer="draft" if proposer == "auto" else proposer))
    return drain(engine)


def run_in_turn(engine: Engine, requests: Sequence[Request], *ks: int) -> list[Completion]:
    """Submits every row on its own: they start in this order, also where later ones may grow longer."""
    for request in requests:
        engine.submit([request], plan(*ks))
    return drain(engine)


_GENERATED: dict[object, list[list[int]]] = {}


def generate(
    model: torch.nn.Module, requests: Sequence[Request], eos_ids: Sequence[int] = (), **options: object
) -> list[list[int]]:
    """Returns the tokens that transformers generates for each prompt alone, without padding; cached on a CPU.

    Reference models are shared by all tests and never changed.
    """
    key = (model, tuple(requests), tuple(eos_ids), tuple(options.items()))
    if model.device.type != "cpu":
        return _generate(model, requests, eos_ids, **options)
    if key not in _GENERATED:
        _GENERATED[key] = _generate(model, requests, eos_ids, **options)
    return _GENERATED[key]


def _generate(
    model: torch.nn.Module, requests: Sequence[Request], eos_ids: Sequence[int], **options: object
) -> list[list[int]]:
    outputs = []
    for request in requests:
        prompt = torch.tensor([request.prompt_token_ids], device=model.device)
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=request.sampling.max_new_tokens,
            min_new_tokens=request.sampling.min_tokens or None,
            eos_token_id=list(eos_ids) or None,
            pad_token_id=0,
            **options,
        )
        outputs.append(out[0, prompt.shape[1] :].tolist())
    return outputs

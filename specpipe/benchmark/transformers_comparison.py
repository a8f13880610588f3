"""`specpipe bench engine --against-transformers`: the embedded pair, here and through transformers' own generation.

Three ways to the same greedy tokens: our engine, transformers' assisted generation (which takes one prompt at a time)
and transformers' plain `generate` over all prompts at once. Loading, tokenizing and a warm-up are in no figure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from specpipe.core import EngineConfig, Request, SamplingParams, SpeculationPlan
from specpipe.engine.build import EngineSpec, build_engine
from specpipe.engine.engine import Engine
from specpipe.errors import MachineError
from specpipe.models.loader import load_model
from specpipe.models.source import resolve
from specpipe.models.tiny import sample_questions
from specpipe.models.tokenizer import load_tokenizer

Generate = Callable[[list[list[int]], int], list[list[int]]]
"""Prompts and a number of new tokens → the new tokens of each prompt, end-of-sequence ignored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Against:
    """What is compared: so many prompts of the sample dataset, greedy, fp32."""

    prompts: int = 64
    new_tokens: int = 128
    k: int = 3
    repeats: int = 3
    """Of each way, in turn; the best counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One way to the tokens."""

    name: str
    seconds: float
    cpu_seconds: float
    """Of the whole process: less sensitive to what else runs on the machine."""
    tokens_per_s: float


def compare(what: Against) -> Iterator[Contender]:
    """Ours first. Raises MachineError if two ways give different tokens: then no speed means anything."""
    prompts = sample_prompts(what.prompts)
    ways: dict[str, Generate] = {
        f"specpipe, K={what.k}": _ours(what),
        "transformers, assisted, one by one": _assisted(),
        "transformers, plain, all at once": _batched(),
    }
    for generate in ways.values():
        generate(prompts[:4], 16)
    times: dict[str, tuple[float, float]] = {}
    expected: list[list[int]] | None = None
    for _ in range(what.repeats):
        for name, generate in ways.items():
            began, cpu_began = time.perf_counter(), time.process_time()
            tokens = generate(prompts, what.new_tokens)
            took = (time.perf_counter() - began, time.process_time() - cpu_began)
            times[name] = min(times.get(name, took), took)
            expected = expected or tokens
            _check_same(name, tokens, expected)
    for name, (seconds, cpu_seconds) in times.items():
        speed = len(prompts) * what.new_tokens / seconds
        yield Contender(name=name, seconds=seconds, cpu_seconds=cpu_seconds, tokens_per_s=speed)


def _check_same(name: str, tokens: list[list[int]], expected: list[list[int]]) -> None:
    different = [i for i, (mine, theirs) in enumerate(zip(tokens, expected, strict=True)) if mine != theirs]
    if different:
        raise MachineError(
            f"{name}: {len(different)} of {len(expected)} rows differ from specpipe's first run, row {different[0]} "
            "first; expected the same greedy tokens from all"
        )


def sample_prompts(count: int) -> list[list[int]]:
    """Token ids of the sample job's first questions as chats for the embedded pair, again from the first where there
    are fewer."""
    tokenizer = load_tokenizer(resolve("builtin:tiny", "target"))
    asked = sample_questions()
    return [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
            )
        )
        for text in (asked * -(-count // len(asked)))[:count]
    ]


def _ours(what: Against) -> Generate:
    engine = build_engine(
        EngineSpec(
            target=resolve("builtin:tiny", "target"),
            draft=resolve("builtin:tiny", "draft"),
            device="cpu",
            dtype="float32",
            config=EngineConfig(slots=what.prompts, max_k=what.k, proposer="draft"),
        )
    )
    return lambda prompts, new_tokens: _run(engine, prompts, new_tokens, what.k)


def greedy_requests(prompts: list[list[int]], new_tokens: int) -> list[Request]:
    """Rows of one shard that end at `new_tokens`."""
    sampling = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    return [
        Request(
            request_id=str(row),
            shard=0,
            row=row,
            prompt="",
            prompt_token_ids=tuple(ids),
            sampling=sampling,
            seed=row,
        )
        for row, ids in enumerate(prompts)
    ]


def _run(engine: Engine, prompts: list[list[int]], new_tokens: int, k: int) -> list[list[int]]:
    requests = greedy_requests(prompts, new_tokens)
    engine.submit(requests, SpeculationPlan(ks=(k,), proposer="draft", queue_depth=0.0, reason="benchmark"))
    tokens: dict[int, list[int]] = {}
    while (step := engine.step()) is not None:
        tokens |= {c.request.row: list(c.token_ids) for c in step.completions}
    return [tokens[row] for row in range(len(prompts))]


def _model(role: Any) -> Any:
    """As transformers runs it by default, end-of-sequence ignored."""
    model = load_model(resolve("builtin:tiny", role), "cpu", torch.float32, "sdpa")
    model.generation_config.eos_token_id = None
    return model


def _assisted() -> Generate:
    target, draft = _model("target"), _model("draft")

    def generate(prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        outputs = []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            mask = torch.ones_like(ids)
            out = target.generate(
                ids, attention_mask=mask, assistant_model=draft, do_sample=False, max_new_tokens=new_tokens
            )
            outputs.append(out[0, len(prompt) :].tolist())
        return outputs

    return generate


def _batched() -> Generate:
    target = _model("target")

    def generate(prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        longest = max(len(prompt) for prompt in prompts)
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        out = target.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=new_tokens, pad_token_id=0)
        rows: list[list[int]] = out[:, longest:].tolist()
        return rows

    return generate

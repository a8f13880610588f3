"""The embedded pair's greedy generation in specpipe and in transformers, on this CPU.

Three ways to the same tokens: this engine, transformers' assisted generation (one prompt at a time, its limit), and
transformers' plain `generate` over all prompts at once. Loading, tokenizing and a warm-up are excluded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from specpipe.benchmark.bench_config import TransformersBench
from specpipe.core import EngineConfig, Request, SamplingParams, SpeculationPlan
from specpipe.engine.build import EngineSpec, build_engine
from specpipe.engine.engine import Engine
from specpipe.errors import MachineError
from specpipe.models.loader import load_model
from specpipe.models.source import resolve
from specpipe.models.tiny import sample_questions
from specpipe.models.tokenizer import load_tokenizer

Generate = Callable[[list[list[int]], int], list[list[int]]]
"""(prompts, number of new tokens) -> new tokens of each prompt; end-of-sequence is ignored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationTime:
    """Time of one way to generate the tokens."""

    name: str
    seconds: float
    cpu_seconds: float
    """CPU time of the process: less sensitive to other load on the machine."""
    tokens_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformersResult:
    """Times of all ways, specpipe first."""

    ways: tuple[GenerationTime, ...]

    @property
    def ratio(self) -> float:
        """Throughput of specpipe over that of the fastest other way."""
        ours, *others = self.ways
        return ours.tokens_per_s / max(way.tokens_per_s for way in others)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        return {"ratio": self.ratio, "ways": [asdict(way) for way in self.ways]}


def compare_with_transformers(bench: TransformersBench) -> TransformersResult:
    """Times all ways. Raises MachineError if two of them give different tokens: their speeds cannot be compared."""
    prompts, target = sample_prompts(bench.prompts), _load("target")
    ways: dict[str, Generate] = {
        f"specpipe, K={bench.k}": _specpipe(bench),
        "transformers, assisted, one by one": _assisted(target, _load("draft")),
        "transformers, plain, all at once": _batched(target),
    }
    for generate in ways.values():
        generate(prompts[:4], 16)  # warm-up
    times: dict[str, tuple[float, float]] = {}
    expected: list[list[int]] | None = None
    for _ in range(bench.repeats):
        for name, generate in ways.items():
            began, cpu_began = time.perf_counter(), time.process_time()
            tokens = generate(prompts, bench.new_tokens)
            elapsed = (time.perf_counter() - began, time.process_time() - cpu_began)
            times[name] = min(times.get(name, elapsed), elapsed)
            expected = expected or tokens
            check_same_tokens(name, tokens, expected)
    count = len(prompts) * bench.new_tokens
    return TransformersResult(
        ways=tuple(
            GenerationTime(name=name, seconds=seconds, cpu_seconds=cpu_seconds, tokens_per_s=count / seconds)
            for name, (seconds, cpu_seconds) in times.items()
        )
    )


def check_same_tokens(name: str, tokens: list[list[int]], expected: list[list[int]]) -> None:
    """Raises MachineError if the tokens of any row differ from specpipe's first run."""
    different = [i for i, (row, wanted) in enumerate(zip(tokens, expected, strict=True)) if row != wanted]
    if different:
        raise MachineError(
            f"{name}: {len(different)} of {len(expected)} rows differ from specpipe's first run, row {different[0]} "
            "first; expected the same greedy tokens from all"
        )


def sample_prompts(count: int) -> list[list[int]]:
    """Returns token ids of `count` chats for the embedded pair.

    The chats are the first questions of the sample dataset, repeated from the first one if there are too few.
    """
    tokenizer = load_tokenizer(resolve("builtin:tiny", "target"))
    questions = sample_questions()
    return [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
            )
        )
        for text in (questions * -(-count // len(questions)))[:count]
    ]


def _specpipe(bench: TransformersBench) -> Generate:
    engine = build_engine(
        EngineSpec(
            target=resolve("builtin:tiny", "target"),
            draft=resolve("builtin:tiny", "draft"),
            device="cpu",
            dtype="float32",
            config=EngineConfig(slots=bench.prompts, max_k=bench.k, proposer="draft"),
        )
    )
    return lambda prompts, new_tokens: _generate(engine, prompts, new_tokens, bench.k)


def greedy_requests(prompts: list[list[int]], new_tokens: int) -> list[Request]:
    """Returns greedy rows of one shard that end after exactly `new_tokens` tokens."""
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


def _generate(engine: Engine, prompts: list[list[int]], new_tokens: int, k: int) -> list[list[int]]:
    requests = greedy_requests(prompts, new_tokens)
    engine.submit(requests, SpeculationPlan(ks=(k,), proposer="draft", queue_depth=0.0, reason="benchmark"))
    tokens: dict[int, list[int]] = {}
    while (step := engine.step()) is not None:
        tokens |= {c.request.row: list(c.token_ids) for c in step.completions}
    return [tokens[row] for row in range(len(prompts))]


def _load(role: Any) -> Any:
    """Loads a model of the pair as transformers runs it by default, but with end-of-sequence ignored."""
    model = load_model(resolve("builtin:tiny", role), "cpu", torch.float32, "sdpa")
    model.generation_config.eos_token_id = None
    return model


def _assisted(target: Any, draft: Any) -> Generate:
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


def _batched(target: Any) -> Generate:
    def generate(prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        longest = max(len(prompt) for prompt in prompts)
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        out = target.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=new_tokens, pad_token_id=0)
        rows: list[list[int]] = out[:, longest:].tolist()
        return rows

    return generate

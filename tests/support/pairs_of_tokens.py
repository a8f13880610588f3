"""The first two tokens that many rows of one prompt draw, against the target's exact joint."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from support.engines import run
from torch import Tensor

from specpipe.core import Completion, Request, SamplingParams
from specpipe.engine.engine import Engine

NEW_TOKENS = 4  # two that are looked at, and a round that ends behind them


def joint(model: torch.nn.Module, prompt: Sequence[int], *, temperature: float, top_k: int) -> Tensor:
    """Exact probability of the first two tokens after `prompt`: [V, V] on the CPU."""
    device = next(model.parameters()).device

    def distribution(prefixes: Tensor) -> Tensor:
        with torch.inference_mode():
            logits = model(prefixes).logits[:, -1].double() / temperature
        cut = logits.topk(top_k).values[:, -1:]
        return logits.masked_fill(logits < cut, -torch.inf).softmax(-1)

    start = torch.tensor([list(prompt)], device=device)
    first = distribution(start)[0]
    kept = first.nonzero()
    both = torch.zeros(len(first), len(first), dtype=torch.double, device=device)
    both[kept[:, 0]] = first[kept] * distribution(torch.cat([start.expand(len(kept), -1), kept], dim=1))
    return both.cpu()


def draw(
    engine: Engine, prompt: Sequence[int], rows: int, k: int, **sampling: object
) -> tuple[Tensor, list[Completion]]:
    """`rows` rows of the same prompt with seeds of their own. → (first token · V + second token [rows], completions)"""
    params = SamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True, **sampling)
    ids = tuple(prompt)
    requests = [
        Request(request_id=str(i), shard=0, row=i, prompt="", prompt_token_ids=ids, sampling=params, seed=i)
        for i in range(rows)
    ]
    completions = run(engine, requests, k)
    tokens = torch.tensor([c.token_ids[:2] for c in completions])
    return tokens[:, 0] * engine.target.vocab_size + tokens[:, 1], completions

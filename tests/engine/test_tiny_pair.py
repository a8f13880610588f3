"""The embedded pair on a device: transformers' tokens in fp32, near-ties alone decided by bf16, draws of the target's
distribution by every method."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chi2_contingency
from support.chi_squared import p_value
from support.engines import generate, run
from support.pairs_of_tokens import draw, joint

from specpipe.benchmark.transformers_comparison import greedy_requests, sample_prompts
from specpipe.core import DeviceName, DtypeName, EngineConfig, Method, Request
from specpipe.engine.build import EngineSpec, build_engine
from specpipe.engine.engine import Engine
from specpipe.evaluation.compare.rounding import rounding_tolerance
from specpipe.models.loader import load_model
from specpipe.models.source import resolve

DEVICES = [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)]
DRAWS = [pytest.param("cpu", 600, marks=pytest.mark.slow), pytest.param("cuda", 4000, marks=pytest.mark.gpu)]
METHODS = ["standard", "block", "invariant"]


def tiny_engine(device: DeviceName, dtype: DtypeName, *, method: Method = "standard", slots: int = 64) -> Engine:
    """For K of 0 and 3."""
    config = EngineConfig(slots=slots, max_model_len=512, max_k=3, proposer="draft", method=method)
    target, draft = resolve("builtin:tiny", "target"), resolve("builtin:tiny", "draft")
    spec = EngineSpec(
        target=target, draft=draft, device=device, dtype=dtype, config=config, choices=(("none", 0), ("draft", 3))
    )
    return build_engine(spec)


def reference(device: str):
    return load_model(resolve("builtin:tiny", "target"), device, torch.float32, "sdpa")


def fp32_logits(model, request: Request, tokens: list[int]) -> torch.Tensor:
    """Returns the model's fp32 logits for every one of `tokens`, given those before: [tokens, V] on the CPU."""
    ids = torch.tensor([[*request.prompt_token_ids, *tokens]], device=model.device)
    with torch.inference_mode():
        return model(ids).logits[0, len(request.prompt_token_ids) - 1 : -1].cpu()


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("device", DEVICES)
def test_greedy_rows_equal_transformers_in_fp32(device: DeviceName, k: int) -> None:
    requests = greedy_requests(sample_prompts(12), 80)
    completions = run(tiny_engine(device, "float32"), requests, k)
    assert [list(c.token_ids) for c in completions] == generate(reference(device), requests)


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("device", DEVICES)
def test_bf16_differs_only_where_rounding_decides(device: DeviceName, k: int) -> None:
    """Along the text that bf16 writes, every token is the fp32 model's best, up to rounding."""
    model, requests = reference(device), greedy_requests(sample_prompts(64), 100)
    completions = run(tiny_engine(device, "bfloat16"), requests, k)
    lost, leads = [], []
    for request, completion in zip(requests, completions, strict=True):
        tokens = list(completion.token_ids)
        logits = fp32_logits(model, request, tokens)
        first, second = logits.topk(2).values.unbind(-1)
        allowed = torch.tensor([rounding_tolerance("bfloat16", logit) for logit in first.tolist()])
        lost.append((first - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]) / allowed)
        leads.append((first - second) / allowed)
    parted, lead = torch.cat(lost), torch.cat(leads)
    others = parted[parted > 0]
    print(
        f"\n{device}, K={k}: {len(others)} of {len(parted)} tokens ({len(others) / len(parted):.2%}) are not fp32's; "
        f"how far below its best, of what rounding explains: median {others.median():.2f}, largest {others.max():.2f}"
    )
    assert parted.max() <= 1
    assert (lead > 1).double().mean() > 0.5, "most wrong tokens would be seen"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("device", "rows"), DRAWS)
def test_every_method_draws_the_targets_distribution_in_fp32(device: DeviceName, rows: int, method: Method) -> None:
    prompt, sampling = greedy_requests(sample_prompts(1), 1)[0].prompt_token_ids, {"temperature": 4.0, "top_k": 11}
    engine = tiny_engine(device, "float32", method=method, slots=256)
    pairs, completions = draw(engine, prompt, rows, 3, **sampling)
    assert p_value(pairs, joint(reference(device), prompt, **sampling)) > 1e-4
    assert 0 < sum(c.accepted_tokens for c in completions) < sum(c.draft_tokens for c in completions)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("device", "rows"), DRAWS)
def test_every_method_draws_from_one_distribution_in_bf16(device: DeviceName, rows: int, method: Method) -> None:
    """A method's draws against those of plain decoding: no bf16 model is exact enough to be the standard."""
    prompt, sampling = greedy_requests(sample_prompts(1), 1)[0].prompt_token_ids, {"temperature": 4.0, "top_k": 11}
    plain, _ = draw(tiny_engine(device, "bfloat16", slots=256), prompt, rows, 0, **sampling)
    drafted, _ = draw(tiny_engine(device, "bfloat16", method=method, slots=256), prompt, rows, 3, **sampling)
    cells = int(max(plain.max(), drafted.max())) + 1
    counts = torch.stack([torch.bincount(pairs, minlength=cells) for pairs in (plain, drafted)])
    rare = counts.sum(0) < 10
    table = torch.cat([counts[:, ~rare], counts[:, rare].sum(1, keepdim=True)], dim=1)
    assert table.shape[1] > 8
    assert chi2_contingency(table.numpy()).pvalue > 1e-4

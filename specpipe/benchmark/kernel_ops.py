"""`specpipe bench kernels --op`: operations of a round beside `rejection_sample`, each alone.

Timed as `specpipe.benchmark.kernels` does: one CUDA graph of calls on different inputs, together larger than L2.
Shapes: B requests, K drafts each, V vocabulary entries; N = B * K rows of probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from types import SimpleNamespace

import torch
from torch import Tensor

from specpipe.benchmark.kernels import (
    LARGER_THAN_L2,
    KernelBench,
    Timed,
    copy_bandwidth,
    figures,
    random_logits,
    sampling_of,
    time_calls,
)
from specpipe.engine.proposers.corpus import TOKEN_BYTES, Corpus
from specpipe_kernels import (
    NEIGHBOURS,
    SUFFIX_TOKENS,
    Penalties,
    Purpose,
    RejectionSampler,
    SlotTensors,
    apply_penalties,
    lookup_suffix,
    sample,
    sample_recovered_tokens,
    score_tokens,
    token_logprobs,
)

TOP_P = 0.95
TEXT = 512
"""Number of tokens that a penalised row contains, and an answer of the corpus."""
CORPUS_MIB = {"cuda": 64, "cpu": 1}
"""Size of the full corpus in which `lookup-suffix` searches, by device; on a GPU the default of jobs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpMeasured(Timed):
    """Measurement of one operation and shape."""

    op: str
    """Name of the operation, a key of `OPS`."""

    @property
    def label(self) -> str:
        """The operation's name in a column of constant width."""
        return f"{self.op:<23}"


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelShape:
    """Shape of the inputs of an operation."""

    b: int
    """Requests."""
    k: int
    """Drafts of each request."""
    vocab: int
    """Vocabulary entries."""
    dtype: torch.dtype
    """Number format of the logits."""


Prepare = Callable[[KernelBench, KernelShape, torch.Generator], tuple[Callable[[], object], int]]
"""Returns a call on inputs of its own, and the bytes that it must read."""


def _bytes(*rows: Tensor) -> int:
    return sum(x.numel() * x.element_size() for x in rows)


def _sample(bench: KernelBench, shape: KernelShape, g: torch.Generator) -> tuple[Callable[[], object], int]:
    logits, s = random_logits(shape.b, shape.vocab, shape.dtype, g), sampling_of(bench, shape.b)
    return lambda: sample(logits, s, s.seed, purpose=Purpose.DRAFT), _bytes(logits)


def _sample_truncated(bench: KernelBench, shape: KernelShape, g: torch.Generator) -> tuple[Callable[[], object], int]:
    logits, s = random_logits(shape.b, shape.vocab, shape.dtype, g), sampling_of(bench, shape.b)
    s = s._replace(top_p=s.top_p * TOP_P, truncated=True)
    return lambda: sample(logits, s, s.seed, purpose=Purpose.DRAFT), _bytes(logits)


def _apply_penalties(bench: KernelBench, shape: KernelShape, g: torch.Generator) -> tuple[Callable[[], object], int]:
    """Penalises all K + 1 rows of each request. Only the logits of the text's tokens are read."""
    logits = random_logits(shape.b * (shape.k + 1), shape.vocab, shape.dtype, g)
    text = torch.randint(0, shape.vocab, (shape.b, TEXT + shape.k + 1), generator=g, device=g.device)
    slots, ones = torch.arange(shape.b, device=g.device), torch.ones(shape.b, device=g.device)
    penalties = Penalties(ones * 1.1, ones * 0.1, ones * 0.1)
    seen, lengths, drafts = torch.ones_like(text, dtype=torch.int32), slots * 0 + TEXT, text[:, : shape.k].contiguous()
    read = shape.b * TEXT * (12 + 2 * (shape.k + 1) * logits.element_size())
    return lambda: apply_penalties(logits, text, seen, slots, lengths, penalties, drafts), read


def _token_logprobs(bench: KernelBench, shape: KernelShape, g: torch.Generator) -> tuple[Callable[[], object], int]:
    """Computes log-probabilities of a round in which every draft was accepted."""
    logits, s = random_logits(shape.b * (shape.k + 1), shape.vocab, shape.dtype, g), sampling_of(bench, shape.b)
    tokens = torch.randint(0, shape.vocab, (shape.b, shape.k + 1), generator=g, device=g.device)
    emitted = torch.full((shape.b,), shape.k + 1, dtype=torch.int32, device=g.device)
    return lambda: token_logprobs(logits, tokens, emitted, s), _bytes(logits)


def _score_tokens(bench: KernelBench, shape: KernelShape, g: torch.Generator) -> tuple[Callable[[], object], int]:
    """Scores B * (K + 1) given tokens."""
    logits = random_logits(shape.b * (shape.k + 1), shape.vocab, shape.dtype, g)
    tokens = torch.randint(0, shape.vocab, (len(logits),), generator=g, device=g.device)
    return lambda: score_tokens(logits, tokens), _bytes(logits)


def _probabilities(bench: KernelBench, shape: KernelShape, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns p and q [N, V] fp32."""
    p, q = (random_logits(shape.b * shape.k, shape.vocab, torch.float32, g).softmax(-1) for _ in range(2))
    return p, q


def _recovered(bench: KernelBench, shape: KernelShape, g: torch.Generator) -> tuple[Callable[[], object], int]:
    """Draws with one row of noise per request, as vLLM's V1 sampler does."""
    p, q = _probabilities(bench, shape, g)
    noise = 1 / torch.empty(shape.b, shape.vocab, device=g.device).exponential_(generator=g)
    rows = torch.arange(shape.b * shape.k, device=g.device) // shape.k
    return lambda: sample_recovered_tokens(p, q, inverse_noise=noise, noise_rows=rows), _bytes(p, q, noise)


def _recovered_keyed(bench: KernelBench, shape: KernelShape, g: torch.Generator) -> tuple[Callable[[], object], int]:
    p, q = _probabilities(bench, shape, g)
    seeds = torch.arange(len(p), device=g.device)
    return lambda: sample_recovered_tokens(p, q, seeds=seeds, positions=seeds), _bytes(p, q)


def _rejection_sampler(bench: KernelBench, shape: KernelShape, g: torch.Generator) -> tuple[Callable[[], object], int]:
    """Runs the classical interface, from logits of p and probabilities of q."""
    _, q = _probabilities(bench, shape, g)
    logits, ids = random_logits(len(q), shape.vocab, shape.dtype, g), q.multinomial(1, generator=g)[:, 0]
    drafts = SimpleNamespace(
        draft_token_ids=ids,
        num_draft_tokens=[shape.k] * shape.b,
        cu_num_draft_tokens=shape.k * torch.arange(1, shape.b + 1, device=g.device),
        max_spec_len=shape.k,
    )
    temperature = torch.full((shape.b,), bench.temperature, device=g.device)
    how = SimpleNamespace(temperature=temperature, top_k=None, top_p=None, all_greedy=False, generators={})
    sampler, bonus = RejectionSampler(), ids[: shape.b, None]
    return lambda: sampler(drafts, q, logits, bonus, how), _bytes(logits, q)


@cache
def _corpus(device: str, vocab: int) -> Corpus:
    """Returns a corpus full of random answers."""
    corpus = Corpus(torch.device(device), mib=CORPUS_MIB[device], vocab_size=vocab)
    count = CORPUS_MIB[device] * 2**20 // TOKEN_BYTES // (TEXT + SUFFIX_TOKENS + 1)
    answers = torch.randint(0, vocab, (count, TEXT), generator=torch.Generator().manual_seed(0))
    corpus.add(((), answer) for answer in answers.tolist())
    return corpus


def _lookup_suffix(bench: KernelBench, shape: KernelShape, g: torch.Generator) -> tuple[Callable[[], object], int]:
    """Looks up rows that end as places of a full corpus do. The entries that are compared are read."""
    index, slots = _corpus(bench.device, shape.vocab).index, torch.arange(shape.b, device=g.device)
    segment = torch.randint(0, len(index.num_sorted), (shape.b,), generator=g, device=g.device)
    entry = torch.randint(0, 2**62, (shape.b,), generator=g, device=g.device) % index.num_sorted[segment]
    columns = index.places[segment, entry][:, None] + torch.arange(-SUFFIX_TOKENS, 0, device=g.device)
    tokens = index.tokens[segment[:, None], columns].long().clamp(min=0)
    state = SlotTensors(tokens, *[torch.empty(0, device=g.device)] * (len(SlotTensors._fields) - 1))
    lengths, max_drafts = slots * 0 + SUFFIX_TOKENS, (slots * 0 + shape.k).int()
    read = shape.b * len(index.num_sorted) * 2 * NEIGHBOURS * (SUFFIX_TOKENS + 1) * index.tokens.element_size()
    return lambda: lookup_suffix(state, index, slots, lengths, max_drafts, k=shape.k), read


OPS: dict[str, Prepare] = {
    "sample": _sample,
    "sample-truncated": _sample_truncated,
    "apply-penalties": _apply_penalties,
    "token-logprobs": _token_logprobs,
    "score-tokens": _score_tokens,
    "sample-recovered": _recovered,
    "sample-recovered-keyed": _recovered_keyed,
    "rejection-sampler": _rejection_sampler,
    "lookup-suffix": _lookup_suffix,
}


def measure_op(bench: KernelBench, bandwidth: float, op: str, shape: KernelShape, dtype: str) -> OpMeasured:
    """Measures one operation. bandwidth: bytes per second of a copy."""
    generator = torch.Generator(bench.device).manual_seed(0)
    call, size = OPS[op](bench, shape, generator)
    num_calls = LARGER_THAN_L2 / max(size, shape.b * shape.vocab) if bench.device == "cuda" else 1
    more = [OPS[op](bench, shape, generator)[0] for _ in range(min(96, max(2, round(num_calls))) - 1)]
    times = time_calls([call, *more], bench.replays, bench.device)
    return OpMeasured(
        op=op,
        batch=shape.b,
        k=shape.k,
        vocab=shape.vocab,
        dtype=dtype,
        **figures(times, size, bandwidth),
    )


def sweep_ops(bench: KernelBench, ops: tuple[str, ...]) -> Iterator[OpMeasured]:
    """Measures every combination of operations, shapes and dtypes; acceptance rates and methods have no effect here."""
    bandwidth = copy_bandwidth(bench.device)
    for op, b, k, vocab, dtype in product(ops, bench.batches, bench.ks, bench.vocabs, bench.dtypes):
        shape = KernelShape(b=b, k=k, vocab=vocab, dtype=getattr(torch, dtype))
        yield measure_op(bench, bandwidth, op, shape, dtype)

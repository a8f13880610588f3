"""`specpipe bench kernels`: verification from raw logits to tokens, at chosen acceptance rates.

Each measurement replays one CUDA graph of calls on different inputs, together larger than the L2 cache. Drafts are
drawn from q by the kernels' own stream; q is p disturbed so far that a position accepts with the wanted probability.
Shapes: B requests, K drafts each, V vocabulary entries.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import NormalDist, median, quantiles
from typing import Any

import torch
from torch import Tensor

from specpipe_kernels import Method, Purpose, RejectionOutput, SamplingTensors, rejection_sample, sample

LARGER_THAN_L2 = 160e6
_SPREAD_OF_LOGITS = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelBench:
    """Shapes and settings to measure: every combination."""

    batches: tuple[int, ...] = (1, 16, 64, 256)
    ks: tuple[int, ...] = (3,)
    vocabs: tuple[int, ...] = (128256,)
    dtypes: tuple[str, ...] = ("bfloat16",)
    acceptances: tuple[float, ...] = (0.2, 0.7, 0.9)
    methods: tuple[Method, ...] = ("standard",)
    draft_lse: bool = True
    """Pass the log-sum-exps that drawing the drafts returned."""
    temperature: float = 0.8
    replays: int = 20
    device: str = "cuda"


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed(ABC):
    """Measurement of one shape. Times are microseconds per call."""

    batch: int
    k: int
    vocab: int
    dtype: str
    median_us: float
    p10_us: float
    p90_us: float
    bytes: int
    """Bytes of the rows of logits that must be read once."""
    of_copy: float
    """bytes / median, as a fraction of the bandwidth of a copy (its reads and writes)."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The measured operation, in columns of constant width."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelMeasured(Timed):
    """Measurement of `rejection_sample`; bytes are those of target and draft rows."""

    method: Method
    draft_lse: bool
    acceptance: float
    """Intended acceptance rate per position."""
    acceptance_length: float
    """Measured tokens per call and request."""

    @property
    def label(self) -> str:
        """Method, acceptance rate and acceptance length, in columns of constant width."""
        return f"{self.method:<10} {self.acceptance:>6.2f} {self.acceptance_length:>6.2f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _VerificationInputs:
    """Inputs of one call of `rejection_sample`."""

    target: Tensor
    """[B * (K+1), V] logits of p."""
    draft: Tensor
    """[B, K, V] logits of q."""
    tokens: Tensor
    """[B, K] int64, drawn from q."""
    lse: Tensor | None
    """[B, K] fp32."""
    positions: Tensor
    """[B] int64."""


def copy_bandwidth(device: str) -> float:
    """Returns the bytes per second that a large copy reads and writes."""
    source = torch.ones(1 << (28 if device == "cuda" else 22), device=device)
    target = torch.empty_like(source)
    # A multiplication, because copies inside a graph may use a slower copy engine.
    times = time_calls([lambda: torch.mul(source, 1, out=target)] * 3, 9, device)
    return 8 * source.numel() / (1e-6 * median(times))


def time_calls(calls: list[Callable[[], object]], replays: int, device: str) -> list[float]:
    """Returns microseconds per call, one entry per replay of all calls; on a GPU they are one CUDA graph."""
    for call in calls:
        call()
    if device != "cuda":
        return [_wall_us(calls) for _ in range(replays)]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(replays + 1):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return times[1:]


def figures(times: list[float], size: int, bandwidth: float) -> dict[str, Any]:
    """Returns fields of `Timed` for `times` in microseconds of calls that read `size` bytes. bandwidth: bytes/s."""
    deciles, middle = quantiles(times, n=10), median(times)
    of_copy = size / (1e-6 * middle) / bandwidth
    return {"median_us": middle, "p10_us": deciles[0], "p90_us": deciles[-1], "bytes": size, "of_copy": of_copy}


def _wall_us(calls: list[Callable[[], object]]) -> float:
    began = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - began) * 1e6 / len(calls)


def disturbance(acceptance: float) -> float:
    """Returns s such that q ~ p exp(s N(0, 1)) overlaps p by `acceptance`, where both spread over many tokens.

    Then log q / p is normal under p, of mean -s²/2 and variance s², and E min(1, q / p) = 2 Phi(-s / 2).
    """
    return -2 * NormalDist().inv_cdf(acceptance / 2)


def random_logits(rows: int, vocab: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Returns random logits [rows, vocab] on the generator's device."""
    x = torch.randn(rows, vocab, generator=generator, device=generator.device)
    return x.mul_(_SPREAD_OF_LOGITS).to(dtype)


def _inputs(
    bench: KernelBench, b: int, k: int, vocab: int, dtype: str, acceptance: float, seed: int
) -> _VerificationInputs:
    g = torch.Generator(bench.device).manual_seed(seed)
    target = random_logits(b * (k + 1), vocab, torch.float32, g)
    noise = torch.randn(b, k, vocab, generator=g, device=bench.device)
    noise.mul_(disturbance(acceptance) * bench.temperature).add_(target.view(b, k + 1, vocab)[:, :k])
    draft = noise.to(getattr(torch, dtype))
    positions = torch.arange(b, device=bench.device) + 64 * seed
    sampling = sampling_of(bench, b)
    purpose = Purpose.INVARIANT if "invariant" in bench.methods else Purpose.DRAFT
    drawn = [sample(draft[:, i], sampling, positions + i, purpose=purpose, index=i) for i in range(k)]
    return _VerificationInputs(
        target=target.to(getattr(torch, dtype)),
        draft=draft,
        tokens=torch.stack([x.tokens for x in drawn], dim=1),
        lse=torch.stack([x.lse for x in drawn], dim=1) if bench.draft_lse else None,
        positions=positions,
    )


def sampling_of(bench: KernelBench, b: int) -> SamplingTensors:
    """Returns sampling parameters of b untruncated rows."""
    ones = torch.ones(b, device=bench.device)
    seeds = torch.arange(b, device=bench.device)
    return SamplingTensors(ones * bench.temperature, ones.int() * 0, ones, ones * 0, seeds, truncated=False)


def measure(
    bench: KernelBench, bandwidth: float, b: int, k: int, vocab: int, dtype: str, acceptance: float
) -> Iterator[KernelMeasured]:
    """Measures every method on the same inputs. bandwidth: bytes per second of a copy."""
    size = (2 * k + 1) * b * vocab * getattr(torch, dtype).itemsize
    num_calls = LARGER_THAN_L2 / size if bench.device == "cuda" else 1
    inputs = [_inputs(bench, b, k, vocab, dtype, acceptance, i) for i in range(min(96, max(2, round(num_calls))))]
    sampling = sampling_of(bench, b)
    count = torch.full((b,), k, dtype=torch.int32, device=bench.device)
    # The rates of standard verification, so that synthetic verification accepts equally many drafts.
    rates = torch.tensor([acceptance ** (i + 1) for i in range(k)], device=bench.device)
    for method in bench.methods:

        def verify(x: _VerificationInputs, method: Method = method) -> RejectionOutput:
            return rejection_sample(
                x.target,
                x.tokens,
                count,
                x.positions,
                sampling,
                draft_logits=x.draft,
                draft_lse=x.lse,
                method=method,
                synthetic_rates=rates if method == "synthetic" else None,
            )

        emitted = torch.cat([verify(x).num_emitted for x in inputs])
        times = time_calls([partial(verify, x) for x in inputs], bench.replays, bench.device)
        yield KernelMeasured(
            batch=b,
            k=k,
            vocab=vocab,
            dtype=dtype,
            method=method,
            draft_lse=bench.draft_lse,
            acceptance=acceptance,
            acceptance_length=float(emitted.double().mean()),
            **figures(times, size, bandwidth),
        )


def sweep(bench: KernelBench) -> Iterator[KernelMeasured]:
    """Measures every combination of shapes, dtypes, acceptance rates and methods."""
    bandwidth = copy_bandwidth(bench.device)
    for shape in product(bench.batches, bench.ks, bench.vocabs, bench.dtypes, bench.acceptances):
        yield from measure(bench, bandwidth, *shape)

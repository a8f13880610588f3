"""The classical interface of rejection sampling, as in vLLM's V1 engine: flat rows, probabilities, torch generators.

For code written for that interface. `rejection_sample` works from raw logits, faster and with keyed randomness.
Shapes: B requests, T draft tokens of all requests, V vocabulary entries, S drafts per request at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from specpipe_kernels.operations.sample_recovered_tokens import sample_recovered_tokens
from specpipe_kernels.reference.sampling.kept_logits import kept_logits, select_rows
from specpipe_kernels.reference.sampling.philox import exponential_of, uniform_of
from specpipe_kernels.types import SamplingTensors

PLACEHOLDER_TOKEN_ID = -1


class DraftMetadata(Protocol):
    """Drafts of a round, as in vLLM's SpecDecodeMetadata."""

    draft_token_ids: Tensor
    """[T] int, request after request."""
    num_draft_tokens: Sequence[int]
    """[B] number of drafts of each request."""
    cu_num_draft_tokens: Tensor
    """[B] int: inclusive cumulative sums of num_draft_tokens."""
    max_spec_len: int
    """S, the largest number of drafts of a request."""


class SamplingMetadata(Protocol):
    """Sampling parameters of B requests, as in vLLM's SamplingMetadata."""

    temperature: Tensor | None
    """[B]; 0 is greedy. None with all_greedy."""
    top_k: Tensor | None
    """[B] int; 0 keeps all. None: off for all requests."""
    top_p: Tensor | None
    """[B]; 1 keeps all. None: off for all requests."""
    all_greedy: bool
    """Every request is greedy."""
    generators: Mapping[int, torch.Generator]
    """Generators of the requests that have a seed of their own."""


class RejectionSampler:
    """Accepts drafts where u q < p and replaces the first rejected one, or appends the bonus token if none is."""

    def __call__(
        self,
        metadata: DraftMetadata,
        draft_probs: Tensor | None,
        target_logits: Tensor,
        bonus_token_ids: Tensor,
        sampling_metadata: SamplingMetadata,
    ) -> Tensor:
        """Calls `forward`."""
        return self.forward(metadata, draft_probs, target_logits, bonus_token_ids, sampling_metadata)

    def forward(
        self,
        metadata: DraftMetadata,
        draft_probs: Tensor | None,
        target_logits: Tensor,
        bonus_token_ids: Tensor,
        sampling_metadata: SamplingMetadata,
    ) -> Tensor:
        """Returns [B, S+1] int32 output tokens, padded with -1.

        Args:
            metadata: the drafts.
            draft_probs: [T, V], or None for one-hot proposals.
            target_logits: [T, V], one row for each draft, before temperature.
            bonus_token_ids: [B, 1], drawn by the caller.
            sampling_metadata: temperature, top-k and top-p are applied to the target only, not to draft_probs.

        Raises ValueError if `target_logits` does not have one row for each draft.
        """
        ids = metadata.draft_token_ids.long()
        if target_logits.dim() != 2 or target_logits.shape[0] != ids.shape[0]:
            raise ValueError(f"target_logits {list(target_logits.shape)}; expected a row for each of {len(ids)} drafts")
        counts = torch.diff(metadata.cu_num_draft_tokens.long(), prepend=ids.new_zeros(1))
        starts = metadata.cu_num_draft_tokens.long() - counts
        request = torch.arange(len(counts), device=ids.device)
        owners = torch.repeat_interleave(request, counts, output_size=len(ids))
        last = target_logits.argmax(-1)
        accept = last == ids
        if not sampling_metadata.all_greedy:
            sampling = _tensors(sampling_metadata)
            greedy = sampling.temperature[owners] == 0
            probs = kept_logits(target_logits, select_rows(sampling, owners)).softmax(-1)
            u, inverse_noise = _random(metadata.num_draft_tokens, probs, sampling_metadata.generators)
            accept = torch.where(greedy, accept, _accepted(probs, draft_probs, ids, u))
            recovered = sample_recovered_tokens(probs, draft_probs, ids, inverse_noise=inverse_noise, noise_rows=owners)
            last = torch.where(greedy, last, recovered)
        return _arrange(ids, accept & (ids >= 0), last, starts, counts, metadata.max_spec_len, bonus_token_ids)

    @staticmethod
    def parse_output(output_token_ids: Tensor, vocab_size: int) -> list[list[int]]:
        """Returns the tokens of each request on the host, without padding and ids beyond the vocabulary."""
        rows: list[list[int]] = output_token_ids.tolist()
        return [[t for t in row if PLACEHOLDER_TOKEN_ID != t < vocab_size] for row in rows]


def _tensors(metadata: SamplingMetadata) -> SamplingTensors:
    if metadata.temperature is None:
        raise ValueError("temperature is None although all_greedy is False; expected [B]")
    ones = torch.ones_like(metadata.temperature, dtype=torch.float32)
    return SamplingTensors(
        temperature=metadata.temperature.float(),
        top_k=ones.int() * 0 if metadata.top_k is None else metadata.top_k,
        top_p=ones if metadata.top_p is None else metadata.top_p.float(),
        min_p=ones * 0,
        seed=ones.long(),
        truncated=metadata.top_k is not None or metadata.top_p is not None,
    )


def _random(counts: Sequence[int], probs: Tensor, generators: Mapping[int, torch.Generator]) -> tuple[Tensor, Tensor]:
    """Returns uniforms [T] and inverse exponentials [B, V]. A request without drafts does not advance its generator."""

    def words(*shape: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.randint(2**32, shape, generator=generator, device=probs.device)

    u, noise = words(probs.shape[0]), words(len(counts), probs.shape[1])
    start = 0
    for request, count in enumerate(counts):
        generator = generators.get(request)
        if generator is not None and count:
            u[start : start + count] = words(count, generator=generator)
            noise[request] = words(probs.shape[1], generator=generator)
        start += count
    return uniform_of(u), exponential_of(uniform_of(noise)).reciprocal_()


def _accepted(probs: Tensor, draft_probs: Tensor | None, ids: Tensor, u: Tensor) -> Tensor:
    """Returns [T] bool: u q < p for each draft. probs [T, V], draft_probs [T, V] or None, ids and u [T]."""
    at = ids.clamp(0, probs.shape[1] - 1)[:, None]
    p = probs.gather(-1, at)[:, 0].masked_fill(ids >= probs.shape[1], 0.0)
    q = torch.ones_like(p) if draft_probs is None else draft_probs.gather(-1, at)[:, 0]
    return (u * q < p) & (q > 0)


def _arrange(
    ids: Tensor, accept: Tensor, last: Tensor, starts: Tensor, counts: Tensor, width: int, bonus: Tensor
) -> Tensor:
    """Returns [B, width+1] int32: the accepted drafts of each request, then its replacement or bonus token."""
    position = torch.arange(width + 1, device=ids.device)
    row = (starts[:, None] + position).clamp_(max=max(0, len(ids) - 1))
    drafted = position < counts[:, None]
    padded = [torch.nn.functional.pad(x, (0, 1)) if len(ids) == 0 else x for x in (ids, accept, last)]
    tokens, passed, replacement = (x[row] for x in padded)
    accepted = (passed & drafted).long().cumprod(-1).sum(-1, keepdim=True)
    final = torch.where(accepted < counts[:, None], replacement, bonus.long())
    out = torch.where(position < accepted, tokens, final)
    return out.masked_fill(position > accepted, PLACEHOLDER_TOKEN_ID).int()

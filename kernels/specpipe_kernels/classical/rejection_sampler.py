"""The classical interface of rejection sampling, as in vLLM's V1 engine: flat rows, probabilities, torch generators.

For code written for that interface; `rejection_sample`, which does the work, takes raw logits and needs no copies.
Shapes: B requests, T draft tokens of all requests, V vocabulary entries, S drafts per request at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from specpipe_kernels.operations.rejection_sample import rejection_sample
from specpipe_kernels.types import MAX_DRAFTS, Bounds, SamplingTensors

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
    """[B]; 0 or below, such as -1, is greedy. None with all_greedy."""
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

        A request is empty, all -1, if a row that it needs cannot be sampled: one with NaN or +inf, or of -inf alone;
        see `failed`.

        Args:
            metadata: the drafts, at most 32 a request. A draft of -1 is never accepted.
            draft_probs: [T, V], or None for one-hot proposals.
            target_logits: [T, V], one row for each draft, before temperature.
            bonus_token_ids: [B] or [B, 1], drawn by the caller.
            sampling_metadata: temperature, top-k and top-p are applied to the target only, not to draft_probs.

        Raises ValueError for shapes that do not fit together, and for more drafts than 32 or `max_spec_len`.
        """
        ids, counts = metadata.draft_token_ids.long(), metadata.num_draft_tokens
        batch, width = len(counts), metadata.max_spec_len
        _check(ids, counts, width, draft_probs, target_logits, bonus_token_ids)
        bonus = bonus_token_ids.reshape(batch).long()
        if len(ids) == 0:
            return torch.nn.functional.pad(bonus[:, None], (0, width), value=PLACEHOLDER_TOKEN_ID).int()
        ends = metadata.cu_num_draft_tokens.long()
        starts = torch.nn.functional.pad(ends, (1, 0))
        rows = starts[:-1, None] + torch.arange(width, device=ids.device)
        drafted, rows = rows < ends[:, None], rows.clamp(max=len(ids) - 1)
        # An id beyond the vocabulary has no probability: it is rejected, where -1 would end the drafts.
        drafts = torch.where(ids < 0, target_logits.shape[1], ids)[rows]
        sampling = _tensors(sampling_metadata, counts, target_logits)
        q, lse, bounds = _draft_logits(draft_probs, rows, sampling)
        out = rejection_sample(
            target_logits.contiguous(), drafts, drafted.sum(-1, dtype=torch.int32), torch.zeros_like(bonus), sampling,
            draft_logits=q, draft_lse=lse, draft_bounds=bounds, cu_rows=starts, bonus_tokens=bonus,
        )  # fmt: skip
        return out.tokens.int()

    @staticmethod
    def failed(output_token_ids: Tensor) -> Tensor:
        """Returns [B] bool: the request's logits could not be sampled, so that it has no token. No sync with a GPU."""
        return output_token_ids[:, 0] == PLACEHOLDER_TOKEN_ID

    @staticmethod
    def parse_output(output_token_ids: Tensor, vocab_size: int) -> list[list[int]]:
        """Returns the tokens of each request on the host, without padding and ids beyond the vocabulary."""
        rows: list[list[int]] = output_token_ids.tolist()
        return [[t for t in row if PLACEHOLDER_TOKEN_ID != t < vocab_size] for row in rows]


def _check(
    ids: Tensor, counts: Sequence[int], width: int, draft_probs: Tensor | None, target_logits: Tensor, bonus: Tensor
) -> None:
    if target_logits.dim() != 2 or target_logits.shape[0] != len(ids):
        raise ValueError(f"target_logits {list(target_logits.shape)}; expected a row for each of {len(ids)} drafts")
    if draft_probs is not None and draft_probs.shape != target_logits.shape:
        raise ValueError(f"draft_probs {list(draft_probs.shape)}; expected [T, V] = {list(target_logits.shape)}")
    if bonus.shape not in ((len(counts),), (len(counts), 1)):
        raise ValueError(f"bonus_token_ids {list(bonus.shape)}; expected [B] or [B, 1], B = {len(counts)}")
    if not max(counts, default=0) <= width <= MAX_DRAFTS:
        raise ValueError(
            f"max_spec_len={width}, and {max(counts, default=0)} drafts in a request; expected the largest number of "
            f"drafts, at most {MAX_DRAFTS}"
        )


def _tensors(metadata: SamplingMetadata, counts: Sequence[int], logits: Tensor) -> SamplingTensors:
    seeds = torch.randint(2**62, (len(counts),), device=logits.device)
    for request, generator in metadata.generators.items():
        if counts[request]:  # a request without drafts does not advance its generator
            seeds[request] = torch.randint(2**62, (), generator=generator, device=generator.device)
    if metadata.temperature is None and not metadata.all_greedy:
        raise ValueError("temperature is None although all_greedy is False; expected [B]")
    ones = torch.ones_like(seeds, dtype=torch.float32)
    return SamplingTensors(
        temperature=ones * 0 if metadata.temperature is None or metadata.all_greedy else metadata.temperature.float(),
        top_k=ones.int() * 0 if metadata.top_k is None else metadata.top_k.int(),
        top_p=ones if metadata.top_p is None else metadata.top_p.float(),
        min_p=ones * 0,
        seed=seeds,
        all_greedy=metadata.all_greedy,
        truncated=metadata.top_k is not None or metadata.top_p is not None,
    )


def _draft_logits(
    probs: Tensor | None, rows: Tensor, sampling: SamplingTensors
) -> tuple[Tensor | None, Tensor | None, Bounds | None]:
    """Returns logits [B, S, V] whose softmax at the request's temperature is `probs`, log-sum-exps, open bounds."""
    if probs is None or sampling.all_greedy:
        return None, None, None
    temperature = torch.where(sampling.temperature > 0, sampling.temperature, 1.0)
    logits = probs.float().log()[rows] * temperature[:, None, None]
    shape, device = rows.shape, rows.device
    token = torch.full(shape, torch.iinfo(torch.int32).max, dtype=torch.int32, device=device)
    bounds = Bounds(torch.full(shape, -torch.inf, device=device), token) if sampling.truncated else None
    return logits, torch.zeros(shape, dtype=torch.float64, device=device), bounds

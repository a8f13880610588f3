"""Verification of drafts against the target's logits, in plain torch and without host synchronisation.

R rows (requests), K drafts at most, N rows of target logits, V vocabulary entries, D rows of draft logits.
Position i of a row follows i drafts: it verifies draft i, and the last one draws the bonus token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from specpipe_kernels.reference.sampling import acceptance_rules as acceptance
from specpipe_kernels.reference.sampling.acceptance_rules import Accepted
from specpipe_kernels.reference.sampling.chunk_draw import draw
from specpipe_kernels.reference.sampling.kept_logits import bounds_of, kept_logits, log_shift, select_rows, status_of
from specpipe_kernels.reference.sampling.philox import gumbel
from specpipe_kernels.types import Bounds, Method, Purpose, RejectionOutput, SamplingTensors


@dataclass(frozen=True, kw_only=True, slots=True)
class _Round:
    """The arguments of a round, in a layout of R rows."""

    target_logits: Tensor
    """[N, V]"""
    rows: Tensor
    """[R, K+1] row of target_logits of each position."""
    owners: Tensor
    """[N] request of each row of target_logits."""
    bounds: Bounds | None
    """[N] each."""
    drafts: Tensor
    """[R, K], never negative."""
    counts: Tensor
    """[R] number of drafts before the first placeholder."""
    positions: Tensor
    """[R] position of the first token that the round emits."""
    sampling: SamplingTensors
    """Parameters of R rows."""
    draft_logits: Tensor | None
    """[R, K, Vd]"""
    draft_lse: Tensor | None
    """[R, K]"""
    draft_bounds: Bounds | None
    """[R, K]"""
    one_hot: Tensor | None
    """[R] bool: requests whose proposals are one-hot beside draft_logits; None without any."""
    bonus_tokens: Tensor | None
    """[R]"""

    @property
    def num_drafts(self) -> int:
        """K."""
        return self.drafts.shape[1]


def rejection_sample(
    target_logits: Tensor,
    draft_tokens: Tensor,
    num_draft_tokens: Tensor,
    positions: Tensor,
    sampling: SamplingTensors,
    *,
    draft_logits: Tensor | None = None,
    draft_rows: Tensor | None = None,
    draft_lse: Tensor | None = None,
    draft_bounds: Bounds | None = None,
    cu_rows: Tensor | None = None,
    bonus_tokens: Tensor | None = None,
    method: Method = "standard",
    synthetic_rates: Tensor | None = None,
    counts: Tensor | None = None,
) -> RejectionOutput:
    """See `specpipe_kernels.rejection_sample`."""
    r = _arrange(
        target_logits,
        draft_tokens,
        num_draft_tokens,
        positions,
        sampling,
        draft_logits,
        draft_rows,
        draft_lse,
        draft_bounds,
        cu_rows,
        bonus_tokens,
    )
    out = _decide(r, method, synthetic_rates)
    if counts is not None:
        _add_counts(r, out, counts)
    return out


def _decide(r: _Round, method: Method, synthetic_rates: Tensor | None) -> RejectionOutput:
    target_logits, sampling = r.target_logits, r.sampling
    best = target_logits.argmax(-1, keepdim=True)
    status = status_of(target_logits.gather(-1, best)[:, 0])[r.rows]
    if r.bonus_tokens is not None:  # the bonus row is not read
        status = status.masked_fill(torch.arange(r.num_drafts + 1, device=status.device) == r.counts[:, None], 0)
    best = best[:, 0][r.rows]
    matches = r.drafts == best[:, :-1]
    if sampling.all_greedy:
        if synthetic_rates is not None:
            matches = acceptance.synthetic(synthetic_rates, sampling.seed, r.positions)
        count = acceptance.leading(_allowed(r, matches, status))
        return _emit(r, count, best.gather(-1, count[:, None])[:, 0], status)
    if method == "invariant":
        drawn = torch.where(sampling.temperature[:, None] > 0, _invariant_draws(r), best)
        count = acceptance.leading(_allowed(r, r.drafts == drawn[:, :-1], status))
        return _emit(r, count, drawn.gather(-1, count[:, None])[:, 0], status)
    return _verify(r, method, best, matches, status, synthetic_rates)


def _arrange(
    target_logits: Tensor,
    draft_tokens: Tensor,
    num_draft_tokens: Tensor,
    positions: Tensor,
    sampling: SamplingTensors,
    draft_logits: Tensor | None,
    draft_rows: Tensor | None,
    draft_lse: Tensor | None,
    draft_bounds: Bounds | None,
    cu_rows: Tensor | None,
    bonus_tokens: Tensor | None,
) -> _Round:
    (requests, k), n = draft_tokens.shape, target_logits.shape[0]
    index = torch.arange(k + 1, device=target_logits.device)
    row = torch.arange(n, device=target_logits.device)
    if cu_rows is None:
        owners = row // (k + 1)
        rows = row.view(requests, k + 1)
    else:
        owners = (torch.searchsorted(cu_rows.long(), row, right=True) - 1).clamp_(0, requests - 1)
        rows = (cu_rows[:-1, None] + index).clamp_(max=n - 1)
    usable = (index[:-1] < num_draft_tokens[:, None]) & (draft_tokens >= 0)
    if draft_logits is not None:
        slots, more = slice(0, requests) if draft_rows is None else draft_rows.long(), k - draft_logits.shape[1]
        draft_logits = pad(draft_logits[slots], (0, 0, 0, more))
        draft_lse = None if draft_lse is None else pad(draft_lse[slots], (0, more))
        draft_bounds = draft_bounds and Bounds(*(pad(x[slots], (0, more)) for x in draft_bounds))
    return _Round(
        target_logits=target_logits,
        rows=rows,
        owners=owners,
        bounds=bounds_of(target_logits, select_rows(sampling, owners)),
        drafts=draft_tokens.clamp(min=0),
        counts=acceptance.leading(usable),
        positions=positions,
        sampling=sampling,
        draft_logits=draft_logits,
        draft_lse=draft_lse,
        draft_bounds=draft_bounds,
        one_hot=None if draft_logits is None or draft_rows is None else draft_rows < 0,
        bonus_tokens=bonus_tokens,
    )


def _add_counts(r: _Round, out: RejectionOutput, counts: Tensor) -> None:
    """Adds drafts reached, accepted, recovered and bonus tokens by position to counts [4, K+1]."""
    index = torch.arange(r.num_drafts + 1, device=counts.device)
    valid, accepted, drafts = (out.status == 0)[:, None], out.num_accepted[:, None], r.counts[:, None]
    last = index == accepted
    rows = ((index <= accepted) & (index < drafts), index < accepted, last & (index < drafts), last & (index == drafts))
    counts += torch.stack([(x & valid).sum(0) for x in rows])


def _allowed(r: _Round, accept: Tensor, status: Tensor) -> Tensor:
    """Returns [R, K] bool: accepted, before the first placeholder, and with valid logits."""
    index = torch.arange(r.num_drafts, device=accept.device)
    return accept & (index < r.counts[:, None]) & (status[:, :-1] == 0)


def _emit(r: _Round, count: Tensor, last: Tensor, status: Tensor) -> RejectionOutput:
    """Returns accepted drafts, then `last` [R]; no token where the final position is invalid. status is [R, K+1]."""
    status = status.gather(-1, count[:, None])
    index = torch.arange(r.num_drafts + 1, device=last.device)
    if r.bonus_tokens is not None:
        last = torch.where(count == r.counts, r.bonus_tokens, last)
    drafts = torch.nn.functional.pad(r.drafts, (0, 1))
    tokens = torch.where(index < count[:, None], drafts, last[:, None])
    tokens = tokens.masked_fill((index > count[:, None]) | (status != 0), -1)
    valid = (status == 0)[:, 0]
    accepted = (count * valid).int()
    bounds = None if r.bounds is None or r.bonus_tokens is not None else Bounds(*(x[r.rows] for x in r.bounds))
    return RejectionOutput(tokens, accepted + valid.int(), accepted, status[:, 0], bounds)


def _invariant_draws(r: _Round) -> Tensor:
    """Returns [R, K+1]: the token that plain sampling draws at every position after the drafts before it."""
    index = torch.arange(r.num_drafts + 1, device=r.rows.device)
    kept = kept_logits(r.target_logits, select_rows(r.sampling, r.owners), r.bounds)
    seeds = r.sampling.seed[:, None].expand(r.rows.shape).flatten()
    positions = (r.positions[:, None] + index).flatten()
    scores = gumbel(seeds, positions, 0, Purpose.INVARIANT, kept.shape[1]).add_(kept[r.rows.flatten()])
    return scores.argmax(-1).view(r.rows.shape)


def _verify(
    r: _Round, method: Method, best: Tensor, matches: Tensor, status: Tensor, synthetic_rates: Tensor | None
) -> RejectionOutput:
    """Verifies with the methods standard, block and synthetic; greedy rows may be among random ones."""
    greedy = ~(r.sampling.temperature > 0)
    kept = kept_logits(r.target_logits, select_rows(r.sampling, r.owners), r.bounds)
    if r.num_drafts == 0:
        unit = Accepted(r.counts, torch.ones_like(r.sampling.temperature))
        return _emit(r, r.counts, torch.where(greedy, best[:, 0], _draw(r, unit, kept, None, None)), status)
    log_p = kept - kept.logsumexp(-1, keepdim=True)
    log_q, draft_status = _draft_log_probs(r)
    status = _merge_status(r, status, draft_status, greedy)
    p_x = _gather_drafts(log_p[r.rows[:, :-1]], r.drafts)
    q_x = torch.zeros_like(p_x) if log_q is None else _gather_drafts(log_q, r.drafts)
    if method == "synthetic":
        assert synthetic_rates is not None
        accept = acceptance.synthetic(synthetic_rates, r.sampling.seed, r.positions)
    else:
        accept = torch.where(greedy[:, None], matches, acceptance.standard(p_x, q_x, r.sampling.seed, r.positions))
    accepted = Accepted(acceptance.leading(_allowed(r, accept, status)), torch.ones_like(p_x[:, 0]))
    if method == "block":
        status = _spread_status(r, status, greedy)
        by_block = _block(r, log_p, log_q, p_x, q_x)
        count = torch.where(greedy, accepted.length, by_block.length)
        accepted = Accepted(count, torch.where(greedy, accepted.weight, by_block.weight))
    drawn = _draw(r, accepted, kept, log_p, log_q)
    last = torch.where(greedy, best.gather(-1, accepted.length[:, None])[:, 0], drawn)
    return _emit(r, accepted.length, last, status)


def _draft_log_probs(r: _Round) -> tuple[Tensor | None, Tensor | None]:
    """Returns log q [R, K, Vd] and the status of each draft row [R, K]; None, None with one-hot proposals alone."""
    if r.draft_logits is None:
        return None, None
    log_q, status = _model_log_probs(r, r.draft_logits)
    if r.one_hot is None:
        return log_q, status
    vocab = r.target_logits.shape[1]
    is_draft = torch.arange(vocab, device=status.device) == r.drafts[..., None]
    hot = torch.where(is_draft, 0.0, -torch.inf)
    return torch.where(r.one_hot[:, None, None], hot, _aligned(log_q, vocab)), status.masked_fill(r.one_hot[:, None], 0)


def _model_log_probs(r: _Round, draft_logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns log q [R, K, Vd] of the draft's logits and the status of each row [R, K]."""
    requests, k, vocab = draft_logits.shape
    flat = draft_logits.reshape(requests * k, vocab)
    owners = torch.arange(requests * k, device=flat.device) // k
    bounds = Bounds(*(x.flatten() for x in r.draft_bounds)) if r.draft_bounds else None
    sampling = select_rows(r.sampling, owners)
    kept = kept_logits(flat, sampling, bounds)
    if r.draft_lse is None:
        status = status_of(flat.amax(-1)).view(requests, k)
        return (kept - kept.logsumexp(-1, keepdim=True)).view(requests, k, vocab), status
    mass = (r.draft_lse - log_shift(flat, sampling).view(requests, k)).float()
    return kept.view(requests, k, vocab) - mass[..., None], status_of(r.draft_lse)


def _merge_status(r: _Round, status: Tensor, draft_status: Tensor | None, greedy: Tensor) -> Tensor:
    """Returns [R, K+1] statuses: a draft with invalid draft logits cannot be verified."""
    if draft_status is None:
        return status
    drafted = (torch.arange(r.num_drafts, device=status.device) < r.counts[:, None]) & ~greedy[:, None]
    merged = torch.where((status[:, :-1] == 0) & drafted, draft_status, status[:, :-1])
    return torch.cat([merged, status[:, -1:]], dim=-1)


def _spread_status(r: _Round, status: Tensor, greedy: Tensor) -> Tensor:
    """Returns [R, K+1] statuses: block verification reads all positions, so one invalid position fails a random row."""
    verified = torch.arange(r.num_drafts + 1, device=status.device) < r.counts[:, None]
    worst = (status * verified).amax(-1, keepdim=True)
    return torch.where(~greedy[:, None] & (worst > 0), worst, status)


def _gather_drafts(log_probs: Tensor, drafts: Tensor) -> Tensor:
    """Returns the entries [R, K] of log_probs [R, K, V] at drafts [R, K]; -inf for ids beyond the vocabulary."""
    vocab = log_probs.shape[-1]
    found = log_probs.gather(-1, drafts.clamp(max=vocab - 1)[..., None])[..., 0]
    return found.masked_fill(drafts >= vocab, -torch.inf)


def _log_residual(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Returns log max(p - q, 0) without cancellation: log p + log(-expm1(log q - log p))."""
    difference = log_q - log_p
    return torch.where(difference < 0, log_p + (-torch.expm1(difference)).log(), -torch.inf)


def _aligned(log_q: Tensor, vocab: int) -> Tensor:
    """Returns log q over the target's vocabulary; q is 0 for tokens that the draft does not have."""
    return torch.nn.functional.pad(log_q[..., :vocab], (0, max(0, vocab - log_q.shape[-1])), value=-torch.inf)


def _block(r: _Round, log_p: Tensor, log_q: Tensor | None, p_x: Tensor, q_x: Tensor) -> Accepted:
    """Applies block verification; p_x and q_x [R, K] are the log-probabilities of the drafts."""
    weights = acceptance.prefix_weights(p_x, q_x)
    inner = weights[:, 1:-1]
    if log_q is None:
        mass = inner * -torch.expm1(p_x[:, 1:])
    else:
        p = inner[..., None] * log_p[r.rows[:, 1:-1]].exp()
        mass = (p - _aligned(log_q[:, 1:], p.shape[-1]).exp()).clamp_(min=0).sum(-1)
    return acceptance.block(weights, mass, r.counts, r.sampling.seed, r.positions)


def _draw(r: _Round, accepted: Accepted, kept: Tensor, log_p: Tensor | None, log_q: Tensor | None) -> Tensor:
    """Draws [R] tokens from the residual after a rejection, otherwise, or if that is empty (p = q), from p."""
    count, vocab = accepted.length, kept.shape[1]
    row = r.rows.gather(-1, count[:, None])[:, 0]
    rejected = count < r.counts
    scores = kept[row]
    if log_p is not None:
        last = count.clamp(max=r.num_drafts - 1)[:, None]
        if log_q is None:
            drafts = r.drafts.gather(-1, last)
            q = torch.where(torch.arange(vocab, device=row.device) == drafts, 0.0, -torch.inf)
        else:
            q = _aligned(log_q.take_along_dim(last[..., None], 1)[:, 0], vocab)
        residual = _log_residual(log_p[row] + accepted.weight.log()[:, None], q)
        usable = rejected & (residual.amax(-1) > -torch.inf)
        scores = torch.where(usable[:, None], residual, scores)
    purpose = torch.where(rejected, Purpose.RECOVERED, Purpose.BONUS)
    return draw(scores, r.sampling.seed, r.positions + count, count, purpose)

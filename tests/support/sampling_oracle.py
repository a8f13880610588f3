"""Sampling and verification directly from the formulas, in fp64 and Python loops, one request at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
DRAFT, ACCEPT, RECOVERED, BONUS, INVARIANT, BLOCK = range(1, 7)
CHUNK = 2048


@dataclass(frozen=True, kw_only=True)
class Row:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    position: int = 0


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10, in Python integers."""
    c, (k0, k1) = counter, key
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = ((b >> 32) ^ c[1] ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k1, a & 0xFFFFFFFF)
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def uniforms(seed: int, position: int, index: int, purpose: int, vocab: int) -> Array:
    key = (seed & 0xFFFFFFFF, seed >> 32)
    words: list[int] = []
    for chunk in range(-(-vocab // 4)):
        words += philox((chunk, position & 0xFFFFFFFF, index, purpose), key)
    return (np.array(words[:vocab], dtype=np.float64) + 0.5) / 2.0**32


def gumbel(seed: int, position: int, index: int, purpose: int, vocab: int) -> Array:
    return -np.log(-np.log1p(-uniforms(seed, position, index, purpose, vocab)))


def chunk_gumbel(seed: int, position: int, index: int, purpose: int, chunks: int) -> Array:
    key = (seed & 0xFFFFFFFF, seed >> 32)
    words = [philox((2**30 + c, position & 0xFFFFFFFF, index, purpose), key)[0] for c in range(chunks)]
    return -np.log(-np.log1p(-(np.array(words, dtype=np.float64) + 0.5) / 2.0**32))


def point(size: int, at: int) -> Array:
    p = np.zeros(size)
    p[at] = 1.0
    return p


def distribution(logits: Array, row: Row) -> Array:
    """Temperature, then top-k, top-p, min-p; ties at a cut are kept from the lowest index on."""
    if row.temperature == 0:
        return point(len(logits), int(np.argmax(logits)))
    ranking = sorted(range(len(logits)), key=lambda x: (-logits[x], x))
    weight = np.exp((logits - logits[ranking[0]]) / row.temperature)
    if row.top_k:
        ranking = ranking[: row.top_k]
    if row.top_p < 1:
        total, before, kept = sum(weight[x] for x in ranking), 0.0, []
        for x in ranking:
            if kept and before >= row.top_p * total:
                break
            kept.append(x)
            before += weight[x]
        ranking = kept
    ranking = [x for x in ranking if weight[x] >= row.min_p * weight[ranking[0]]]
    p = np.zeros(len(logits))
    p[ranking] = weight[ranking]
    return p / p.sum()


def status_of(logits: Array) -> int:
    if np.isnan(logits).any() or np.isposinf(logits).any():
        return 1
    return 2 if np.isneginf(logits).all() else 0


def draw(p: Array, noise: Array) -> int:
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(p) + noise))


def draw_keyed(p: Array, seed: int, position: int, index: int, purpose: int) -> int:
    """Draws a chunk by its mass, then a token of it; INVARIANT draws the token directly."""
    noise = gumbel(seed, position, index, purpose, len(p))
    if purpose == INVARIANT:
        return draw(p, noise)
    starts = range(0, len(p), CHUNK)
    masses = np.array([p[start : start + CHUNK].sum() for start in starts])
    start = starts[draw(masses, chunk_gumbel(seed, position, index, purpose, len(starts)))]
    return start + draw(p[start : start + CHUNK], noise[start : start + CHUNK])


def sample(logits: Array, row: Row, purpose: int, index: int) -> tuple[int, float, int]:
    """Returns token, log-sum-exp of the kept logits over temperature (0 for greedy rows), status."""
    status = status_of(logits)
    if status:
        return -1, float("nan"), status
    p = distribution(logits, row)
    if row.temperature == 0:
        return int(np.argmax(logits)), 0.0, 0
    best = int(np.argmax(logits))
    index = 0 if purpose == INVARIANT else index
    token = draw_keyed(p, row.seed, row.position, index, purpose)
    return token, float(logits[best] / row.temperature - np.log(p[best])), 0


def verify(
    p_logits: Array, q_logits: Array | None, drafts: list[int], row: Row, method: str, rates: list[float] | None = None
) -> tuple[list[int], int]:
    """Returns emitted tokens and number of accepted drafts; all rows are valid. `drafts` has no placeholder."""
    vocab, k = p_logits.shape[1], len(drafts)
    p = [distribution(x, row) for x in p_logits[: k + 1]]
    if method == "invariant":
        return _verify_invariant(p, p_logits, drafts, row)
    q = _proposals(q_logits, drafts, row, vocab)
    weights = [1.0]
    if row.temperature == 0:
        q = [point(vocab + 1, min(x, vocab)) for x in drafts]
    for i, x in enumerate(drafts):
        ratio = _at(p[i], x) / q[i][min(x, vocab)] if q[i][min(x, vocab)] > 0 else 0.0
        weights.append(min(weights[-1] * ratio, 1.0))
    if method == "block" and row.temperature > 0:
        accepted = _longest_block(p, q, weights, k, row)
    else:
        accepted, weights = _accept_in_turn(p, q, drafts, row, method, rates), [1.0] * (k + 1)
    return _finish(p, q, drafts, accepted, weights[accepted], row)


def _at(p: Array, x: int) -> float:
    return float(p[x]) if x < len(p) else 0.0


def _proposals(q_logits: Array | None, drafts: list[int], row: Row, vocab: int) -> list[Array]:
    """Returns q over the target's vocabulary, and in a last entry the mass beyond it."""
    out = []
    for i, x in enumerate(drafts):
        q = np.zeros(vocab + 1)
        if q_logits is None:
            q[min(x, vocab)] = 1.0
        else:
            full = distribution(q_logits[i], row)
            q[: min(vocab, len(full))] = full[:vocab]
            q[vocab] = _at(full, x) if x >= vocab else 0.0
        out.append(q)
    return out


def _verify_invariant(p: list[Array], p_logits: Array, drafts: list[int], row: Row) -> tuple[list[int], int]:
    emitted: list[int] = []
    for i in range(len(drafts) + 1):
        drawn = draw_keyed(p[i], row.seed, row.position + i, 0, INVARIANT)
        emitted.append(int(np.argmax(p_logits[i])) if row.temperature == 0 else drawn)
        if i == len(drafts) or drafts[i] != emitted[i]:
            break
    return emitted, len(emitted) - 1


def _accept_in_turn(
    p: list[Array], q: list[Array], drafts: list[int], row: Row, method: str, rates: list[float] | None
) -> int:
    for i, x in enumerate(drafts):
        u = uniforms(row.seed, row.position + i, i, ACCEPT, 1)[0]
        if method == "synthetic":
            assert rates is not None
            before = rates[i - 1] if i else 1.0
            passed = u < (rates[i] / before if before > 0 else 0.0)
        elif row.temperature == 0:
            passed = _at(p[i], x) == 1.0
        else:
            passed = u * q[i][min(x, len(p[i]))] < _at(p[i], x)
        if not passed:
            return i
    return len(drafts)


def _longest_block(p: list[Array], q: list[Array], weights: list[float], k: int, row: Row) -> int:
    longest = 0
    for i in range(1, k + 1):
        h = weights[k]
        if i < k:
            s = np.maximum(weights[i] * p[i] - q[i][:-1], 0).sum()
            h = 1.0 if weights[i] == 1.0 else s / (s + 1 - weights[i])
        if uniforms(row.seed, row.position + i - 1, i - 1, BLOCK, 1)[0] <= h:
            longest = i
    return longest


def _finish(
    p: list[Array], q: list[Array], drafts: list[int], accepted: int, weight: float, row: Row
) -> tuple[list[int], int]:
    last, purpose = p[accepted], BONUS
    if accepted < len(drafts):
        purpose = RECOVERED
        residual = np.maximum(weight * last - q[accepted][:-1], 0)
        if residual.sum() > 0:
            last = residual / residual.sum()
    if row.temperature == 0:
        last = p[accepted]
    drawn = draw_keyed(last, row.seed, row.position + accepted, accepted, purpose)
    return [*drafts[:accepted], drawn], accepted

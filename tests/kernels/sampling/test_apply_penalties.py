"""`apply_penalties` and `count_tokens`, reference and Triton, against penalties in Python and fp64."""

from __future__ import annotations

import pytest
import torch
from support.penalty_cases import History, counted, penalised, random_history
from support.sampling_cases import BACKENDS, HEAVY, Backend
from transformers import RepetitionPenaltyLogitsProcessor

from specpipe_kernels import Penalties, apply_penalties

TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def some_drafts(rows: int, k: int, vocab: int, history: History) -> torch.Tensor:
    """New tokens, repeated ones, ones of the history and a placeholder."""
    drafts = torch.randint(0, vocab, (rows, k), generator=torch.Generator().manual_seed(k))
    if k > 1:
        drafts[0, 1] = drafts[0, 0]
        drafts[1, :2] = history.tokens[history.slots[1], 0]
    if k and rows > 2:
        drafts[2, -1] = -1
    return drafts


@pytest.mark.parametrize("backend", HEAVY)
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    ("vocab", "k", "longest"),
    [(16, 3, 40), (100, 1, 9), pytest.param(1031, 5, 2300, marks=pytest.mark.slow), (64, 0, 70)],
)
def test_equals_penalties_in_fp64(backend: Backend, dtype: torch.dtype, vocab: int, k: int, longest: int) -> None:
    rows = 6
    history = random_history(rows, vocab=vocab, longest=longest, seed=k)
    drafts = some_drafts(rows, k, vocab, history)
    logits = torch.randn(rows * (k + 1), vocab + 3).mul_(3).to(dtype)[:, :vocab]

    got = penalised(backend, logits, history, drafts).view(rows, k + 1, vocab)

    for r in range(rows):
        for i in range(k + 1):
            own = drafts[r, :i].tolist()
            if -1 in own:
                continue  # undefined: behind a placeholder
            expected = history.expected(r, logits[r * (k + 1) + i], own)
            torch.testing.assert_close(got[r, i].double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    neutral = (torch.arange(rows) % 5 == 0)[:, None, None]
    assert torch.equal(got.masked_fill(~neutral, 0), logits.view(rows, k + 1, vocab).masked_fill(~neutral, 0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_ragged_rows_and_single_steps_equal_whole_rounds(backend: Backend) -> None:
    rows, k, vocab = 5, 3, 50
    history = random_history(rows, vocab=vocab, longest=30, seed=3)
    drafts = some_drafts(rows, k, vocab, history).clamp(min=0)
    logits = torch.randn(rows * (k + 1), vocab)
    whole = penalised(backend, logits, history, drafts).view(rows, k + 1, vocab)
    counts = torch.tensor([3, 0, 2, 1, 3])
    used = torch.arange(k + 1) <= counts[:, None]
    cu_rows = torch.nn.functional.pad((counts + 1).cumsum(0), (1, 0))

    ragged = penalised(backend, logits.view(rows, k + 1, vocab)[used], history, drafts, cu_rows=cu_rows)
    step = penalised(backend, logits.view(rows, k + 1, vocab)[:, 2], history, drafts, first=2)

    assert torch.equal(ragged, whole[used])
    assert torch.equal(step, whole[:, 2])


@pytest.mark.parametrize("backend", BACKENDS)
def test_repetition_penalty_equals_transformers_bitwise(backend: Backend) -> None:
    prompt = [3, 9, 9, 4, 20, 3, 7]
    history = History(
        tokens=torch.tensor([prompt + [0] * 5]),
        prompts=[prompt[:2]],
        outputs=[prompt[2:]],
        slots=torch.zeros(1, dtype=torch.int32),
        lengths=torch.tensor([len(prompt)]),
        penalties=Penalties(torch.tensor([1.37]), torch.zeros(1), torch.zeros(1)),
    )
    logits = torch.randn(1, 33)

    got = penalised(backend, logits, history, torch.empty(1, 0, dtype=torch.int64))

    assert torch.equal(got, RepetitionPenaltyLogitsProcessor(1.37)(torch.tensor([prompt]), logits))


@pytest.mark.parametrize("backend", BACKENDS)
def test_banned_tokens_and_invalid_rows_stay_so(backend: Backend) -> None:
    history = random_history(5, vocab=16, longest=60, seed=1)
    logits = torch.full((5, 16), -torch.inf)
    logits[3] = torch.nan

    got = penalised(backend, logits, history, torch.empty(5, 0, dtype=torch.int64))

    assert torch.equal(got.isneginf(), logits.isneginf()) and torch.equal(got.isnan(), logits.isnan())


@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_beyond_a_narrower_vocabulary_are_ignored(backend: Backend) -> None:
    history = random_history(5, vocab=40, longest=60, seed=2)
    logits = torch.randn(5, 23)
    drafts = torch.full((5, 1), 39)

    got = penalised(backend, logits, history, drafts, first=1)

    for r in range(5):
        torch.testing.assert_close(got[r].double(), history.expected(r, logits[r], [39]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("width", [1, 4, 5])
def test_emitted_tokens_are_counted_once(backend: Backend, width: int) -> None:
    """Tokens of prompt and output, new and repeated new tokens; rows that emit nothing are unchanged."""
    rows, vocab = 10, 12
    history = random_history(rows, vocab=vocab, longest=30, seed=width)
    new = torch.randint(0, vocab, (rows, width), generator=torch.Generator().manual_seed(width))
    emitted = torch.arange(rows) % (width + 1)
    new.masked_fill_(torch.arange(width) >= emitted[:, None], -1)
    for r, slot in enumerate(history.slots.tolist()):
        count, at = int(emitted[r]), int(history.lengths[r])
        history.tokens[slot, at : at + count] = new[r, :count]

    got = counted(backend, history, new)

    before = history.seen()
    for r, slot in enumerate(history.slots.tolist()):
        end = int(history.lengths[r] + emitted[r])
        history.outputs[r].extend(new[r, : int(emitted[r])].tolist())
        neutral = r % 5 == 0
        expected = before if neutral else history.seen()
        assert torch.equal(got[slot, :end], expected[slot, :end])
        assert torch.equal(got[slot, end:], before[slot, end:])


def test_arguments_that_do_not_fit_are_named() -> None:
    history = random_history(2, vocab=8, longest=5)
    seen = history.seen()
    drafts = torch.zeros(2, 1, dtype=torch.int64)
    rest = (history.slots, history.lengths, history.penalties)
    with pytest.raises(ValueError, match="logits has 3 rows for 2 requests"):
        apply_penalties(torch.zeros(3, 8), history.tokens, seen, *rest, drafts)
    with pytest.raises(ValueError, match=r"seen .* expected \[S, C\], int32"):
        apply_penalties(torch.zeros(2, 8), history.tokens, seen.long(), *rest, drafts)
    with pytest.raises(ValueError, match="first=2; expected 0 to K = 1"):
        apply_penalties(torch.zeros(2, 8), history.tokens, seen, *rest, drafts, first=2)
    with pytest.raises(ValueError, match=r"presence \[1\]; expected one entry per request"):
        short = history.penalties._replace(presence=torch.zeros(1))
        apply_penalties(torch.zeros(2, 8), history.tokens, seen, history.slots, history.lengths, short, drafts)

"""`open_rows`, `feed_rows` and `commit_rows`: Triton against the reference, the reference against the rules."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from specpipe_kernels import Purpose, RejectionOutput, SamplingTensors, SlotTensors
from specpipe_kernels.reference.rounds.commit_rows import commit_rows as reference_commit_rows
from specpipe_kernels.reference.rounds.feed_rows import feed_rows as reference_feed_rows
from specpipe_kernels.reference.rounds.open_rows import open_rows as reference_open_rows
from specpipe_kernels.reference.sampling.sample import sample as reference_sample
from specpipe_kernels.rounds.commit_rows import commit_rows
from specpipe_kernels.rounds.feed_rows import feed_rows
from specpipe_kernels.rounds.open_rows import open_rows
from specpipe_kernels.sampling.sample import sample as triton_sample

on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
CAPACITY, PAGES, STOPS = 40, 7, 3


def make_state(slots: int, device: str, seed: int = 0) -> SlotTensors:
    """Returns slots of random content; the last one is the inactive dummy slot of the engine."""
    g = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.randint(low, high, shape, generator=g).to(device, dtype)

    length = draw(1, 25, slots)
    active = draw(0, 3, slots) > 0
    length[-1], active[-1] = 1, False
    return SlotTensors(
        tokens=draw(0, 9, slots, CAPACITY),
        length=length,
        draft_valid=(length - draw(0, 5, slots)).clamp(min=0),
        limit=length + draw(0, 6, slots),
        active=active,
        speculates=draw(0, 4, slots) > 0,
        stop_ids=draw(-1, 9, slots, STOPS),
        block_table=draw(0, 50, slots, PAGES, dtype=torch.int32),
        temperature=torch.rand(slots, generator=g).to(device),
        top_k=draw(0, 5, slots, dtype=torch.int32),
        top_p=torch.rand(slots, generator=g).to(device),
        min_p=torch.rand(slots, generator=g).to(device),
        seed=draw(0, 2**62, slots),
    )


def batch(slots: int, device: str) -> Tensor:
    """Returns all slots but one in another order, and two rows of padding."""
    order = torch.randperm(slots - 1, generator=torch.Generator().manual_seed(1))[: max(1, slots - 2)]
    return torch.cat([order, torch.tensor([slots - 1] * 2)]).to(device)


def verdict_of(rows: int, k: int, device: str, seed: int = 2) -> RejectionOutput:
    g = torch.Generator().manual_seed(seed)
    accepted = torch.randint(0, k + 1, (rows,), generator=g)
    status = (torch.rand(rows, generator=g) < 0.2).to(torch.int32)
    emitted = torch.where(status > 0, 0, accepted + 1)
    tokens = torch.randint(0, 9, (rows, k + 1), generator=g)
    tokens[torch.arange(k + 1) >= emitted[:, None]] = -1
    out = (tokens, emitted.int(), torch.where(status > 0, 0, accepted).int(), status)
    return RejectionOutput(*(t.to(device) for t in out))


def assert_same(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


@on_each_device
@pytest.mark.parametrize(("slots", "k", "width"), [(2, 0, 1), (5, 3, PAGES), (9, 7, 4)])
def test_open_rows_gathers_state_and_draft_limits(device: str, slots: int, k: int, width: int) -> None:
    state, rows = make_state(slots, device), batch(slots, device)
    want = reference_open_rows(state, rows, k=k, width=width)
    assert_same(open_rows(state, rows, k=k, width=width), want)
    for row, slot in enumerate(rows.tolist()):
        may_draft = state.active[slot] and state.speculates[slot]
        fits = min(k, max(0, int(state.limit[slot] - state.length[slot]) - 1)) if may_draft else 0
        behind = state.draft_valid[slot] < state.length[slot] - 2
        assert (want.max_drafts[row], want.max_model_drafts[row]) == (fits, 0 if behind else fits)


@on_each_device
@pytest.mark.parametrize(("shift", "width"), [(-2, 2), (-1, 1), (-1, 5), (0, 1), (2, 1)])
def test_feed_rows_takes_committed_tokens_then_drafts(device: str, shift: int, width: int) -> None:
    state, rows = make_state(6, device), batch(6, device)
    lengths = state.length[rows]
    drafts = torch.tensor([[3, 4, 5, 6], [7, -1, 8, 2]] * 8, device=device)[: len(rows)]
    want = reference_feed_rows(state, rows, lengths, drafts, shift=shift, width=width, last=20)
    got = feed_rows(state, rows, lengths, drafts, shift=shift, width=width, last=20)
    assert_same(got, want)
    tokens, positions = want.tokens.view(len(rows), width), want.positions.view(len(rows), width)
    for row, slot in enumerate(rows.tolist()):
        text = state.tokens[slot, : int(lengths[row])].tolist()
        proposed = [d if d >= 0 else text[-1] for d in drafts[row].tolist()]
        start = len(text) + shift
        assert tokens[row].tolist() == [(text + proposed)[max(0, start + t)] for t in range(width)]
        assert positions[row].tolist() == [min(max(0, start + t), 20) for t in range(width)]
        assert (want.starts[row], want.next[row]) == (start, start + width)


@on_each_device
def test_feed_rows_without_drafts(device: str) -> None:
    state, rows = make_state(4, device), batch(4, device)
    lengths = state.length[rows]
    want = reference_feed_rows(state, rows, lengths, None, shift=-1, width=1, last=99)
    assert_same(feed_rows(state, rows, lengths, None, shift=-1, width=1, last=99), want)
    assert want.tokens.tolist() == state.tokens[rows, lengths - 1].tolist()


@on_each_device
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("slots", "k"), [(2, 0), (7, 1), (12, 4)])
def test_commit_rows_stops_at_stop_ids_and_updates_slots(device: str, slots: int, k: int, seed: int) -> None:
    ours, theirs = make_state(slots, device, seed), make_state(slots, device, seed)
    rows = batch(slots, device)
    verdict, lengths = verdict_of(len(rows), k, device, seed), ours.length[rows]
    proposed = torch.where(torch.arange(len(rows), device=device) % 3 == 1, 0, k).int()
    sources = 3 if seed % 3 else torch.arange(len(rows), device=device).int() % 5
    how = {"sources": sources, "draft_steps": max(0, k - seed % 2) if seed < 4 else 0}
    want = reference_commit_rows(theirs, rows, lengths, verdict, proposed, **how)
    got = commit_rows(ours, rows, lengths, verdict, proposed, **how)
    assert torch.equal(got, want)
    assert_same(tuple(ours)[1:], tuple(theirs)[1:])
    assert torch.equal(ours.tokens[:-1], theirs.tokens[:-1])
    untouched = make_state(slots, device, seed)
    for field in ("length", "draft_valid", "active"):
        assert getattr(ours, field)[-1] == getattr(untouched, field)[-1], "rows of padding change nothing"
    for row, slot in enumerate(rows.tolist()[:-2]):
        text = want[row, : k + 1].tolist()
        kept = [t for t in text if t >= 0]
        assert ours.tokens[slot, int(lengths[row]) :][: len(kept)].tolist() == kept
        assert not any(t in ours.stop_ids[slot].tolist() for t in kept[:-1]), "nothing follows a stop id"
        expected = sources if isinstance(sources, int) else int(sources[row])
        assert want[row, k + 5] == (expected if proposed[row] else 0)
        assert want[row, k + 6] == ours.draft_valid[slot]
        was_ready = untouched.draft_valid[slot] >= lengths[row] - 2
        if not proposed[row] or not how["draft_steps"] or not was_ready:
            assert ours.draft_valid[slot] == untouched.draft_valid[slot], "the draft model's KV is not used"


@on_each_device
def test_sample_writes_to_a_column_of_drafts(device: str) -> None:
    rows = 3
    ones, keys = torch.ones(rows, device=device), torch.arange(rows, device=device)
    sampling = SamplingTensors(ones, ones.int() * 0, ones, ones * 0, keys)
    logits = torch.randn(rows, 300, generator=torch.Generator().manual_seed(0)).to(device)
    drafts = torch.full((rows, 4), -7, device=device)
    for function in (reference_sample, triton_sample):
        drawn = function(logits, sampling, keys, purpose=Purpose.DRAFT)
        into = function(logits, sampling, keys, purpose=Purpose.DRAFT, out=drafts[:, 2])
        assert torch.equal(drafts[:, 2], drawn.tokens) and into.tokens.data_ptr() == drafts[:, 2].data_ptr()
    assert (drafts[:, [0, 1, 3]] == -7).all()

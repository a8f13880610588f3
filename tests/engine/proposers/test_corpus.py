"""The corpus finds what finished answers hold, drops the oldest ones when it is full, and never waits."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.engines import completions_of, generate, make_engine, make_requests, plan, steps_of
from support.no_sync import NoSync

from specpipe.core import AcceptanceCounts
from specpipe.engine.proposers import corpus as module
from specpipe.engine.proposers.corpus import SEGMENTS, Answer, Corpus
from specpipe_kernels import MAX_DRAFTS, SUFFIX_TOKENS, SlotTensors

VOCAB = 50_000


@pytest.fixture(autouse=True)
def each_answer_is_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_UNSORTED", 1)
    monkeypatch.setattr(module, "UNSORTED_SHARE", 10**9)


def make(device: str = "cpu") -> Corpus:
    return Corpus(torch.device(device), mib=1, vocab_size=VOCAB)


def answers(count: int, *, longest: int = 40, seed: int = 0) -> list[Answer]:
    """Returns prompts and answers of random tokens: every sequence of three occurs once."""
    rng = random.Random(seed)
    return [
        ([rng.randrange(VOCAB) for _ in range(20)], [rng.randrange(VOCAB) for _ in range(rng.randint(3, longest))])
        for _ in range(count)
    ]


def rows_of(texts: list[list[int]], device: torch.device | str) -> SimpleNamespace:
    """Returns the rows of a round, one for each text."""
    tokens = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.int64)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = torch.tensor(text)
    none = torch.empty(0, device=device)
    return SimpleNamespace(
        state=SlotTensors(tokens.to(device), *(none for _ in SlotTensors._fields[1:])),
        slots=torch.arange(len(texts), device=device),
        lengths=torch.tensor([len(text) for text in texts], device=device),
    )


def look_up(corpus: Corpus, *texts: list[int], k: int = 4) -> list[list[int]]:
    """Returns the drafts for each text."""
    rows = rows_of(list(texts), corpus.index.tokens.device)
    fits = torch.full_like(rows.lengths, k, dtype=torch.int32)
    found = corpus.lookup(rows, fits, k, min_match=1)
    return [row[:n].tolist() for row, n in zip(found.tokens, found.num_tokens.tolist(), strict=True)]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_every_place_of_an_answer_is_found_behind_its_prompt_and_tokens(device: str) -> None:
    corpus, added = make(device), answers(9)
    for part in (added[:1], added[1:5], added[5:]):
        corpus.add(part)
    for prompt, answer in added:
        texts = [prompt + answer[:place] for place in range(len(answer) + 1)]
        assert look_up(corpus, *texts) == [answer[place : place + 4] for place in range(len(answer) + 1)]
    assert look_up(corpus, added[0][0][:-1]) == [[]], "prompts are not proposed"


def test_an_empty_corpus_proposes_nothing() -> None:
    corpus = make()
    corpus.add([([1, 2], []), ([], [])])
    assert look_up(corpus, [1, 2], [3]) == [[], []]


def test_ids_beyond_the_vocabulary_end_a_draft() -> None:
    corpus = make()
    corpus.add([([1, 2, 3], [4, 5, VOCAB, 6, -7, 8])])
    assert look_up(corpus, [2, 3], [9, 8, 6]) == [[4, 5], []]


def test_new_answers_are_sorted_when_they_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_UNSORTED", 60)
    monkeypatch.setattr(module, "UNSORTED_SHARE", 1)
    corpus = make()
    sizes = []
    for prompt, answer in answers(40):
        corpus.add([(prompt, answer)])
        sizes.append(int(corpus.index.num_sorted[0]))
    places = sum(len(answer) for _, answer in answers(40))
    assert sorted({*sizes})[0] == 0 and 60 <= sorted({*sizes})[1] < 100
    assert 3 <= len({*sizes}) <= 6 and 2 * sizes[-1] > places


def test_the_oldest_answers_go_when_the_ring_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times as many tokens as fit: the index is right throughout, and holds the latest 15 segments or more."""
    monkeypatch.setattr(module, "TOKEN_BYTES", 256)
    corpus = make()
    width = corpus.index.tokens.shape[1]
    room = width - MAX_DRAFTS - SUFFIX_TOKENS
    added = answers(3 * SEGMENTS * room // 40, longest=60)
    for begin in range(0, len(added), 3):
        corpus.add(added[begin : begin + 3])
        corpus.check_integrity()
    assert corpus.index.tokens.shape == (SEGMENTS, 256)
    kept = [look_up(corpus, prompt) == [answer[:4]] for prompt, answer in added]
    latest = (SEGMENTS - 1) * room // (60 + SUFFIX_TOKENS + 1)
    assert all(kept[-latest:]) and not any(kept[: len(kept) // 3])


def test_an_answer_longer_than_a_segment_is_split() -> None:
    corpus = make()
    width = corpus.index.tokens.shape[1]
    ((prompt, _),) = answers(1)
    answer = random.Random(1).choices(range(VOCAB), k=2 * width + 100)
    corpus.add([(prompt, answer)])
    for place in (0, 1, width - 100, width + 100, 2 * width + 90):
        assert look_up(corpus, (prompt + answer)[: 20 + place]) == [answer[place : place + 4]]
    assert int(corpus.index.newest) == 2


def test_adding_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, added = make(), answers(20)
    rows = [prompt + answer[:3] for prompt, answer in added]
    guard = NoSync()
    monkeypatch.setattr(module, "_copy", guard.trust(module._copy))  # of pinned memory on a GPU
    with guard:
        corpus.add(added)
        corpus._begin_segment()
        corpus.add(added)
    assert [draft != [] for draft in look_up(corpus, *rows)] == [len(answer) > 3 for _, answer in added]


@pytest.mark.gpu
def test_a_captured_look_up_finds_what_is_added_later() -> None:
    corpus, added = make("cuda"), answers(300)
    rows = rows_of([prompt for prompt, _ in added[:5]], "cuda")
    fits = torch.full((5,), 4, dtype=torch.int32, device="cuda")
    corpus.lookup(rows, fits, 4, min_match=1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = corpus.lookup(rows, fits, 4, min_match=1)
    graph.replay()
    assert found.num_tokens.sum() == 0
    for begin in range(0, 300, 100):
        corpus.add(added[begin : begin + 100])
    corpus._begin_segment()
    graph.replay()
    assert [row[:n].tolist() for row, n in zip(found.tokens, found.num_tokens.tolist(), strict=True)] == [
        answer[:4] for _, answer in added[:5]
    ]


@pytest.mark.gpu
def test_memory_stays_within_the_budget() -> None:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    corpus = Corpus(torch.device("cuda"), mib=16, vocab_size=VOCAB)
    rng = random.Random(0)
    for _ in range(2):
        corpus.add([([], rng.choices(range(VOCAB), k=500)) for _ in range(400)])
    assert int(corpus.index.newest) > 1
    assert torch.cuda.max_memory_allocated() - before <= 16 * 2**20


@pytest.mark.parametrize("preloaded", [False, True])
def test_rows_follow_answers_that_ended_before_them(small_pair, preloaded: bool) -> None:
    """The second time, every row finds its own answer in the corpus; errors and repeated answers are not added."""
    pair = small_pair("llama")
    requests = make_requests(4, vocab_size=pair.vocab_size, max_new_tokens=30)
    answers = generate(pair.reference, requests)
    engine = make_engine(pair.target, proposer="replay", max_k=0, replay_k=7, corpus_mib=1)
    if preloaded:
        engine.add_answers(
            (request.prompt_token_ids, answer) for request, answer in zip(requests, answers, strict=True)
        )
    else:
        engine.submit([replace(request, seed=1) for request in requests], plan(7, proposer="replay"))
        steps_of(engine)
    places = int(engine._corpus.index.num_sorted.sum())

    engine.submit(requests, plan(7, proposer="replay"))
    steps = steps_of(engine)

    assert [list(completion.token_ids) for completion in completions_of(steps)] == answers
    by_source = [part.by_source.get("corpus") for step in steps for part in step.shards.values()]
    counts = sum(filter(None, by_source), AcceptanceCounts())
    assert counts.accepted_tokens > 0.7 * 4 * 30
    assert sum(completion.followed_tokens for completion in completions_of(steps)) == counts.accepted_tokens
    assert places == 4 * 30 and int(engine._corpus.index.num_sorted.sum()) == 8 * 30


def test_an_engine_without_a_corpus_allocates_none(small_pair) -> None:
    pair = small_pair("llama")
    engine = make_engine(pair.target, proposer="replay", max_k=0, replay_k=7)
    engine.add_answers([([1], [2])])
    assert engine._corpus is None
    assert make_engine(pair.target, proposer="ngram", corpus_mib=1)._corpus is None

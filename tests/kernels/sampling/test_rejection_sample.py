"""`rejection_sample`, reference and Triton, against the fp64 oracle: every method, layout, dtype and odd shape."""

from __future__ import annotations

import pytest
import torch
from support.sampling_cases import BACKENDS, HEAVY, Backend, Round, emitted, on_backends, random_round, use_small_tiles

from specpipe_kernels import METHODS, rejection_sample


def check(backend: Backend, case: Round, **hints: bool) -> None:
    output = case.verify(backend, **hints)
    assert emitted(output) == case.expected()
    assert output.status.tolist() == [0] * len(case.rows)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles and chunks even for small vocabularies."""
    use_small_tiles(monkeypatch, 32)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", METHODS)
def test_without_truncation(backend: Backend, method: str) -> None:
    case = random_round(vocab=61, draft_vocab=57, k=2, rows=3, method=method, truncated=False, ragged=True, seed=1)
    check(backend, case, truncated=False)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("backend", HEAVY)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("draft_vocab", [None, 92, 100, 113], ids=["one_hot", "smaller", "equal", "larger"])
def test_equals_oracle(backend: Backend, method: str, draft_vocab: int | None) -> None:
    check(backend, random_round(vocab=100, draft_vocab=draft_vocab, k=3, rows=6, method=method, seed=1))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("backend", HEAVY)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("draft_vocab", [None, 61], ids=["one_hot", "draft"])
def test_ragged_rows(backend: Backend, method: str, draft_vocab: int | None) -> None:
    check(backend, random_round(vocab=61, draft_vocab=draft_vocab, k=4, rows=5, method=method, ragged=True, seed=2))


@on_backends(method=METHODS)
def test_without_drafts_is_plain_decoding(backend: Backend, method: str) -> None:
    check(backend, random_round(vocab=16, draft_vocab=None, k=0, rows=3, method=method, seed=3))


@pytest.mark.parametrize("backend", HEAVY)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", ["standard", "block"])
def test_half_precision(backend: Backend, dtype: torch.dtype, method: str) -> None:
    check(backend, random_round(vocab=100, draft_vocab=100, k=2, rows=4, method=method, dtype=dtype, seed=4))


@pytest.mark.parametrize("backend", BACKENDS)
def test_vocabulary_of_several_tiles(backend: Backend) -> None:
    check(backend, random_round(vocab=8193, draft_vocab=8193, k=1, rows=1, truncated=False, seed=5), truncated=False)


@pytest.mark.slow
@on_backends(vocab=[8193, 128256], method=METHODS)
def test_large_vocabulary(backend: Backend, vocab: int, method: str) -> None:
    check(backend, random_round(vocab=vocab, draft_vocab=vocab - 7, k=1, rows=2, method=method, seed=6))


@pytest.mark.slow
@pytest.mark.parametrize("backend", [BACKENDS[0], BACKENDS[2]])
@pytest.mark.parametrize("seed", range(20))
def test_many_random_rounds(backend: Backend, seed: int) -> None:
    for method in METHODS:
        for draft_vocab in (None, 64 + 3 * seed):
            dtype = (torch.float32, torch.bfloat16)[seed % 2]
            check(
                backend,
                random_round(
                    vocab=100, draft_vocab=draft_vocab, k=1 + seed % 6, rows=8, method=method, dtype=dtype,
                    ragged=seed % 3 == 0, seed=100 + seed,
                ),
            )  # fmt: skip


@on_backends(method=METHODS)
def test_greedy_hint_changes_nothing(backend: Backend, method: str) -> None:
    case = random_round(vocab=40, draft_vocab=40, k=2, rows=3, method=method, seed=7)
    case = case.with_(rows=[type(r)(seed=r.seed, position=r.position, temperature=0.0) for r in case.rows])
    check(backend, case)
    check(backend, case, all_greedy=True)


@pytest.mark.parametrize("backend", HEAVY)
@pytest.mark.parametrize("method", METHODS)
def test_largest_number_of_drafts(backend: Backend, method: str) -> None:
    check(backend, random_round(vocab=40, draft_vocab=40, k=32, rows=3, method=method, ragged=True, seed=8))


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_requests(backend: Backend) -> None:
    case = random_round(vocab=16, draft_vocab=None, k=2, rows=1)
    empty = case.with_(
        target_logits=case.target_logits[:0],
        draft_tokens=case.draft_tokens[:0],
        num_draft_tokens=case.num_draft_tokens[:0],
        positions=case.positions[:0],
        rows=[],
    )
    assert empty.verify(backend).tokens.shape == (0, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_logits": torch.zeros(5, 16)}, "target_logits has 5 rows; expected R \\* \\(K\\+1\\) = 6"),
        ({"draft_tokens": torch.zeros(6, dtype=torch.int64)}, "expected \\[R, K\\]"),
        ({"positions": torch.zeros(3, dtype=torch.int64)}, "positions \\[3\\]; expected one entry per row: \\[2\\]"),
        ({"method": "tree"}, "expected one of standard, block"),
        ({"method": "synthetic"}, "expected rates exactly with"),
        ({"draft_logits": torch.zeros(2, 3, 16)}, "expected \\[D, K=2, Vd\\]"),
        ({"draft_logits": torch.zeros(1, 2, 16)}, "expected draft_rows"),
        ({"cu_rows": torch.zeros(2, dtype=torch.int32)}, "expected \\[R\\+1\\]"),
    ],
)
def test_arguments_that_do_not_fit(changes: dict[str, object], message: str) -> None:
    case = random_round(vocab=16, draft_vocab=None, k=2, rows=2).with_(**changes)
    with pytest.raises(ValueError, match=message):
        case.verify(Backend("reference", "cpu"))


def test_is_exported() -> None:
    assert rejection_sample.__module__ == "specpipe_kernels.operations.rejection_sample"

"""Random streams: Random123's known answers, open intervals, and the same bits from torch and Triton."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from support import sampling_oracle as oracle
from support.sampling_cases import BACKENDS, Backend, to

from specpipe_kernels.reference.sampling import philox as reference
from specpipe_kernels.sampling.device import philox as device

# Counter, key, words: kat_vectors of Random123, philox4x32 with 10 rounds.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
# Extremes of the 32 bits, both sides of the series' end, and what rounds to 2**32.
WORDS = [0, 1, 2, 255, 2**24 + 1, 2**28 - 300, 2**28, 2**28 + 300, 2**31, 2**32 - 256, 2**32 - 128, 2**32 - 1]
DEVICE = [p for p in BACKENDS if p.id != "reference"]


@triton.jit
def _uniform_kernel(words, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, device.uniform_of(tl.load(words + i)))


@triton.jit
def _exponential_kernel(u, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, device.exponential_of(tl.load(u + i)))


@triton.jit
def _words_kernel(seed, position, index, purpose, start, out, BLOCK: tl.constexpr):
    chunk = start // 4 + tl.arange(0, BLOCK // 4)
    w0, w1, w2, w3 = device._words(chunk, tl.load(seed), tl.load(position), index, purpose)
    i = 4 * tl.arange(0, BLOCK // 4)
    tl.store(out + i, w0.to(tl.int64))
    tl.store(out + i + 1, w1.to(tl.int64))
    tl.store(out + i + 2, w2.to(tl.int64))
    tl.store(out + i + 3, w3.to(tl.int64))


@triton.jit
def _gumbel_kernel(seed, position, index, purpose, start, out, BLOCK: tl.constexpr):
    u = device.uniform_tile(tl.load(seed), tl.load(position), index, purpose, start, BLOCK)
    tl.store(out + tl.arange(0, BLOCK), device.gumbel_of(u))


@triton.jit
def _chunk_gumbel_kernel(seed, position, index, purpose, out, BLOCK: tl.constexpr):
    chunk = tl.arange(0, BLOCK)
    tl.store(out + chunk, device.chunk_gumbel(tl.load(seed), tl.load(position), index, purpose, chunk))


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]) -> None:
    c = tuple(torch.tensor(x) for x in counter)
    k = tuple(torch.tensor(x) for x in key)
    assert tuple(int(w) for w in reference.philox(c, k)) == words
    assert oracle.philox(counter, key) == words


def test_counter_layout_of_the_streams() -> None:
    """(vocabulary index // 4, position, index in the round, purpose), keyed by the seed's two halves."""
    seed, position = 0x7A0938225EF31D05, 2**31 + 77
    for index, purpose, vocab in ((0, 1, 16), (3, 4, 101)):
        drawn = reference.exponential(torch.tensor([seed]), torch.tensor([position]), index, purpose, vocab)
        expected = -np.log1p(-oracle.uniforms(seed, position, index, purpose, vocab))
        np.testing.assert_allclose(drawn[0].double().numpy(), expected, rtol=1e-6)
        scalar = reference.uniform(torch.tensor([seed]), torch.tensor([position]), index, purpose)
        assert float(scalar[0]) == pytest.approx(oracle.uniforms(seed, position, index, purpose, 1)[0], rel=1e-7)


@pytest.mark.parametrize("backend", DEVICE)
@pytest.mark.parametrize(("seed", "position", "index", "purpose"), [(0, 0, 0, 1), (2**63 - 1, 2**31 + 5, 7, 6)])
def test_triton_has_the_same_words(backend: Backend, seed: int, position: int, index: int, purpose: int) -> None:
    out = torch.zeros(64, dtype=torch.int64, device=backend.device)
    at = to(torch.tensor([seed]), backend.device), to(torch.tensor([position]), backend.device)
    _words_kernel[(1,)](*at, index, purpose, 64, out, BLOCK=64)
    expected = oracle.uniforms(seed, position, index, purpose, 128)[64:] * 2.0**32 - 0.5
    assert out.tolist() == [int(x) for x in expected]


@pytest.mark.parametrize("backend", DEVICE)
def test_triton_has_the_same_uniforms(backend: Backend) -> None:
    words = torch.tensor([*WORDS, *[7] * (16 - len(WORDS))])
    out = torch.zeros(16, device=backend.device)
    _uniform_kernel[(1,)](to(words, backend.device), out, BLOCK=16)
    assert torch.equal(out.cpu(), reference.uniform_of(words))


def test_uniforms_lie_in_the_open_interval() -> None:
    u = reference.uniform_of(torch.tensor(WORDS))
    assert float(u.min()) == 2.0**-33
    assert float(u.max()) == 1 - 2.0**-24
    assert (reference.exponential_of(u) > 0).all() and reference.exponential_of(u).isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_small_exponentials_keep_their_precision(backend: Backend) -> None:
    """log(1 - u) would be 0 below 2**-25 and have an error of some per cent at 2**-20."""
    u = torch.cat([2.0 ** torch.arange(-33.0, -1.0), reference.uniform_of(torch.tensor(WORDS)), torch.rand(20)])
    expected = -torch.log1p(-u.double())
    if backend.name == "reference":
        drawn = reference.exponential_of(u)
    else:
        out = torch.zeros(64, device=backend.device)
        _exponential_kernel[(1,)](to(u, backend.device), out, BLOCK=64)
        drawn = out.cpu()
    torch.testing.assert_close(drawn.double(), expected, rtol=1e-5, atol=0)
    small = u < 0.0625
    torch.testing.assert_close(drawn[small].double(), expected[small], rtol=4e-7, atol=0)


@pytest.mark.parametrize("backend", DEVICE)
def test_triton_has_the_same_noise(backend: Backend) -> None:
    seed, position = torch.tensor([5**20]), torch.tensor([123456])
    out = torch.zeros(256, device=backend.device)
    _gumbel_kernel[(1,)](to(seed, backend.device), to(position, backend.device), 2, 3, 256, out, BLOCK=256)
    expected = reference.gumbel(seed, position, 2, 3, 512)[0, 256:]
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_gumbel_noise_reaches_beyond_24_bits() -> None:
    """Tokens of probability 1e-9 must be drawable: the largest noise belongs to u near 0, not to u near 1."""
    smallest = reference.uniform_of(torch.tensor([0]))
    assert float(-reference.exponential_of(smallest).log()) == pytest.approx(33 * np.log(2), rel=1e-6)
    noise = reference.gumbel(torch.arange(2000), torch.zeros(2000, dtype=torch.int64), 0, 1, 4096).flatten().double()
    for bits in (12, 16, 20):
        tail = int((noise > bits * np.log(2)).sum())
        mean = len(noise) * -np.expm1(-(2.0**-bits))
        assert abs(tail - mean) < 5 * mean**0.5


def test_streams_differ_in_every_part_of_their_key() -> None:
    def first(seed: int, position: int, index: int, purpose: int) -> float:
        return float(reference.uniform(torch.tensor([seed]), torch.tensor([position]), index, purpose))

    base = (11, 22, 3, 1)
    neighbours = [base, (12, 22, 3, 1), (11, 23, 3, 1), (11, 22, 4, 1), (11, 22, 3, 2), (11 + 2**32, 22, 3, 1)]
    assert len({first(*key) for key in neighbours}) == len(neighbours)


@pytest.mark.parametrize("backend", DEVICE)
def test_chunks_have_a_stream_beside_the_tokens(backend: Backend) -> None:
    seed, position = 0x7A0938225EF31D05, 2**31 + 77
    expected = torch.from_numpy(oracle.chunk_gumbel(seed, position, 2, 3, 16)).float()
    key = torch.tensor([seed]), torch.tensor([position])
    torch.testing.assert_close(reference.chunk_gumbel(*key, 2, 3, 16)[0], expected, rtol=1e-5, atol=1e-5)
    out = torch.zeros(16, device=backend.device)
    _chunk_gumbel_kernel[(1,)](*(to(x, backend.device) for x in key), 2, 3, out, BLOCK=16)
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-5, atol=1e-5)
    assert not torch.isin(expected, reference.gumbel(*key, 2, 3, 4096)).any()


def test_noise_can_start_inside_the_vocabulary() -> None:
    key = torch.tensor([5, 6]), torch.tensor([7, 8])
    whole = reference.gumbel(*key, 2, 3, 100)
    part = reference.gumbel(*key, 2, 3, 30, first=torch.tensor([8, 64]))
    assert torch.equal(part, torch.stack([whole[0, 8:38], whole[1, 64:94]]))

"""`store_kv` and `write_index`: every token at its place, all other memory unchanged, padding in the trash page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from specpipe_kernels import KVScales
from specpipe_kernels.layers.store_kv import store_kv as triton_store
from specpipe_kernels.layers.write_index import write_index as triton_index
from specpipe_kernels.reference.layers.store_kv import store_kv as reference_store
from specpipe_kernels.reference.layers.write_index import write_index as reference_index

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
both_index = pytest.mark.parametrize("write_index", [reference_index, triton_index], ids=["reference", "triton"])
both_store = pytest.mark.parametrize("store_kv", [reference_store, triton_store], ids=["reference", "triton"])
on_each_device = pytest.mark.parametrize("device", DEVICES)


def expected_index(tables: list[list[int]], counts: list[int], starts: list[int], tokens: int, page: int) -> list[int]:
    where = []
    for row, (count, start) in enumerate(zip(counts, starts, strict=True)):
        for position in range(start, start + count):
            inside = 0 <= position < page * len(tables[row])
            where.append(tables[row][position // page] * page + position % page if inside else -1)
    return where + [-1] * (tokens - len(where))


@both_index
@on_each_device
@pytest.mark.parametrize("page", [16, 64])
def test_write_index_follows_the_block_tables(write_index: Callable[..., Tensor], device: str, page: int) -> None:
    tables = [[3, 9], [0, 0], [7, 0], [5, 6], [8, 2]]
    counts, starts = [2, 3, 0, 150, 1], [page - 1, -2, 4, 3, 2 * page - 1]
    tokens = sum(counts) + 5
    cu = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32, device=device)
    table = torch.tensor(tables, dtype=torch.int32, device=device)
    index = write_index(table, cu, torch.tensor(starts, device=device), tokens, page)
    assert index.dtype == torch.int64
    for got, want in zip(index.tolist(), expected_index(tables, counts, starts, tokens, page), strict=True):
        assert got == want if want >= 0 else 0 <= got < page


@both_index
@on_each_device
def test_write_index_takes_a_narrowed_table(write_index: Callable[..., Tensor], device: str) -> None:
    wide = torch.arange(1, 13, dtype=torch.int32, device=device).view(3, 4)
    cu = torch.tensor([0, 1, 2, 3], dtype=torch.int32, device=device)
    starts = torch.tensor([17, 0, 32], device=device)
    assert write_index(wide[:, :2], cu, starts, 3, 16).tolist()[:2] == [2 * 16 + 1, 5 * 16]


def strided(tokens: int, heads: int, dim: int, dtype: torch.dtype, device: str) -> Tensor:
    """Returns a view of a fused projection, heads outermost, as models pass it."""
    return torch.randn(heads, tokens, 2 * dim, device=device).to(dtype)[:, :, dim:].transpose(0, 1)


@both_store
@on_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("heads", "k_dim", "v_dim"), [(1, 16, 16), (3, 80, 80), (8, 128, 128), (2, 24, 16)])
def test_stores_every_token_and_touches_nothing_else(
    store_kv: Callable[..., None], device: str, dtype: torch.dtype, heads: int, k_dim: int, v_dim: int
) -> None:
    page, tokens = 64, 7
    options: dict[str, Any] = {"dtype": dtype, "device": device}
    k_pages, v_pages = (torch.full((5, heads, page, dim), torch.nan, **options) for dim in (k_dim, v_dim))
    key, value = strided(tokens, heads, k_dim, dtype, device), strided(tokens, heads, v_dim, dtype, device)
    index = torch.tensor([64, 65, 127, 319, 200, 3, 3], device=device)
    want_k, want_v = k_pages.clone(), v_pages.clone()
    for token, at in enumerate(index[:5].tolist()):
        want_k[at // page, :, at % page] = key[token]
        want_v[at // page, :, at % page] = value[token]
    store_kv(key, value, k_pages, v_pages, index)
    for pages, want, padding in ((k_pages, want_k, key[5:]), (v_pages, want_v, value[5:])):
        torch.testing.assert_close(pages[1:], want[1:], rtol=0, atol=0, equal_nan=True)
        # Two tokens race for one place in the trash page: each number comes from one of them.
        assert (pages[0, :, 3] == padding).any(dim=0).all()


@both_store
@on_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_8_bits_are_rounded_by_the_scale_of_each_head(
    store_kv: Callable[..., None], device: str, dtype: torch.dtype
) -> None:
    """Entries over 448 scales saturate, NaN stays NaN (not in the interpreter), small ones become subnormals."""
    heads, dim, page = 3, 20, 16
    scales = KVScales(*(torch.tensor(x, device=device) for x in ((0.3, 2.0, 0.011), (0.01, 0.5, 7.0))))
    entries = [
        strided(4, heads, dim, dtype, device) * 10 ** torch.arange(-2, 2, device=device)[:, None, None] for _ in "kv"
    ]
    entries = [x.to(dtype) for x in entries]
    interpreted = store_kv is triton_store and device == "cpu"
    entries[0][1, 2, 3], entries[1][2, 0, 4], entries[1][0, 1, 5] = 1.0 if interpreted else torch.nan, 1e6, -1e6
    pages = [torch.zeros(3, heads, page, dim, device=device).to(torch.float8_e4m3fn) for _ in "kv"]
    index = torch.tensor([16, 17, 47, 33], device=device)
    store_kv(entries[0], entries[1], pages[0], pages[1], index, scales)
    for given, scale, stored in zip(entries, scales, pages, strict=True):
        assert scale is not None
        exact = given.double().cpu() / scale.double().cpu()[:, None]
        got = stored.cpu().float().double()[index.cpu() // page, :, index.cpu() % page]
        finite = exact.clamp(-448, 448)
        unit = 2.0 ** (finite.abs().clamp(min=2**-6).log2().floor() - 3)  # of the last place
        assert torch.equal(got.isnan(), exact.isnan())
        assert ((got - finite).abs() <= unit * 0.5001)[~exact.isnan()].all()
        assert int((stored.cpu().float() != 0).sum()) == int((got != 0).sum()), "nothing else is written"


@both_store
def test_stores_nothing_for_no_tokens(store_kv: Callable[..., None]) -> None:
    pages = torch.ones(2, 1, 16, 16)
    empty = torch.empty(0, 1, 16)
    store_kv(empty, empty, pages, pages.clone(), torch.empty(0, dtype=torch.int64))
    assert (pages == 1).all()

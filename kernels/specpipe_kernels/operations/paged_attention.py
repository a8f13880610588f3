"""Attention over paged KV memory.

N query tokens of all rows flattened, R rows, Hq query heads, Hkv KV heads (Hq a multiple of it), D head size, W blocks
in a row's table. Pages are [num_pages, Hkv, page_size, D], contiguous; values may have another D than keys. Page 0 is
the trash page: padding is written there and no active row reads it, so padding needs no branch. Unused entries of a
row's table are 0. Pages have the dtype of the model or, with `KVScales`, float8_e4m3fn.
"""

from __future__ import annotations

from typing import Literal, overload

from torch import Tensor

from specpipe_kernels.runtime.backend import implementation
from specpipe_kernels.types import UNSCALED, KVScales, PrefixArgs
from specpipe_kernels.weights import Fp8Rows


def write_index(block_tables: Tensor, cu_queries: Tensor, starts: Tensor, num_tokens: int, page_size: int) -> Tensor:
    """Returns the place of each token's key and value, page * page_size + offset, [num_tokens] int64.

    Computed once per forward pass, for all layers. block_tables [R, W] int32, cu_queries [R+1] int32 and starts [R]
    int64 as in `paged_attention`. Tokens of no row, at negative positions or beyond the table go to the trash page.
    """
    result: Tensor = implementation("layers.write_index", block_tables)(
        block_tables, cu_queries, starts, num_tokens, page_size
    )
    return result


def store_kv(
    key: Tensor, value: Tensor, k_pages: Tensor, v_pages: Tensor, write_index: Tensor, scales: KVScales = UNSCALED
) -> None:
    """Scatters key and value [N, Hkv, D] (any strides) into k_pages and v_pages, in place.

    write_index [N] int64 holds page * page_size + offset. Entries may be equal only within the trash page, where an
    unspecified one of them is kept. scales: of pages in 8 bits, which receive rounded entries.
    """
    implementation("layers.store_kv", key)(key, value, k_pages, v_pages, write_index, scales)


@overload
def paged_attention(
    query: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_tables: Tensor,
    cu_queries: Tensor,
    starts: Tensor,
    *,
    max_queries: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    prefix: PrefixArgs | None = None,
    scales: KVScales = UNSCALED,
    fp8: Literal[False] = False,
) -> Tensor: ...


@overload
def paged_attention(
    query: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_tables: Tensor,
    cu_queries: Tensor,
    starts: Tensor,
    *,
    max_queries: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    prefix: PrefixArgs | None = None,
    scales: KVScales = UNSCALED,
    fp8: bool,
) -> Tensor | Fp8Rows: ...


def paged_attention(
    query: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    block_tables: Tensor,
    cu_queries: Tensor,
    starts: Tensor,
    *,
    max_queries: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    prefix: PrefixArgs | None = None,
    scales: KVScales = UNSCALED,
    fp8: bool = False,
) -> Tensor | Fp8Rows:
    """Attends each row's queries to its own pages; returns [N, Hq, D of the values], contiguous.

    Args:
        query: [N, Hq, D], any strides.
        k_pages, v_pages: see the module's docstring. The tokens' own keys and values must have been stored.
        block_tables: [R, W] int32, pages of each row.
        cu_queries: [R+1] int32; row r owns the tokens cu_queries[r]:cu_queries[r+1].
        starts: [R] int64; the j-th token of row r has position starts[r] + j and attends to positions up to its own.
            Memory at or beyond starts[r] + tokens of r has no influence, even if it holds NaN.
        max_queries: largest number of tokens of a row.
        scale: factor of the scores.
        window: number of positions that a token attends to, its own included; None: all.
        softcap: scores become softcap * tanh(score / softcap) (Gemma 2, arXiv 2408.00118).
        sinks: [Hq], one more logit per head in the softmax's denominator (gpt-oss).
        prefix: groups of rows that share their first pages, which are then read once a group instead of once a row; the
            result is the same up to rounding. Elsewhere than on a CPU every row has max_queries tokens. Tokens of a row
            in a group have positions from prefix_pages * page_size - 1 on, or negative ones.
        scales: of pages in 8 bits, which have even head sizes.
        fp8: return rows [N, Hq * D of the values] in 8 bits.

    Tokens at negative positions or of no row give zeros. Scores and sums are fp32 or wider.
    """
    result: Tensor | Fp8Rows = implementation("layers.paged_attention", query)(
        query,
        k_pages,
        v_pages,
        block_tables,
        cu_queries,
        starts,
        max_queries=max_queries,
        scale=scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
        prefix=prefix,
        scales=scales,
        fp8=fp8,
    )
    return result

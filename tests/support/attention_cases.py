"""Cases of paged attention over shuffled pages, and a dense fp64 oracle without pages."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specpipe_kernels import UNSCALED, KVScales, PrefixArgs, store_kv, write_index

PAGE = 64
# fp32: scores sum head_dim products of order 1, in another order on each device.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Case:
    """rows: (absolute start, query tokens) of each row."""

    rows: tuple[tuple[int, int], ...]
    q_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    dtype: torch.dtype = torch.float32
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    spare_tokens: int = 0
    """Number of tokens at the end that belong to no row."""
    value_dim: int | None = None
    """Head size of values, if it differs from that of keys."""
    page_size: int = PAGE
    groups: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(shared pages, rows) of each group; every row then has equally many query tokens."""
    fp8: bool = False
    """Pages are in 8 bits, with another scale for each head of keys and of values."""

    @property
    def scales(self) -> KVScales:
        heads = torch.arange(1.0, self.kv_heads + 1)
        return KVScales(heads * 0.037, heads.flip(0) * 0.0091) if self.fp8 else UNSCALED


@dataclass
class Inputs:
    query: Tensor
    k_pages: Tensor
    v_pages: Tensor
    block_tables: Tensor
    cu_queries: Tensor
    starts: Tensor
    max_queries: int
    sinks: Tensor | None
    keys: list[Tensor]
    values: list[Tensor]
    prefix: PrefixArgs | None

    def call(self, fn: Callable[..., Tensor], case: Case, device: str = "cpu", **changes: Any) -> Tensor:
        tensors = (self.query, self.k_pages, self.v_pages, self.block_tables, self.cu_queries, self.starts)
        options = {
            "max_queries": self.max_queries,
            "scale": 0.3,
            "window": case.window,
            "softcap": case.softcap,
            "sinks": None if self.sinks is None else self.sinks.to(device),
            "prefix": None if self.prefix is None else PrefixArgs(*(x.to(device) for x in self.prefix)),
            "scales": KVScales(*(None if x is None else x.to(device) for x in case.scales)),
        }
        return fn(*(t.to(device) for t in tensors), **(options | changes))


def build(case: Case, *, stale: float = float("nan"), seed: int = 0) -> Inputs:
    """Returns pages in shuffled order; positions that no row owns hold `stale`."""
    torch.manual_seed(seed)
    lengths = [max(0, start + count) for start, count in case.rows]
    value_dim = case.value_dim or case.head_dim
    width = max(-(-length // case.page_size) for length in lengths) + 1
    order = iter((torch.randperm(len(lengths) * width) + 1).tolist())
    shape = (len(lengths) * width + 1, case.kv_heads, case.page_size)
    dtype = torch.float8_e4m3fn if case.fp8 else case.dtype
    k_pages, v_pages = (torch.full((*shape, dim), stale).to(dtype) for dim in (case.head_dim, value_dim))
    tables = torch.zeros(len(lengths), width, dtype=torch.int32)
    keys, values = [], []
    shared = {row: (pages, min(rows)) for pages, rows in case.groups for row in rows if row > min(rows)}
    for row, length in enumerate(lengths):
        for block in range(-(-length // case.page_size)):
            tables[row, block] = next(order)
        keys.append(torch.randn(length, case.kv_heads, case.head_dim).to(case.dtype))
        values.append(torch.randn(length, case.kv_heads, value_dim).to(case.dtype))
        if row in shared:
            pages, first = shared[row]
            tables[row, :pages] = tables[first, :pages]
            for of_rows in (keys, values):
                of_rows[row][: pages * case.page_size] = of_rows[first][: min(length, pages * case.page_size)]
        cu = torch.tensor([0, length], dtype=torch.int32)
        index = write_index(tables[row : row + 1], cu, torch.zeros(1, dtype=torch.int64), length, case.page_size)
        store_kv(keys[-1], values[-1], k_pages, v_pages, index, case.scales)
        if case.fp8:
            for of_rows, scale in zip((keys, values), case.scales, strict=True):
                of_rows[row] = dequantised(of_rows[row], scale)
    counts = [count for _, count in case.rows]
    tokens = sum(counts) + case.spare_tokens
    return Inputs(
        query=torch.randn(tokens, case.q_heads, case.head_dim).to(case.dtype),
        k_pages=k_pages,
        v_pages=v_pages,
        block_tables=tables,
        cu_queries=torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32),
        starts=torch.tensor([start for start, _ in case.rows], dtype=torch.int64),
        max_queries=max(1, *counts),
        sinks=torch.randn(case.q_heads) if case.sinks else None,
        keys=keys,
        values=values,
        prefix=_prefix(case) if case.groups else None,
    )


def dequantised(entries: Tensor, scale: Tensor) -> Tensor:
    """Returns entries [N, Hkv, D] as pages with scales [Hkv] hold them, in fp64."""
    inverse = (1 / scale)[:, None]
    rounded = (entries.float() * inverse).clamp(-448, 448).to(torch.float8_e4m3fn)  # torch 2.11 does not saturate
    return rounded.double() * scale.double()[:, None]


def _prefix(case: Case) -> PrefixArgs:
    """Returns the case's groups, padded to as many as its rows can form."""
    rows = len(case.rows)
    pages, members = torch.zeros(rows, dtype=torch.int64), torch.full((rows,), 1 << 30)
    cu_members = torch.zeros(rows // 2 + 1, dtype=torch.int64)
    end = 0
    for group, (shared, group_rows) in enumerate(case.groups):
        pages[list(group_rows)] = shared
        members[end : end + len(group_rows)] = torch.tensor(group_rows)
        end += len(group_rows)
        cu_members[group + 1 :] = end
    return PrefixArgs(pages, members, cu_members)


def oracle(inputs: Inputs, case: Case, *, scale: float = 0.3) -> Tensor:
    out = torch.zeros(*inputs.query.shape[:2], inputs.v_pages.shape[3], dtype=torch.float64)
    group = case.q_heads // case.kv_heads
    for row, (start, count) in enumerate(case.rows):
        first = int(inputs.cu_queries[row])
        for token, head in itertools.product(range(count), range(case.q_heads)):
            last = start + token + 1
            low = 0 if case.window is None else max(0, last - case.window)
            if last <= 0:
                continue
            k = inputs.keys[row][low:last, head // group].double()
            v = inputs.values[row][low:last, head // group].double()
            scores = k @ inputs.query[first + token, head].double() * scale
            if case.softcap is not None:
                scores = case.softcap * torch.tanh(scores / case.softcap)
            if inputs.sinks is not None:
                scores = torch.cat((scores, inputs.sinks[head].double()[None]))
            out[first + token, head] = scores.softmax(0)[: last - low] @ v
    return out


def check(out: Tensor, inputs: Inputs, case: Case) -> None:
    assert out.is_contiguous() and out.dtype == case.dtype
    tolerance = TOLERANCE[case.dtype]
    torch.testing.assert_close(out.double().cpu(), oracle(inputs, case), rtol=tolerance, atol=tolerance)

"""Groups of arguments of the decoder layers' kernels. A kernel takes each group as one NamedTuple.

M tokens, Hq query heads, Hkv heads of keys and values, D entries per head, P pages, S tokens per page, N outputs of a
product. Groups of tensors follow the rules of `specpipe_kernels.sampling.device.kernel_args`: None is a compile-time
constant. Groups of sizes are passed as one `tl.constexpr`. Tensor descriptors cannot be inside a group, because
Triton's launchers expand them only where they are arguments themselves.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class RopeArgs(NamedTuple):
    """Tables of rotary position embedding, and the places of keys and values; see `linear_rope_store_kv`."""

    cos: Tensor
    """[positions, D]."""
    sin: Tensor
    """[positions, D]."""
    positions: Tensor
    """[M] int64."""
    k_pages: Tensor
    """[P, Hkv, S, D]."""
    v_pages: Tensor
    """[P, Hkv, S, D]."""
    write_index: Tensor
    """[M] int64: page * S + offset of each token."""
    k_scale: Tensor | None
    """[Hkv] fp32, of keys in 8 bits."""
    v_scale: Tensor | None
    """[Hkv] fp32, of values in 8 bits."""


class NoRope(NamedTuple):
    """Stands for `RopeArgs` where nothing is rotated."""

    cos: None = None


NO_ROPE = NoRope()


class HeadSizes(NamedTuple):
    """Sizes of a projection to queries, keys and values; compile-time constants."""

    q_heads: int
    kv_heads: int
    dim: int
    page_size: int
    """Tokens per page."""


class HeadNorms(NamedTuple):
    """RMS norms of queries and keys before the rotation."""

    q: Tensor | None
    """[D]; None: no norm of either."""
    k: Tensor | None
    """[D]."""


NO_NORMS = HeadNorms(None, None)


class GemmInputs(NamedTuple):
    """Inputs of a product besides x [M, K] and the weight [N, K]; None where there is none."""

    squares: Tensor | None
    """[PARTS, M] fp32: sums of squares of a pending norm of x."""
    weight_scale: Tensor | None
    """fp32 scales of a quantised weight: [N], or by block of it."""
    zeros: Tensor | None
    """uint8 zeros of a weight in 4 bits, in the layout of its scales; None: 8."""
    x_scale: Tensor | None
    """[G, M] fp32: scales of x in 8 bits, one for each group of columns and row."""
    bias: Tensor | None
    """[N]."""
    residual: Tensor | None
    """[M, N]."""
    norm_weight: Tensor | None
    """[N]: weight of the pending norm of the result."""


class GemmOutputs(NamedTuple):
    """Results of a product."""

    out: Tensor
    """[M, N]; of ROPE the rotated queries [M, Hq * D]; of GLU [M, N / 2]."""
    scaled: Tensor | None
    """[M, N]: out * norm_weight."""
    scale: Tensor | None
    """[tiles, M] fp32: scales of a result in 8 bits, `scaled` or of GLU `out`, for the columns of each tile."""
    squares: Tensor | None
    """[tiles, M] fp32: sums of squares over the columns of each tile."""


class SplitSums(NamedTuple):
    """Memory through which the programs that share K add their sums; unused where none do."""

    sums: Tensor | None
    """[tiles, SPLITS, outputs of a tile, BLOCK_M] fp32."""
    arrivals: Tensor | None
    """[tiles] int32 counters, 0 between launches."""


class GemmSizes(NamedTuple):
    """Sizes of a product; compile-time constants."""

    n: int
    """Rows of the weight; of GLU those of the gate alone."""
    k: int
    block_m: int
    """Power of 2 that bounds the rows of x."""
    parts: int
    """Parts of the sums of squares of x; 0 without a pending norm."""
    parts_pad: int
    """Smallest power of 2 not below `parts`, at least 1."""
    step: int
    """Columns of a step over K; at most BLOCK_K."""
    fp16: bool
    """The 16-bit dtype of the activations is fp16 instead of bf16."""
    eight_bits: bool
    """x and the weight are in 8 bits."""
    x_group: int
    """Columns that share a scale of x; 0 with one scale a row."""
    scale_rows: int
    """Rows of the weight that share a scale."""
    scale_columns: int
    """Columns of the weight that share a scale; 0 with one scale for each row."""
    scale_strides: tuple[int, int] = (0, 0)
    """Elements from one row of a 4-bit weight's scales to the next, and from one group of columns to the next; zeros of
    weights in other formats."""


class QueryArgs(NamedTuple):
    """Queries of R ragged rows."""

    query: Tensor
    """[M, Hq, D]."""
    cu_queries: Tensor
    """[R + 1] int32: first token of each row, then their end."""
    starts: Tensor
    """[R] int: position of each row's first token."""
    stride_n: int
    """Elements from one token to the next."""
    stride_h: int
    """Elements from one head to the next."""
    stride_d: int
    """Elements from one entry of a head to the next."""


class PageArgs(NamedTuple):
    """Keys and values of R rows in pages."""

    k_pages: Tensor
    """[P, Hkv, S, D]."""
    v_pages: Tensor
    """[P, Hkv, S, D of values]."""
    tables: Tensor
    """[R, width] int32: pages of each row."""
    k_scale: Tensor | None
    """[Hkv] fp32, of keys in 8 bits."""
    v_scale: Tensor | None
    """[Hkv] fp32, of values in 8 bits."""


class LogitArgs(NamedTuple):
    """Factors of attention logits."""

    sinks: Tensor | None
    """[Hq]: logit of each head that attends to nothing."""
    scale: float
    """Factor of the products; times log2(e) without a soft cap, divided by the soft cap with one."""
    softcap: float
    """Soft cap times log2(e); 0 without one."""


class SplitParts(NamedTuple):
    """Parts of the online softmax, by which programs share a row; all None where none do. T tiles times Hkv."""

    acc: Tensor | None
    """[T, SPLITS, BLOCK_M, V_PAD] fp32: accumulators."""
    top: Tensor | None
    """[T, SPLITS, BLOCK_M] fp32: largest base-2 logits."""
    total: Tensor | None
    """[T, SPLITS, BLOCK_M] fp32: sums of exponentials."""
    arrivals: Tensor | None
    """[T] int32 counters, 0 between launches."""


class PrefixParts(NamedTuple):
    """Parts of the online softmax over shared pages, by split; all None without them. M tokens, R rows."""

    pages: Tensor | None
    """[R] int64: shared pages of each row; 0 for a row in no group, which has no parts."""
    chunk: Tensor | None
    """[1] int32: blocks of keys in a split; a row has as many splits as its shared pages take."""
    acc: Tensor | None
    """[SPLITS, M, Hq, D of values] fp32: accumulators."""
    top: Tensor | None
    """[SPLITS, M, Hq] fp32: largest base-2 logits."""
    total: Tensor | None
    """[SPLITS, M, Hq] fp32: sums of exponentials."""


class AttentionSizes(NamedTuple):
    """Sizes of attention; compile-time constants."""

    q_heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    k_pad: int
    """Smallest power of 2 not below k_dim, at least 16."""
    v_pad: int
    """Smallest power of 2 not below v_dim, at least 16."""
    page_size: int
    """Tokens per page."""


class StoreArgs(NamedTuple):
    """Keys or values [M, Hkv, D] and their pages."""

    source: Tensor
    """[M, Hkv, D]."""
    pages: Tensor
    """[P, Hkv, S, D]."""
    scale: Tensor | None
    """[Hkv] fp32, of pages in 8 bits."""
    stride_n: int
    """Elements from one token to the next."""
    stride_h: int
    """Elements from one head to the next."""
    stride_d: int
    """Elements from one entry of a head to the next."""


class StoreSizes(NamedTuple):
    """Sizes of keys or values; compile-time constants."""

    heads: int
    dim: int
    page_size: int
    """Tokens per page."""
    heads_pad: int
    """Smallest power of 2 not below `heads`."""
    dim_pad: int
    """Smallest power of 2 not below `dim`."""

"""Groups of arguments of the experts' kernels. A kernel takes each group as one NamedTuple.

M tokens, E experts, k experts per token, P = M * k pairs of a token and an expert, T tiles, N outputs of a product, K
its inputs. The rules are those of `specpipe_kernels.layers.layer_args`.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class PairTiles(NamedTuple):
    """Pairs sorted by expert and cut into tiles of BLOCK_M; each tile has pairs of one expert alone.

    Of few tokens only `pairs` is given, and holds their experts: each program finds the pairs of its own tile.
    """

    pairs: Tensor
    """[P] int32: numbers of pairs, token * k + choice, sorted by expert. Of few tokens: the expert of each pair."""
    expert: Tensor | None
    """[T] int32: expert of each tile; -1 for an unused tile."""
    first: Tensor | None
    """[T] int32: place of the tile's first pair in `pairs`."""
    rows: Tensor | None
    """[T] int32: pairs in the tile."""


class GroupedInputs(NamedTuple):
    """Inputs of a grouped product beside x and the weights; None where there is none."""

    exponents: Tensor | None
    """[E, N, ceil(K / 128)] int32: of mxfp4 weights."""
    weight_scale: Tensor | None
    """[E, N / rows, K / columns] fp32: of weights in 8 bits."""
    x_scale: Tensor | None
    """[K / group, rows of x] fp32: of x in 8 bits."""
    bias: Tensor | None
    """[E, N]."""
    pair_weight: Tensor | None
    """[P] fp32: factor of each pair's result."""
    residual: Tensor | None = None
    """[M, N]: the results of each token's pairs are added to it."""
    residual_stride: int = 0
    """Elements from one token to the next."""
    norm_weight: Tensor | None = None
    """[N]: weight of the pending norm of the sum."""


class Fp8Blocks(NamedTuple):
    """Entries that share a scale; compile-time constants, 0 where nothing is in 8 bits."""

    rows: int
    """Rows of the weight."""
    columns: int
    """Columns of the weight."""
    group: int
    """Columns of x."""


class GroupedSizes(NamedTuple):
    """Sizes of a grouped product; compile-time constants."""

    n: int
    """Outputs; of a gated product those of the gate alone."""
    k: int
    top_k: int
    """Experts per token."""
    gate_step: int
    """Rows of the weight from one output's gate to the next one's."""
    up_offset: int
    """Rows of the weight from an output's gate to its up projection; 0 without a gate."""


class GroupedTiling(NamedTuple):
    """Tile sizes of a grouped product; compile-time constants."""

    block_m: int
    """Pairs of a tile."""
    least_m: int
    """Pairs of the smallest tile that is computed: block_m, or that over 2, 4 or 8."""
    block_n: int
    """Outputs per program."""
    block_k: int
    """Columns of the weight per step."""
    stages: int
    """Steps whose loads are in flight."""
    warps: int
    splits: int = 1
    """Programs that share K; the last one to arrive adds their sums in order."""

"""Kernel of products of many rows with 4-bit weights, for the matrix unit of Hopper (compute capability 9.0).

One warp loads. Two groups of four warps multiply half of a tile's rows each: while one converts words in registers, the
matrix unit works for the other. So no barrier may join them. The weight is the left operand, which the matrix unit
takes from registers: the result is computed transposed. Written in Gluon, because Triton waits for each product whose
left operand is in registers.

All steps of all tiles are divided evenly among the programs. A program has at most two incomplete tiles: it stores
their sums, and the last program of a tile to arrive adds them in the order of K.
"""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from specpipe_kernels.layers.quantized.int4_tile import load_groups, quarter_of_words, times_scale
from specpipe_kernels.runtime.dependent_launch import let_next_start, wait_for_inputs

BLOCK_N = gl.constexpr(128)
"""Rows of the weight in a tile; of a gated product half of them are the gate's."""
GROUP_N = gl.constexpr(64)
"""Rows of a group of four warps. Two groups take turns at the matrix unit while the other one converts."""
WORDS = gl.constexpr(32)
"""Words of each row per step: 128 columns."""
WARPS = 4
"""Warps of a group."""


@gluon.jit
def _tile_at(tile, rows, SIZES: gl.constexpr, TILES: gl.constexpr):
    """Returns a tile's place along N and its first token: programs that run together share tiles of weight and x."""
    OUTPUTS: gl.constexpr = BLOCK_N // 2 if SIZES.glu else BLOCK_N
    TOKENS: gl.constexpr = TILES.block_m + TILES.rest_m
    tiles_n: gl.constexpr = (SIZES.n + OUTPUTS - 1) // OUTPUTS
    tiles_m = (rows + TOKENS - 1) // TOKENS
    band = tile // (8 * tiles_m) * 8
    width = gl.minimum(tiles_n - band, 8)
    place = tile - band * tiles_m
    return band + place % width, place // width * TOKENS


@gluon.jit
def _program_of(step, total, programs):
    """Returns the program that takes a step of all: program p begins at step p * total // programs."""
    return ((step + 1) * programs - 1) // total


@gluon.jit
def _column_of(step, QUARTER: gl.constexpr, SIZES: gl.constexpr):
    """Returns the first of the 32 columns that a quarter of a step's words holds (`int4_layout`)."""
    word = step * WORDS
    column = word // 128 * 512 + word % 128 + 128 * QUARTER
    if SIZES.k % 512:  # short blocks lie behind the whole ones
        column = gl.where(word < SIZES.k // 512 * 128, column, 4 * word + WORDS * QUARTER)
    return column


@gluon.jit
def _load_steps(
    x, x_rest, words, memory, ready, free, rows, first, last, SIZES: gl.constexpr, TILES: gl.constexpr
):  # fmt: skip
    """Loads the operands of the steps from first to last, each as soon as its memory is free."""
    BYTES: gl.constexpr = 2 * BLOCK_N * WORDS + 8 * (TILES.block_m + TILES.rest_m) * WORDS
    STEPS: gl.constexpr = SIZES.k // 128
    w_tiles, x_tiles, rest_tiles = memory
    position = first
    while position < last:
        start = position % STEPS
        end = gl.minimum(STEPS, start + last - position)
        tile_n, m = _tile_at(position // STEPS, rows, SIZES, TILES)
        for step in range(start, end):
            count = position - first
            stage = count % TILES.stages
            mbarrier.wait(free.index(stage), count // TILES.stages & 1 ^ 1)
            loaded = ready.index(stage)
            mbarrier.expect(loaded, BYTES)
            if SIZES.glu:
                at = [tile_n * (BLOCK_N // 16), 0, 0, step * WORDS]
                tma.async_copy_global_to_shared(words, at, loaded, w_tiles.index(stage))
            else:
                tma.async_copy_global_to_shared(words, [tile_n * BLOCK_N, step * WORDS], loaded, w_tiles.index(stage))
            for quarter in gl.static_range(4):
                column = _column_of(step, quarter, SIZES)
                tma.async_copy_global_to_shared(x, [m, column], loaded, x_tiles.index(4 * stage + quarter))
                if TILES.rest_m:
                    at = [m + TILES.block_m, column]
                    tma.async_copy_global_to_shared(x_rest, at, loaded, rest_tiles.index(4 * stage + quarter))
            position += 1


@gluon.jit
def _rows_of_weight(tile_n, lane, SIZES: gl.constexpr):
    """Returns the rows of the weight of a tile's lanes, and which of them exist."""
    if SIZES.glu:  # 8 rows of the gate, then those of the up projection: a thread of the matrix unit holds both
        n = tile_n * (BLOCK_N // 2) + lane // 16 * 8 + lane % 8
        in_n = n < SIZES.n
        n += lane // 8 % 2 * SIZES.n
    else:
        n = tile_n * BLOCK_N + lane
        in_n = n < SIZES.n
    return n, in_n


@gluon.jit
def _load_quarters(values, step, n, in_n, SIZES: gl.constexpr):
    """Returns scales or zeros [GROUP_N] of each quarter of a step's words."""
    first = load_groups(values, _column_of(step, 0, SIZES), n, in_n, SIZES)
    second = load_groups(values, _column_of(step, 1, SIZES), n, in_n, SIZES)
    third = load_groups(values, _column_of(step, 2, SIZES), n, in_n, SIZES)
    fourth = load_groups(values, _column_of(step, 3, SIZES), n, in_n, SIZES)
    return first, second, third, fourth


@gluon.jit
def _convert(w_tile, QUARTER: gl.constexpr, scale, zero, DTYPE: gl.constexpr):
    """Returns a quarter of words [GROUP_N, WORDS] in DTYPE, times scale."""
    entries = quarter_of_words(w_tile, QUARTER, DTYPE, True)
    if zero is not None:
        shift = (zero.to(gl.float32) - 8.0).to(DTYPE)
        entries = entries - gl.expand_dims(shift, 1)
    return times_scale(entries, scale, True)


@gluon.jit
def _multiply(acc, entries, tiles, stage, LAYOUT: gl.constexpr):
    """Adds the product of a step's quarters to acc, asynchronously."""
    for quarter in gl.static_range(4):
        left = gl.convert_layout(entries[quarter], LAYOUT, assert_trivial=True)
        acc = warpgroup_mma(left, tiles.index(4 * stage + quarter).permute([1, 0]), acc, is_async=True)
    return acc


@gluon.jit
def _norm_factors(squares, m, rows, eps, SIZES: gl.constexpr, M: gl.constexpr):
    """Returns the factors [M] that complete the norm of tokens from m on."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    part = gl.expand_dims(gl.arange(0, SIZES.parts_pad, layout=gl.SliceLayout(1, LAYOUT)), 1)
    token = gl.expand_dims(m + gl.arange(0, M, layout=gl.SliceLayout(0, LAYOUT)), 0)
    mask = (part < SIZES.parts) & (token < rows)
    total = gl.sum(gl.load(squares + part * rows + token, mask, 0.0), 0)
    return gl.rsqrt(total / SIZES.k + eps)


@gluon.jit
def _store_values(values, out, first_n, first_m, rows, N: gl.constexpr):
    """Stores values [outputs, M] from an output and a token on, 32 tokens at a time, which are transposed in memory."""
    OUTPUTS: gl.constexpr = values.shape[0]
    M: gl.constexpr = values.shape[1]
    if M > 32:
        low, high = values.reshape([OUTPUTS, 2, M // 2]).permute([0, 2, 1]).split()
        _store_values(low, out, first_n, first_m, rows, N)
        _store_values(high, out, first_n, first_m + M // 2, rows, N)
    else:
        LAYOUT: gl.constexpr = gl.BlockedLayout([8, 1], [OUTPUTS // 8, 256 // OUTPUTS], [1, 4], [0, 1])
        n = gl.expand_dims(first_n + gl.arange(0, OUTPUTS, layout=gl.SliceLayout(1, LAYOUT)), 1)
        m = gl.expand_dims(first_m + gl.arange(0, M, layout=gl.SliceLayout(0, LAYOUT)), 0)
        gl.store(out + m.to(gl.int64) * N + n, gl.convert_layout(values, LAYOUT), (m < rows) & (n < N))


@gluon.jit
def _store_tile(acc, inputs, out, tile_n, first_m, rows, eps, GROUP: gl.constexpr, SIZES: gl.constexpr):
    """Stores the results of sums [GROUP_N, M] of the tokens from first_m on."""
    DTYPE: gl.constexpr = out.dtype.element_ty
    LAYOUT: gl.constexpr = acc.type.layout
    M: gl.constexpr = acc.shape[1]
    if SIZES.parts > 0:
        factors = _norm_factors(inputs.squares, first_m, rows, eps, SIZES, M)
        acc = acc * gl.expand_dims(gl.convert_layout(factors, gl.SliceLayout(0, LAYOUT)), 0)
    if inputs.bias is not None:
        lane = GROUP * GROUP_N + gl.arange(0, GROUP_N, layout=gl.SliceLayout(1, LAYOUT))
        n, in_n = _rows_of_weight(tile_n, lane, SIZES)
        acc = acc + gl.expand_dims(gl.load(inputs.bias + n, in_n, 0.0).to(gl.float32), 1)
    result = acc.to(DTYPE)
    if SIZES.glu:
        pairs = result.reshape([GROUP_N // 16, 2, 8, M]).permute([0, 2, 3, 1]).reshape([GROUP_N // 2, M, 2])
        gate, up = pairs.split()
        gate = gate.to(gl.float32)
        result = (gate / (1.0 + gl.exp(-gate)) * up.to(gl.float32)).to(DTYPE)
    _store_values(result, out, (2 * tile_n + GROUP) * result.shape[0], first_m, rows, SIZES.n)


@gluon.jit
def _flatten(acc):
    """Returns sums [GROUP_N, M] as [GROUP_N * M], so that four registers of a thread are adjacent, then all threads."""
    M: gl.constexpr = acc.shape[1]
    return acc.reshape([4, 2, 8, M // 8, 4, 2]).permute([3, 0, 2, 4, 1, 5]).reshape([GROUP_N * M])


@gluon.jit
def _unflatten(values, M: gl.constexpr):
    """Returns sums [GROUP_N, M] of those that `_flatten` returned."""
    return values.reshape([M // 8, 4, 8, 4, 2, 2]).permute([1, 4, 2, 0, 3, 5]).reshape([GROUP_N, M])


@gluon.jit
def _part(sums, program, begins, GROUP: gl.constexpr, TILES: gl.constexpr):
    """Returns the memory of a group's part of the tile that program `begins` begins."""
    PART: gl.constexpr = GROUP_N * (TILES.block_m + TILES.rest_m)
    return sums + (4 * program + 2 * (program == begins).to(gl.int32) + GROUP).to(gl.int64) * PART


@gluon.jit
def _store_part(acc, part):
    """Stores sums [GROUP_N, M] in the order of `_flatten`."""
    values = _flatten(acc)
    gl.store(part + gl.arange(0, values.shape[0], layout=values.type.layout), values)


@gluon.jit
def _add_parts(
    inputs, out, sums, begins, ends, tile_n, first_m, rows, eps, GROUP: gl.constexpr, SIZES: gl.constexpr,
    TILES: gl.constexpr, FIRST: gl.constexpr, M: gl.constexpr, CHUNK: gl.constexpr,
):  # fmt: skip
    """Adds the parts of M tokens of a tile, FIRST and the next ones, in order, and stores the results."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CHUNK, 16])
    like = _flatten(gl.zeros([GROUP_N, CHUNK], gl.float32, LAYOUT))
    lane = gl.arange(0, GROUP_N * CHUNK, layout=like.type.layout)
    for chunk in range(FIRST, FIRST + M, CHUNK):
        at = chunk * GROUP_N + lane
        values = gl.load(_part(sums, begins, begins, GROUP, TILES) + at, cache_modifier=".cg")
        for program in range(begins + 1, ends + 1):
            values += gl.load(_part(sums, program, begins, GROUP, TILES) + at, cache_modifier=".cg")
        _store_tile(_unflatten(values, CHUNK), inputs, out, tile_n, first_m + chunk, rows, eps, GROUP, SIZES)


@gluon.jit
def _combine(
    acc, rest, inputs, out, parts, tile, tile_n, m, rows, total, eps, GROUP: gl.constexpr, SIZES: gl.constexpr,
    TILES: gl.constexpr,
):  # fmt: skip
    """Stores the sums of an incomplete tile, and its results if those of all other programs are there."""
    STEPS: gl.constexpr = SIZES.k // 128
    BLOCK_M: gl.constexpr = TILES.block_m
    REST_M: gl.constexpr = TILES.rest_m
    CHUNK: gl.constexpr = BLOCK_M if BLOCK_M < 128 else 128
    begins = _program_of(tile * STEPS, total, gl.num_programs(0))
    ends = _program_of(tile * STEPS + STEPS - 1, total, gl.num_programs(0))
    own = _part(parts.sums, gl.program_id(0), begins, GROUP, TILES)
    _store_part(acc, own)
    if REST_M:
        _store_part(rest, own + GROUP_N * BLOCK_M)
    tl.debug_barrier()
    counter = parts.arrivals + 2 * tile + GROUP
    if gl.atomic_add(counter, 1, sem="acq_rel") == ends - begins:
        gl.store(counter, 0)
        _add_parts(
            inputs, out, parts.sums, begins, ends, tile_n, m, rows, eps, GROUP, SIZES, TILES, 0, BLOCK_M, CHUNK
        )  # fmt: skip
        if REST_M:
            _add_parts(
                inputs, out, parts.sums, begins, ends, tile_n, m, rows, eps, GROUP, SIZES, TILES, BLOCK_M, REST_M,
                REST_M,
            )  # fmt: skip


@gluon.jit
def _compute_steps(
    memory, ready, free, inputs, out, parts, rows, total, eps, first, last, GROUP: gl.constexpr, SIZES: gl.constexpr,
    TILES: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Multiplies half of the rows of the steps from first to last, and stores the tiles that they complete."""
    DTYPE: gl.constexpr = out.dtype.element_ty
    STEPS: gl.constexpr = SIZES.k // 128
    BLOCK_M: gl.constexpr = TILES.block_m
    REST_M: gl.constexpr = TILES.rest_m if TILES.rest_m else 16
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    REST_SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, REST_M, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    w_tiles, x_tiles, rest_tiles = memory
    lane = GROUP * GROUP_N + gl.arange(0, GROUP_N, layout=gl.SliceLayout(1, LEFT))
    position = first
    while position < last:
        tile, start = position // STEPS, position % STEPS
        end = gl.minimum(STEPS, start + last - position)
        tile_n, m = _tile_at(tile, rows, SIZES, TILES)
        n, in_n = _rows_of_weight(tile_n, lane, SIZES)
        acc = warpgroup_mma_init(gl.zeros([GROUP_N, BLOCK_M], gl.float32, SUMS))
        if TILES.rest_m:
            rest = warpgroup_mma_init(gl.zeros([GROUP_N, REST_M], gl.float32, REST_SUMS))
        # Scales are loaded a step ahead.
        s_0, s_1, s_2, s_3 = _load_quarters(inputs.scale, start, n, in_n, SIZES)
        z_0, z_1, z_2, z_3 = None, None, None, None
        if inputs.zeros is not None:
            z_0, z_1, z_2, z_3 = _load_quarters(inputs.zeros, start, n, in_n, SIZES)
        for step in range(start, end):
            count = position - first
            stage = count % TILES.stages
            mbarrier.wait(ready.index(stage), count // TILES.stages & 1)
            w_tile = w_tiles.index(stage).reshape([BLOCK_N, WORDS]).slice(GROUP * GROUP_N, GROUP_N).load(LEFT)
            e_0 = _convert(w_tile, 0, s_0, z_0, DTYPE)
            e_1 = _convert(w_tile, 1, s_1, z_1, DTYPE)
            e_2 = _convert(w_tile, 2, s_2, z_2, DTYPE)
            e_3 = _convert(w_tile, 3, s_3, z_3, DTYPE)
            following = gl.minimum(step + 1, STEPS - 1)
            s_0, s_1, s_2, s_3 = _load_quarters(inputs.scale, following, n, in_n, SIZES)
            if inputs.zeros is not None:
                z_0, z_1, z_2, z_3 = _load_quarters(inputs.zeros, following, n, in_n, SIZES)
            acc = _multiply(acc, (e_0, e_1, e_2, e_3), x_tiles, stage, LEFT)
            if TILES.rest_m:
                rest = _multiply(rest, (e_0, e_1, e_2, e_3), rest_tiles, stage, gl.DotOperandLayout(0, REST_SUMS, 2))
            # Registers of a left operand must not be written before its product is complete.
            sums, e_0, e_1, e_2, e_3 = warpgroup_mma_wait(0, [acc, e_0, e_1, e_2, e_3])
            acc = warpgroup_mma_init(sums)
            mbarrier.arrive(free.index(stage), count=1)
            position += 1
        acc = warpgroup_mma_wait(0, [acc])
        if TILES.rest_m:
            rest = warpgroup_mma_wait(0, [rest])
        if position == last:
            let_next_start(PDL)
        if end - start == STEPS:
            _store_tile(acc, inputs, out, tile_n, m, rows, eps, GROUP, SIZES)
            if TILES.rest_m:
                _store_tile(rest, inputs, out, tile_n, m + BLOCK_M, rows, eps, GROUP, SIZES)
        else:
            other = acc
            if TILES.rest_m:
                other = rest
            _combine(acc, other, inputs, out, parts, tile, tile_n, m, rows, total, eps, GROUP, SIZES, TILES)


@gluon.jit(do_not_specialize=["rows", "tiles"])
def int4_gemm_kernel(
    x, x_rest, words, inputs, out, parts, rows, tiles, eps, SIZES: gl.constexpr, TILES: gl.constexpr, PDL: gl.constexpr
):  # fmt: skip
    """x, x_rest: descriptors of tiles [BLOCK_M, WORDS] and [REST_M, WORDS] of x; x_rest is unused if REST_M is 0.

    words: descriptor of tiles of the weight: [BLOCK_N, WORDS], of a gated product [BLOCK_N / 16, 2, 8, WORDS].
    """
    STAGES: gl.constexpr = TILES.stages
    REST_M: gl.constexpr = TILES.rest_m if TILES.rest_m else 16
    w_tiles = gl.allocate_shared_memory(words.dtype, [STAGES] + words.block_shape, words.layout)  # noqa: RUF005 (Triton compiles no *)
    x_tiles = gl.allocate_shared_memory(x.dtype, [4 * STAGES, TILES.block_m, WORDS], x.layout)
    rest_tiles = x_tiles
    if TILES.rest_m:
        rest_tiles = gl.allocate_shared_memory(x.dtype, [4 * STAGES, REST_M, WORDS], x_rest.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=2)
    total = tiles * (SIZES.k // 128)
    first = gl.program_id(0) * total // gl.num_programs(0)
    last = (gl.program_id(0) + 1) * total // gl.num_programs(0)
    memory = (w_tiles, x_tiles, rest_tiles)
    wait_for_inputs(PDL)
    gl.warp_specialize(
        [
            (
                _compute_steps,
                (memory, ready, free, inputs, out, parts, rows, total, eps, first, last, 0, SIZES, TILES, PDL),
            ),
            (
                _compute_steps,
                (memory, ready, free, inputs, out, parts, rows, total, eps, first, last, 1, SIZES, TILES, PDL),
            ),
            (_load_steps, (x, x_rest, words, memory, ready, free, rows, first, last, SIZES, TILES)),
        ],
        [4, 1],
        [104 if TILES.shared else 240, 24],  # registers of a thread
    )

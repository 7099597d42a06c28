"""The work on vectors of conjugate gradients, see ugnn_fast/device/solve.py. Labels as in docs/math.md.

Sums over rows have two phases and no atomics: a program adds up ROWS rows, then one adds up those sums in their order.
"""

import triton
import triton.language as tl
from ugnn_fast.kernels._rows import coefficient

from ugnn_fast.device import solve

ROWS: tl.constexpr = tl.constexpr(solve.ROWS)
ARRIVED: tl.constexpr = tl.constexpr(solve.ARRIVED)
ACTIVE: tl.constexpr = tl.constexpr(solve.ACTIVE)
INDEFINITE: tl.constexpr = tl.constexpr(solve.INDEFINITE)


@triton.jit
def block_columns(D, BLOCK_D: tl.constexpr):
    """(r, columns, which of them there are) of a program, as in step_kernel."""
    blocks = tl.cdiv(D, BLOCK_D)
    r = tl.program_id(1) // blocks
    offs_d = tl.program_id(1) % blocks * BLOCK_D + tl.arange(0, BLOCK_D)
    return r, r * D + offs_d, offs_d < D


@triton.jit
def block_rows(N, SLOTS: tl.constexpr):
    """(first row, trips) of a program for ROWS rows, SLOTS at a time."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    return first, tl.cdiv(tl.minimum(N - first, ROWS).to(tl.int32), SLOTS)


@triton.jit
def store_sums(sums_ptr, a, b, offs, mask_d, width):
    """The sums of two tables over their slots, to sums[block of rows, 0] and [.., 1]."""
    at = tl.program_id(0).to(tl.int64) * 4 * width + offs
    tl.store(sums_ptr + at, tl.sum(a.to(tl.float64), 0), mask=mask_d)
    tl.store(sums_ptr + at + width, tl.sum(b.to(tl.float64), 0), mask=mask_d)


@triton.jit
def residual_kernel(
    x_ptr, scale_ptr, root_ptr,                 # [N, width], [width], 1 / N [N]
    q_ptr, r_ptr, p_ptr,                        # [N, width]; q is None for 0
    inverse_ptr, inverse_row, inverse_replica,  # 1 / D, [N] or [N, R]
    square_ptr,                                 # N^2, [N]
    sums_ptr,                                   # [blocks, 4, width]
    N, D, width,
    SLOTS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """r = scale X / N - q, p = r / D, with <r, r / D> and <r, N^2 r>; program (block of ROWS rows, block of columns).

    With q = M u this is where (C2) starts, and starts again.
    """
    replica, offs, mask_d = block_columns(D, BLOCK_D)
    first, trips = block_rows(N, SLOTS)
    scale = tl.load(scale_ptr + offs, mask=mask_d, other=0.0)[None, :]
    rz = tl.zeros((SLOTS, BLOCK_D), tl.float32)
    rr = tl.zeros((SLOTS, BLOCK_D), tl.float32)
    for k in range(trips):
        i = first + k * SLOTS + tl.arange(0, SLOTS)
        mask = (i < N)[:, None] & mask_d[None, :]
        at = i[:, None] * width + offs[None, :]
        root = coefficient(root_ptr, 1.0, i, 0, 1, 0, i < N)
        r = root * (scale * tl.load(x_ptr + at, mask=mask, other=0.0))
        if q_ptr is not None:
            r -= tl.load(q_ptr + at, mask=mask, other=0.0)
        z = coefficient(inverse_ptr, 1.0, i, replica, inverse_row, inverse_replica, i < N) * r
        tl.store(r_ptr + at, r, mask=mask)
        tl.store(p_ptr + at, z, mask=mask)
        rz += z * r
        rr += coefficient(square_ptr, 1.0, i, 0, 1, 0, i < N) * r * r
    store_sums(sums_ptr, rz, rr, offs, mask_d, width)


@triton.jit
def products_kernel(
    p_ptr, q_ptr,                               # [N, width]
    inverse_ptr, inverse_row, inverse_replica,  # 1 / D, [N] or [N, R]
    sums_ptr,                                   # [blocks, 4, width]
    N, D, width,
    SLOTS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """<p, q> and <q, q / D>; program (block of ROWS rows, block of columns)."""
    replica, offs, mask_d = block_columns(D, BLOCK_D)
    first, trips = block_rows(N, SLOTS)
    pq = tl.zeros((SLOTS, BLOCK_D), tl.float32)
    qq = tl.zeros((SLOTS, BLOCK_D), tl.float32)
    for k in range(trips):
        i = first + k * SLOTS + tl.arange(0, SLOTS)
        mask = (i < N)[:, None] & mask_d[None, :]
        at = i[:, None] * width + offs[None, :]
        q = tl.load(q_ptr + at, mask=mask, other=0.0)
        pq += tl.load(p_ptr + at, mask=mask, other=0.0) * q
        qq += coefficient(inverse_ptr, 1.0, i, replica, inverse_row, inverse_replica, i < N) * q * q
    store_sums(sums_ptr + 2 * width, pq, qq, offs, mask_d, width)


@triton.jit
def update_kernel(
    lengths_ptr,                                # alpha and beta, [2, width]
    u_ptr, r_ptr, p_ptr, q_ptr,                 # [N, width]
    inverse_ptr, inverse_row, inverse_replica,  # 1 / D, [N] or [N, R]
    square_ptr,                                 # N^2, [N]
    sums_ptr,                                   # [blocks, 4, width]
    N, D, width,
    SLOTS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """u += alpha p, r -= alpha q, p = r / D + beta p, with <r, r / D> and <r, N^2 r>. Programs as above."""
    replica, offs, mask_d = block_columns(D, BLOCK_D)
    first, trips = block_rows(N, SLOTS)
    alpha = tl.load(lengths_ptr + offs, mask=mask_d, other=0.0)[None, :]
    beta = tl.load(lengths_ptr + width + offs, mask=mask_d, other=0.0)[None, :]
    rz = tl.zeros((SLOTS, BLOCK_D), tl.float32)
    rr = tl.zeros((SLOTS, BLOCK_D), tl.float32)
    for k in range(trips):
        i = first + k * SLOTS + tl.arange(0, SLOTS)
        mask = (i < N)[:, None] & mask_d[None, :]
        at = i[:, None] * width + offs[None, :]
        p = tl.load(p_ptr + at, mask=mask, other=0.0)
        r = tl.load(r_ptr + at, mask=mask, other=0.0) - alpha * tl.load(q_ptr + at, mask=mask, other=0.0)
        z = coefficient(inverse_ptr, 1.0, i, replica, inverse_row, inverse_replica, i < N) * r
        tl.store(u_ptr + at, tl.load(u_ptr + at, mask=mask, other=0.0) + alpha * p, mask=mask)
        tl.store(r_ptr + at, r, mask=mask)
        tl.store(p_ptr + at, z + beta * p, mask=mask)
        rz += z * r
        rr += coefficient(square_ptr, 1.0, i, 0, 1, 0, i < N) * r * r
    store_sums(sums_ptr, rz, rr, offs, mask_d, width)


@triton.jit
def total(sums_ptr, blocks, offs, mask, width, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sums over all blocks of rows, [COLUMNS], float64."""
    acc = tl.zeros((BLOCKS, COLUMNS), tl.float64)
    for k in range(tl.cdiv(blocks, BLOCKS)):
        block = k * BLOCKS + tl.arange(0, BLOCKS)
        at = block.to(tl.int64)[:, None] * 4 * width + offs[None, :]
        acc += tl.load(sums_ptr + at, mask=(block < blocks)[:, None] & mask[None, :], other=0.0)
    return tl.sum(acc, 0)


@triton.jit
def lengths_kernel(
    sums_ptr, blocks,         # [blocks, 4, width]: <r, r / D>, <r, N^2 r>, <p, q>, <q, q / D>
    limit_ptr,                # tol^2 |X|^2, [width]
    state_ptr,                # what a column is, and its iterations; [2, width]
    lengths_ptr,              # alpha and beta, [2, width]
    curvature_ptr,            # <p, q> where it is not positive, [width]
    width,
    LENGTHS: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Which columns are active, and with LENGTHS also (C2), (C3): alpha and beta, 0 for the others.

    One program for COLUMNS columns, which takes the sums of BLOCKS blocks of rows at a time.
    """
    offs = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mask = offs < width
    rr = total(sums_ptr + width, blocks, offs, mask, width, BLOCKS, COLUMNS)
    kind = tl.load(state_ptr + offs, mask=mask, other=ARRIVED)
    active = (kind == ACTIVE) & (rr > tl.load(limit_ptr + offs, mask=mask, other=0.0))
    kind = tl.where((kind == ACTIVE) & (active == 0), ARRIVED, kind)
    if LENGTHS:
        rz = total(sums_ptr, blocks, offs, mask, width, BLOCKS, COLUMNS)
        pq = total(sums_ptr + 2 * width, blocks, offs, mask, width, BLOCKS, COLUMNS)
        qq = total(sums_ptr + 3 * width, blocks, offs, mask, width, BLOCKS, COLUMNS)
        indefinite = active & (pq <= 0)
        tl.store(curvature_ptr + offs, pq, mask=mask & indefinite)
        kind = tl.where(indefinite, INDEFINITE, kind)
        active = active & (indefinite == 0)
        count = tl.load(state_ptr + width + offs, mask=mask, other=0)
        tl.store(state_ptr + width + offs, count + active.to(tl.int32), mask=mask)
        pq = tl.where(active, pq, 1.0)
        alpha = tl.where(active, rz / pq, 0.0)
        beta = tl.maximum(alpha * (qq / pq) - 1, 0.0)
        tl.store(lengths_ptr + offs, alpha.to(tl.float32), mask=mask)
        tl.store(lengths_ptr + width + offs, tl.where(active, beta, 0.0).to(tl.float32), mask=mask)
    tl.store(state_ptr + offs, kind, mask=mask)

"""Conjugate gradients: M times a table by step_kernel, the work on vectors here. Labels as in docs/math.md.

Every column has its own step lengths. An iteration is four launches (five with hubs): the step, two products, the step
lengths, the update; none of them waits for the host, which looks every LOOK iterations whether a column is still
active. One that has arrived has step length 0 and keeps what it has, so that nothing depends on when that is noticed.

Sums over rows have two phases and no atomics: a program adds up ROWS rows, then one adds up those sums in their order.
"""

import functools
import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from ugnn_fast.kernels._rows import REGISTERS, coefficient
from ugnn_fast.kernels.step import ZERO, Coef, Stepper, column, per_node

from ugnn_fast.ops.row_sum import row_sum
from ugnn_fast.ops.solve import solve_backward_body, solve_body

LOOK = 4
ROWS: tl.constexpr = tl.constexpr(256)
# what a column is
ARRIVED: tl.constexpr = tl.constexpr(0)
ACTIVE: tl.constexpr = tl.constexpr(1)
INDEFINITE: tl.constexpr = tl.constexpr(2)


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


def _power_of_two(x: Tensor) -> Tensor:
    """What brings each column of x near 1, as squares of very small or large values would leave the range of numbers;
    NaN for one that is not finite, which makes all of its result NaN."""
    largest = x.abs().amax(0)
    exponent = torch.frexp(torch.where(largest.isfinite(), largest, 1)).exponent.clamp(-120, 120)
    return torch.where(largest.isfinite(), torch.ldexp(torch.ones_like(largest), -exponent), torch.nan)


class _Vectors:
    """The tables of one solve, and the launches on them."""

    def __init__(self, graph: tuple, x: Tensor, matrix: Any):
        degree = root = self.square = None
        if matrix.norm == "sym":
            degree = torch.where(graph[3] > 0, graph[3], 1)
            root, self.square = degree.sqrt(), degree.reciprocal()
        diag = x.new_full(x.shape[:1], matrix.diag_value) if matrix.diag is None else matrix.diag
        self.diag = per_node(diag if degree is None else diag * column(degree, diag))
        self.inverse = per_node(self.diag.values.reciprocal())[:3]
        c = ZERO if matrix.c is None else per_node(matrix.c)
        self.stepper = Stepper(
            graph, x, c=c, replicas=c.replica_stride > 0 or self.diag.replica_stride > 0,
            edge_value=None if matrix.edge_value is None else matrix.edge_value.contiguous(),
        )  # fmt: skip
        self.agg = Coef(scale=-matrix.scale)
        width, blocks = self.stepper.width, triton.cdiv(len(x), ROWS.value)
        self.sizes = len(x), self.stepper.D, width
        self.grid = blocks, self.stepper.columns
        self.x, self.root, self.scale = x, root, _power_of_two(x)
        self.u = torch.zeros_like(x)
        self.r, self.p, self.q = (torch.empty_like(x) for _ in range(3))
        self.sums = torch.empty((blocks, 4, width), dtype=torch.float64, device=x.device)
        self.limit = self.sums.new_empty(width)
        self.curvature = self.sums.new_empty(width)
        self.lengths = x.new_empty((2, width))
        self.state = torch.zeros((2, width), dtype=torch.int32, device=x.device)

    def _launch(self, kernel: Any, *args: Any) -> None:
        config = self.stepper.config
        kernel[self.grid](
            *args, *self.sizes, SLOTS=config.slots, BLOCK_D=config.block, num_warps=config.warps, **REGISTERS
        )

    def _step_lengths(self, lengths: bool) -> None:
        blocks, width = self.sums.shape[0], self.sizes[2]
        lengths_kernel[(triton.cdiv(width, 8),)](
            self.sums, blocks, self.limit, self.state, self.lengths, self.curvature, width,
            LENGTHS=lengths, BLOCKS=128, COLUMNS=8, num_warps=4,
        )  # fmt: skip

    def multiply(self, table: Tensor) -> None:
        self.stepper.step(table, agg=self.agg, skip=self.diag, x=table, out=self.q)

    def residual(self, first: bool) -> Tensor:
        """|r|^2 of each column, with r the true residual; q must be M u, if this is not the first."""
        self._launch(
            residual_kernel, self.x, self.scale, self.root, None if first else self.q, self.r, self.p, *self.inverse,
            self.square, self.sums,
        )  # fmt: skip
        return row_sum((), self.sums[:, 1])

    def iterate(self, active: Tensor, most: int) -> tuple[int, float]:
        """At most so many iterations, until all columns have arrived; their number, and the curvature."""
        self.state[0], self.state[1] = active, 0
        left = most
        while True:
            for _ in range(min(LOOK, left)):
                self.multiply(self.p)
                self._launch(products_kernel, self.p, self.q, *self.inverse, self.sums)
                self._step_lengths(True)
                self._launch(
                    update_kernel, self.lengths, self.u, self.r, self.p, self.q, *self.inverse, self.square, self.sums
                )
            left -= min(LOOK, left)
            self._step_lengths(False)
            kind, count = self.state.cpu()
            indefinite = kind == INDEFINITE.value
            if indefinite.any():
                # the first one, whenever this is
                at = torch.where(indefinite, count, most).argmin()
                return int(count[at]), self.curvature[at].item()
            if left == 0 or not (kind == ACTIVE.value).any():
                return int(count.max()), 1.0


def _iterate(graph: tuple, x: Tensor, matrix: Any, tol: float, max_iter: int) -> tuple[Tensor, int, float, float]:
    """F, iterations, residual and, if that is not positive, <p, M p>."""
    vectors = _Vectors(graph, x, matrix)
    size = rr = vectors.residual(first=True)
    torch.mul(size, tol * tol, out=vectors.limit)
    active, iterations = rr > vectors.limit, 0
    while iterations < max_iter and active.any():
        more, curvature = vectors.iterate(active, max_iter - iterations)
        iterations += more
        if curvature <= 0:
            return vectors.u, iterations, math.nan, curvature
        vectors.multiply(vectors.u)
        before, rr = rr, vectors.residual(first=False)
        # a start that did not halve the residual has met the limit of rounding
        active = (rr > vectors.limit) & (rr < before / 4)
    f = vectors.u if vectors.root is None else vectors.u * column(vectors.root, x)
    residual = torch.where(size == 0, 0, rr / size).max().sqrt().item()
    return f / vectors.scale, iterations, residual, 1.0


solve = functools.partial(solve_body, _iterate)
solve_backward = functools.partial(solve_backward_body, _iterate)

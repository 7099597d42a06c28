"""Conjugate gradients: M times a table by the kernel step, the work on vectors by those of kernels/solve.py.

Every column has its own step lengths. An iteration is four launches (five with hubs): the step, two products, the step
lengths, the update; none of them waits for the host, which looks every LOOK iterations whether a column is still
active. One that has arrived has step length 0 and keeps what it has, so that nothing depends on when that is noticed.
"""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from ugnn_fast import kernels  # type: ignore[attr-defined]
from ugnn_fast.device import _cuda
from ugnn_fast.device._rows import cdiv
from ugnn_fast.device.step import ZERO, Coef, Stepper, column, degrees, per_node
from ugnn_fast.kernels._launch import REGISTERS
from ugnn_fast.ops.row_sum import row_sum
from ugnn_fast.ops.solve import solve_backward_body, solve_body

LOOK = 4
ROWS = 256  # that a program adds up
# what a column is
ARRIVED, ACTIVE, INDEFINITE = 0, 1, 2


def _power_of_two(x: Tensor) -> Tensor:
    """What brings each column of x near 1, as squares of very small or large values would leave the range of numbers;
    NaN for one that is not finite, which makes all of its result NaN."""
    largest = x.abs().amax(0)
    limit = 1000 if x.dtype == torch.float64 else 120
    exponent = torch.frexp(torch.where(largest.isfinite(), largest, 1)).exponent.clamp(-limit, limit)
    return torch.where(largest.isfinite(), torch.ldexp(torch.ones_like(largest), -exponent), torch.nan)


class _Vectors:
    """The tables of one solve, and the launches on them."""

    def __init__(self, graph: tuple, x: Tensor, matrix: Any, backend: str):
        self.cuda = None if backend == "triton" else _cuda.launcher(backend)
        degree = root = self.square = None
        if matrix.norm == "sym":
            degree = degrees(graph, x.dtype, backend)
            degree = torch.where(degree > 0, degree, 1)
            root, self.square = degree.sqrt(), degree.reciprocal()
        diag = x.new_full(x.shape[:1], matrix.diag_value) if matrix.diag is None else matrix.diag
        diag = diag if degree is None else diag * column(degree, diag)
        self.diag = per_node(diag)
        self.inverse = per_node(diag.reciprocal())[:3]
        c = ZERO if matrix.c is None else per_node(matrix.c)
        self.stepper = Stepper(
            graph, x, c=c, replicas=c.replica_stride > 0 or self.diag.replica_stride > 0,
            edge_value=None if matrix.edge_value is None else matrix.edge_value.contiguous(), backend=backend,
        )  # fmt: skip
        self.agg = Coef(scale=-matrix.scale)
        width, blocks = self.stepper.width, cdiv(len(x), ROWS)
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

    def _launch(self, kernel: str, *args: Any) -> None:
        if self.cuda is not None:
            self.cuda.launch(kernel, [(*args, *self.sizes)])
            return
        config = self.stepper.config
        kernels.kernel(kernel)[self.grid](
            *args, *self.sizes, SLOTS=config.slots, BLOCK_D=config.block, num_warps=config.warps, **REGISTERS
        )

    def _step_lengths(self, lengths: bool) -> None:
        blocks, width = self.sums.shape[0], self.sizes[2]
        args = self.sums, blocks, self.limit, self.state, self.lengths, self.curvature, width
        if self.cuda is not None:
            self.cuda.launch("lengths", [(*args, lengths)])
            return
        kernels.kernel("lengths")[(cdiv(width, 8),)](*args, LENGTHS=lengths, BLOCKS=128, COLUMNS=8, num_warps=4)

    def multiply(self, table: Tensor) -> None:
        self.stepper.step(table, agg=self.agg, skip=self.diag, x=table, out=self.q)

    def residual(self, first: bool) -> Tensor:
        """|r|^2 of each column, with r the true residual; q must be M u, if this is not the first."""
        self._launch(
            "residual", self.x, self.scale, self.root, None if first else self.q, self.r, self.p, *self.inverse,
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
                self._launch("products", self.p, self.q, *self.inverse, self.sums)
                self._step_lengths(True)
                self._launch(
                    "update", self.lengths, self.u, self.r, self.p, self.q, *self.inverse, self.square, self.sums
                )
            left -= min(LOOK, left)
            self._step_lengths(False)
            kind, count = self.state.cpu()
            indefinite = kind == INDEFINITE
            if indefinite.any():
                # the first one, whenever this is
                at = torch.where(indefinite, count, most).argmin()
                return int(count[at]), self.curvature[at].item()
            if left == 0 or not (kind == ACTIVE).any():
                return int(count.max()), 1.0


def _iterate(
    graph: tuple, x: Tensor, matrix: Any, tol: float, max_iter: int, backend: str
) -> tuple[Tensor, int, float, float]:
    """F, iterations, residual and, if that is not positive, <p, M p>."""
    vectors = _Vectors(graph, x, matrix, backend)
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

"""ugnn::solve, M F = X for M = diag - N (A o W) N by conjugate gradients, and its gradient by one more solve."""

import functools
import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ugnn_fast._library import GRAPH, define, no_double_backward
from ugnn_fast.ops._native_call import (
    DTYPES,
    acc_dtype,
    by_replica,
    coefficients,
    csr,
    inverse_degree,
    native,
    pointer,
    replicas_and_width,
    result,
    storage,
)
from ugnn_fast.ops.edge_dot import edge_dot
from ugnn_fast.ops.propagate import one_step, pair_products
from ugnn_fast.ops.row_sum import row_sum


def check_solution(iterations: int, residual: float, curvature: float, tol: float, warn: bool) -> None:
    """An error if the matrix turned out to be indefinite, a warning if the solution is not good enough."""
    if not curvature > 0:
        raise ValueError(
            f"M = diag - N (A o W) N must be positive definite, got <p, M p> = {curvature:.3g} for some p;"
            " a larger diag or a smaller W makes it so"
        )
    if warn and not residual <= tol:
        why = "raise max_iter or tol" if math.isfinite(residual) else "x or the matrix is not finite"
        warnings.warn(
            f"solve did not converge: residual {residual:.3g} after {iterations} iterations, tol {tol:g}; {why}",
            stacklevel=5,
        )


def _fake(graph, x, *_):
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(2, dtype=torch.float64)


class _Matrix(NamedTuple):
    """M = diag - N (A o W) N with W = c_i + c_j, edge_value, or scale."""

    diag: Tensor | None  # [N] or [N, R]; None: diag_value
    c: Tensor | None  # [N] or [N, R]
    edge_value: Tensor | None  # [E]
    diag_value: float
    scale: float
    norm: str

    def double(self) -> "_Matrix":
        diag, c, edge_value = (None if t is None else t.double() for t in self[:3])
        return self._replace(diag=diag, c=c, edge_value=edge_value)

    def times(self, graph: tuple, f: Tensor, backend: str) -> Tensor:
        y = self.scale * one_step(graph, f, backend, c=self.c, edge_value=self.edge_value, norm=self.norm)
        if self.diag is None:
            return self.diag_value * f - y
        return self.diag.reshape(*self.diag.shape, *(1,) * (f.dim() - self.diag.dim())) * f - y


def _iterate(
    graph: tuple, x: Tensor, matrix: _Matrix, tol: float, max_iter: int, backend: str
) -> tuple[Tensor, int, float, float]:
    """F, iterations, residual and, if that is not positive, <p, M p>; all as the kernel has them."""
    R, D = replicas_and_width(x)
    f = result(x.shape, x.dtype)
    diag, c = (None if t is None else by_replica(t) for t in matrix[:2])
    edge_value = None if matrix.edge_value is None else matrix.edge_value.contiguous()
    found = native.solve(
        csr(graph), DTYPES[x.dtype], torch.get_num_threads(), R, D, x.data_ptr(),
        pointer(diag), matrix.diag_value, 1 if diag is None or diag.dim() == 1 else R,
        pointer(c), 1 if c is None or c.dim() == 1 else R,
        pointer(edge_value), matrix.scale, matrix.norm == "sym", tol, max_iter, f.data_ptr(),
    )  # fmt: skip
    return f, *found


def _refine(
    iterate: Callable, graph: tuple, x: Tensor, f: Tensor, matrix: _Matrix, tol: float, max_iter: int, backend: str
) -> tuple[Tensor, int, float, float]:
    """F closer to the solution than iterations in float32 come: corrected by the solution for its float64 residual."""
    exact, X = matrix.double(), x.double()
    size = row_sum((), X.square())
    before, iterations, curvature = torch.full_like(size, math.inf), 0, 1.0
    while True:
        r = X - exact.times(graph, f.double(), backend)
        rr = row_sum((), r.square())
        # a correction that did not halve the residual has met the limit of what f can hold
        active = (rr > tol * tol * size) & (rr < before / 4)
        if iterations >= max_iter or not active.any():
            return f, iterations, torch.where(size == 0, 0, rr / size).max().sqrt().item(), curvature
        wanted = tol / 2 * (size / rr).sqrt()[active].min().item()
        r = torch.where(active, r, 0).to(x.dtype)
        correction, more, _, curvature = iterate(graph, r, matrix, min(wanted, 0.5), max_iter - iterations, backend)
        if not curvature > 0:
            return f, iterations, math.nan, curvature
        f, before, iterations = f + correction, rr, iterations + more


def solve_body(iterate, graph, x, diag, c, edge_value, diag_value, scale, norm, tol, max_iter, backend, warn):
    """Body of ugnn::solve, with the conjugate gradients of a backend."""
    # 16-bit values are computed in float32 and rounded once at the end
    values = x.to(acc_dtype(x.dtype)).contiguous()
    matrix = _Matrix(diag, c, edge_value, diag_value, scale, norm)
    f, iterations, residual, curvature = iterate(graph, values, matrix, tol, max_iter, backend)
    if values.dtype == torch.float32 and curvature > 0 and tol < residual < math.inf and iterations < max_iter:
        f, more, residual, curvature = _refine(iterate, graph, values, f, matrix, tol, max_iter - iterations, backend)
        iterations += more
    check_solution(iterations, residual, curvature, tol, warn)
    return f.to(x.dtype), torch.tensor([iterations, residual], dtype=torch.float64, device=x.device)


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernel, graph, x, diag, c, edge_value, *constants):
        ctx.graph, ctx.constants = graph, constants[:-1]
        # for the gradient of x alone F is not needed; those of the matrix are sums of products with F that may cancel,
        # so it is kept as it was computed, before it is rounded to 16 bits
        keeps = any(ctx.needs_input_grad[3:6])
        f, info = kernel(graph, x.to(acc_dtype(x.dtype)) if keeps else x, diag, c, edge_value, *constants)
        ctx.save_for_backward(f if keeps else None, diag, c, edge_value)
        ctx.mark_non_differentiable(info)
        return f.to(x.dtype), info

    @staticmethod
    def backward(ctx, grad_f, _):
        f, *matrix = ctx.saved_tensors
        need_x, *needed = ctx.needs_input_grad[2:6]
        if f is None:
            # M is symmetric, so the gradient of x is a solution too
            grads = [solve(ctx.graph, grad_f, *matrix, *ctx.constants, True)[0], None, None, None]
        else:
            grads = list(solve_backward(ctx.graph, grad_f, f, *matrix, *ctx.constants, *needed))
        for k, need in enumerate((need_x, *needed)):
            grads[k] = grads[k] if need else None
        return None, None, *grads, *(None,) * (len(ctx.constants) + 1)


def _backward_fake(graph, grad_f, f, diag, c, edge_value, *constants):
    grads = [
        torch.empty_like(t, memory_format=torch.contiguous_format) if need else f.new_empty(0)
        for t, need in zip((diag, c, edge_value), constants[-3:], strict=True)
    ]
    return torch.empty_like(grad_f, memory_format=torch.contiguous_format), *grads


def solve_backward_body(
    iterate, graph, grad_f, f, diag, c, edge_value, diag_value, scale, norm, tol, max_iter, backend, need_diag, need_c,
    need_edge,
):  # fmt: skip
    """Body of ugnn::solve_backward, with the conjugate gradients of a backend. (C4)"""
    dtype = f.dtype
    grad_diag, grad_c, grad_edge = (f.new_empty(0) for _ in range(3))
    matrix = diag, c, edge_value, diag_value, scale, norm
    adjoint, _ = solve_body(iterate, graph, grad_f.to(dtype), *matrix, tol, max_iter, backend, True)
    if need_diag:
        grad_diag = -_per_node(adjoint * f, diag)
    v, u = adjoint, f
    if (need_c or need_edge) and norm == "sym":
        rho = inverse_degree(graph, dtype).sqrt().reshape(-1, *(1,) * (f.dim() - 1))
        v, u = rho * adjoint, rho * f
    if need_c:
        grad_c = _per_node(pair_products(graph, v, u, backend), c)
    if need_edge:
        weight = graph[2]
        dots = edge_dot(graph, v, u, backend)
        grad_edge = dots if weight is None else dots * weight.to(dtype)
    return adjoint.to(grad_f.dtype), grad_diag, grad_c, grad_edge


def _per_node(values: Tensor, like: Tensor) -> Tensor:
    """Sums of values [N, D] or [N, R, D] in the shape of like, [N] or [N, R]."""
    return values.sum(-1) if like.dim() == 2 else values.flatten(1).sum(1)


def _autocast(dtype: torch.dtype, args: tuple) -> tuple:
    x = storage(dtype, args[0])
    return (x, *coefficients(x, *args[1:4]), *args[4:])


_MATRIX = "Tensor? diag, Tensor? c, Tensor? edge_value, float diag_value, float scale, str norm"
_CONTROL = "float tol, int max_iter, str backend"
solve = define(
    f"solve({GRAPH}, Tensor x, {_MATRIX}, {_CONTROL}, bool warn) -> (Tensor f, Tensor info)",
    functools.partial(solve_body, _iterate),
    _fake,
    _Solve,
    _autocast,
)
solve_backward = define(
    f"solve_backward({GRAPH}, Tensor grad_f, Tensor f, {_MATRIX}, {_CONTROL}, bool need_diag, bool need_c,"
    " bool need_edge) -> (Tensor grad_x, Tensor grad_diag, Tensor grad_c, Tensor grad_edge_value)",
    functools.partial(solve_backward_body, _iterate),
    _backward_fake,
    no_double_backward("solve"),
)

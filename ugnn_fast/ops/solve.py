"""ugnn::solve, M F = X for M = diag - N (A o W) N by conjugate gradients, and its gradient by one more solve."""

import math
import warnings

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
    storage,
)
from ugnn_fast.ops.edge_dot import edge_dot
from ugnn_fast.ops.propagate import pair_products


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


def _body(graph, x, diag, c, edge_value, diag_value, scale, norm, tol, max_iter, backend, warn):
    # 16-bit values are computed in float32 and rounded once at the end
    values = x.to(acc_dtype(x.dtype)).contiguous()
    R, D = replicas_and_width(values)
    f = torch.empty_like(values)
    rows = [None if t is None else by_replica(t) for t in (diag, c)]
    edge_value = None if edge_value is None else edge_value.contiguous()
    iterations, residual, curvature = native.solve(
        csr(graph), DTYPES[values.dtype], torch.get_num_threads(), R, D, values.data_ptr(),
        pointer(rows[0]), diag_value, 1 if diag is None or diag.dim() == 1 else R,
        pointer(rows[1]), 1 if c is None or c.dim() == 1 else R,
        pointer(edge_value), scale, norm == "sym", tol, max_iter, f.data_ptr(),
    )  # fmt: skip
    check_solution(iterations, residual, curvature, tol, warn)
    return f.to(x.dtype), torch.tensor([iterations, residual], dtype=torch.float64, device=x.device)


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernel, graph, x, diag, c, edge_value, *constants):
        f, info = kernel(graph, x, diag, c, edge_value, *constants)
        ctx.graph, ctx.constants = graph, constants[:-1]
        # for the gradient of x alone F is not needed
        ctx.save_for_backward(f if any(ctx.needs_input_grad[3:6]) else None, diag, c, edge_value)
        ctx.mark_non_differentiable(info)
        return f, info

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
    return torch.empty_like(f, memory_format=torch.contiguous_format), *grads


def _backward_body(
    graph, grad_f, f, diag, c, edge_value, diag_value, scale, norm, tol, max_iter, backend, need_diag, need_c, need_edge
):
    """(C4)"""
    dtype = acc_dtype(f.dtype)
    grad_diag, grad_c, grad_edge = (f.new_empty(0) for _ in range(3))
    grad_f, F = grad_f.to(dtype), f.to(dtype)
    adjoint, _ = _body(graph, grad_f, diag, c, edge_value, diag_value, scale, norm, tol, max_iter, backend, True)
    if need_diag:
        grad_diag = -_per_node(adjoint * F, diag)
    v, u = adjoint, F
    if (need_c or need_edge) and norm == "sym":
        rho = inverse_degree(graph, dtype).sqrt().reshape(-1, *(1,) * (f.dim() - 1))
        v, u = rho * adjoint, rho * F
    if need_c:
        grad_c = _per_node(pair_products(graph, v, u, backend), c)
    if need_edge:
        weight = graph[2]
        dots = edge_dot(graph, v, u, backend)
        grad_edge = dots if weight is None else dots * weight.to(dtype)
    return adjoint.to(f.dtype), grad_diag, grad_c, grad_edge


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
    _body,
    _fake,
    _Solve,
    _autocast,
)
solve_backward = define(
    f"solve_backward({GRAPH}, Tensor grad_f, Tensor f, {_MATRIX}, {_CONTROL}, bool need_diag, bool need_c,"
    " bool need_edge) -> (Tensor grad_x, Tensor grad_diag, Tensor grad_c, Tensor grad_edge_value)",
    _backward_body,
    _backward_fake,
    no_double_backward("solve"),
)

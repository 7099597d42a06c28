"""Conjugate gradients among vectors with mean zero, for PairNorm where the matrix is positive definite only there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ugnn_fast._quadratic import Quadratic, centered
from ugnn_fast.functional import propagate
from ugnn_fast.solving import SolveInfo


def projected_solve(problem: Quadratic, s: Tensor, tol: float, max_iter: int) -> tuple[Tensor, SolveInfo]:
    """F with M F = 2 S for S and F with mean zero, M = diag(2 + t) - P, and implicit gradients for s, cp and cn.

    `solve` scales its steps by the diagonal, and would leave the vectors with mean zero; on constants M is 2 - 2 cn N
    <= 0.
    """
    with torch.no_grad():
        f, info = _conjugate_gradients(problem, 2 * s, tol, max_iter)
    if torch.is_grad_enabled():
        # F = F* + M^-1 (2 S - M F*): its derivatives are those of the implicit function, at no cost in forward
        f = f + _Inverse.apply(problem, tol, max_iter, 2 * s - _product(problem, f))
    return f, info


def _product(problem: Quadratic, f: Tensor) -> Tensor:
    """M f for f with mean zero."""
    return propagate(problem.graph, f, 1, agg=-1.0, keep=2 + problem.diagonal(f), **problem.weights)


def _conjugate_gradients(problem: Quadratic, b: Tensor, tol: float, max_iter: int) -> tuple[Tensor, SolveInfo]:
    """All columns at once, each with steps of its own, until |b - M f| <= tol |b| in all of them."""
    f, r = torch.zeros_like(b), b
    p, rr = r, _dot(r, r)
    bound = tol * rr.sqrt()
    k = 0
    while k < max_iter and bool((rr.sqrt() > bound).any()):
        q = _product(problem, p)
        curvature = _dot(p, q)
        # a column that is solved has p = 0
        step = torch.where(curvature > 0, rr / curvature, 0)
        f = f + step * p
        # M maps mean zero to mean zero; what rounding adds on constants would grow, as M is negative there
        r = centered(r - step * q)
        before, rr = rr, _dot(r, r)
        p = r + torch.where(before > 0, rr / before, 0) * p
        k += 1
    r = centered(b - _product(problem, f))
    off, size = _dot(r, r).sqrt(), _dot(b, b).sqrt()
    ratio = off / torch.where(size > 0, size, 1)
    residual = ratio.max().item() if ratio.numel() else 0.0
    return f, SolveInfo(k, residual, residual <= tol)


def _dot(u: Tensor, v: Tensor) -> Tensor:
    """Of each column, in its dtype."""
    return (u * v).sum(0, keepdim=True)


class _Inverse(torch.autograd.Function):
    """M^-1 of a residual that is zero up to the tolerance: forward is zero, backward solves with the same M."""

    @staticmethod
    def forward(ctx: Any, problem: Quadratic, tol: float, max_iter: int, residual: Tensor) -> Tensor:
        ctx.arguments = problem, tol, max_iter
        return torch.zeros_like(residual)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None, Tensor]:
        problem, tol, max_iter = ctx.arguments
        return None, None, None, _conjugate_gradients(problem, centered(grad), tol, max_iter)[0]

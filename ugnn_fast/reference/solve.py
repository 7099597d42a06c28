"""M F = X in plain torch: conjugate gradients, and the gradient by one more solve."""

import torch
from torch import Tensor

from ugnn_fast.graph import Graph
from ugnn_fast.reference._edges import column, computing_dtype, entry_weights, kept, rho, rows_of, sum_over_neighbors


def solve(
    g: Graph,
    x: Tensor,
    diag: Tensor | float,
    *,
    c: Tensor | float | None,
    edge_value: Tensor | None,
    norm: str,
    tol: float,
    max_iter: int,
) -> tuple[Tensor, int, float, float]:
    """F, iterations, the largest |X - M F| / |X| of a column, and <p, M p> if M = diag - N (A o W) N is indefinite."""
    dtype = computing_dtype(x)
    i, j, w = rows_of(g), g.col.long(), entry_weights(g, dtype)
    if c is not None:
        pair = 2 * float(c) if isinstance(c, float) else c.to(dtype)[i] + c.to(dtype)[j]
        w = pair * w if isinstance(pair, float) else pair * column(w, pair)
    if edge_value is not None:
        w = w * edge_value.to(dtype)
    if norm == "sym":
        r = rho(g, dtype)
        w = w * column(r[i] * r[j], w)
    if not isinstance(diag, Tensor):
        diag = torch.full((g.num_nodes,), diag, dtype=dtype, device=x.device)
    info: list = []
    f = _Solve.apply(x.to(dtype), diag.to(dtype), w, g, tol, max_iter, info)
    return f.to(x.dtype), *info


class _Solve(torch.autograd.Function):
    """(C4) in the entries of M; its backward is made of differentiable pieces again."""

    @staticmethod
    def forward(ctx, x, diag, w, g, tol, max_iter, info):
        f, *found = _conjugate_gradients(g, x, diag, w, tol, max_iter)
        info.extend(found)
        ctx.constants = g, tol, max_iter
        ctx.save_for_backward(f, diag, w)
        return f

    @staticmethod
    def backward(ctx, grad_f):
        f, diag, w = ctx.saved_tensors
        g, tol, max_iter = ctx.constants
        adjoint = _Solve.apply(grad_f, diag, w, g, tol, max_iter, [])
        of_entries = adjoint[rows_of(g)] * f[g.col.long()]
        of_entries = of_entries.where(column(kept(g), of_entries), 0)
        return adjoint, _sum_like(-adjoint * f, diag), _sum_like(of_entries, w), None, None, None, None


def _sum_like(values: Tensor, like: Tensor) -> Tensor:
    """Sums of values [.., D] or [.., R, D] in the shape of like, [..] or [.., R]."""
    return values.sum(-1) if like.dim() == values.dim() - 1 else values.flatten(1).sum(1)


def _conjugate_gradients(g: Graph, x: Tensor, diag: Tensor, w: Tensor, tol: float, max_iter: int):
    """Every column on its own, all at once; a column that has arrived keeps still."""
    d, w = column(diag, x), column(w, x)

    def multiply(values: Tensor) -> Tensor:
        return d * values - sum_over_neighbors(g, w * values[g.col.long()])

    def dot(p: Tensor, q: Tensor) -> Tensor:
        return (p.double() * q.double()).sum(0)

    # by powers of two, so that no square leaves the range of numbers; NaN where x is not finite
    largest = x.abs().amax(0) if g.num_nodes else x.new_zeros(x.shape[1:])
    most = 1000 if x.dtype == torch.float64 else 120
    scale = torch.ldexp(torch.ones_like(largest), -torch.frexp(largest).exponent.clamp(-most, most))
    scale = torch.where(largest.isfinite(), scale, torch.nan)
    X = x * scale
    size = dot(X, X)
    limit = tol * tol * size
    F, R = torch.zeros_like(X), X
    before, iterations, curvature = torch.full_like(size, torch.inf), 0, 1.0
    while True:
        # from the true residual; where that was not halved since the last time, rounding is the limit
        rr = dot(R, R)
        active = (rr > limit) & (rr < before / 4)
        before = rr
        if iterations >= max_iter or not active.any():
            break
        P = R / d
        gamma = dot(R, P)
        while iterations < max_iter and active.any():
            Q = multiply(P)
            pq = dot(P, Q)
            if (active & (pq <= 0)).any():
                curvature = pq[active & (pq <= 0)][0].item()
                return F, iterations, torch.nan, curvature
            alpha = torch.where(active, gamma / pq, 0)
            F = F + alpha.to(x.dtype) * P
            R = R - alpha.to(x.dtype) * Q
            Z = R / d
            old, gamma = gamma, dot(R, Z)
            P = Z + torch.where(active, gamma / old, 0).to(x.dtype) * P
            active = active & (dot(R, R) > limit)
            iterations += 1
        R = X - multiply(F)
    relative = torch.where(size == 0, 0, (rr / size).sqrt())
    residual = relative.max().item() if relative.numel() else 0.0
    return F / scale, iterations, residual, curvature

"""M F = 2 X, M = diag(1 / b) - W, with other libraries: conjugate gradients, and gradients by one more solve.

With adjoint a = M^-1 G and e_i = <a_i, F_i>:

    dX = 2 a,    dC_i = rho_i (<a_i, (A rho F)_i> + <F_i, (A rho a)_i>) - e_i - sum_j e_j / d_j
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench.baselines.structure import Structure

MAX_ITER = 1000
# solver(structure, w [E] = (C_i + C_j) rho_i rho_j, b [N], right side [N, D], tol) -> F [N, D]
Solver = Callable[[Structure, Tensor, Tensor, Tensor, float], Tensor]


def torch_csr(s: Structure, w: Tensor, b: Tensor, right: Tensor, tol: float) -> Tensor:
    """All columns at once, one MKL product an iteration; a column that is done is left alone."""
    W, diag, scale = s.matrix(w), (1 / b)[:, None], b[:, None]
    f, r = torch.zeros_like(right), right.clone()
    z = scale * r
    p, rz = z.clone(), (r * z).sum(0)
    goal = tol * right.norm(dim=0)
    for _ in range(MAX_ITER):
        left = r.norm(dim=0) > goal
        if not left.any():
            break
        q = torch.addmm(diag * p, W, p, alpha=-1)
        alpha = torch.where(left, rz / (p * q).sum(0), 0)
        f.addcmul_(alpha, p)
        r.addcmul_(alpha, q, value=-1)
        torch.mul(scale, r, out=z)
        rz, before = (r * z).sum(0), rz
        p.mul_(torch.where(left, rz / before, 0)).add_(z)
    return f


def scipy_cg(s: Structure, w: Tensor, b: Tensor, right: Tensor, tol: float) -> Tensor:
    """scipy.sparse.linalg.cg, a column after the other."""
    import numpy as np
    import scipy.sparse
    import scipy.sparse.linalg

    W = scipy.sparse.csr_array((w.numpy(), s.col.numpy(), s.rowptr.numpy()), shape=(s.N, s.N))
    M = scipy.sparse.diags_array(1 / b.numpy(), dtype=np.float32, format="csr") - W
    jacobi = scipy.sparse.diags_array(b.numpy(), dtype=np.float32, format="csr")
    columns = [
        scipy.sparse.linalg.cg(M, column.numpy(), rtol=tol, atol=0, maxiter=MAX_ITER, M=jacobi)[0]
        for column in right.t().contiguous()
    ]
    return torch.from_numpy(np.stack(columns, 1).astype(np.float32))


class ImplicitSolve(torch.autograd.Function):
    """apply(structure, x [N, D], c [N], tol, solver) -> F [N, D]"""

    @staticmethod
    def forward(ctx, s: Structure, x: Tensor, c: Tensor, tol: float, solver: Solver) -> Tensor:
        b = s.scale(c)
        w = (c[s.row] + c[s.col]) * s.norm
        f = solver(s, w, b, 2 * x, tol)
        ctx.structure, ctx.constants = s, (tol, solver)
        ctx.save_for_backward(w, b, f)
        return f

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        s, (tol, solver) = ctx.structure, ctx.constants
        w, b, f = ctx.saved_tensors
        a = solver(s, w, b, grad.contiguous(), tol)
        rho = s.rho[:, None]
        pairs = (a * (s.A @ (rho * f)) + f * (s.A @ (rho * a))).sum(1) * s.rho
        return None, 2 * a, pairs - s.scale_adjoint((a * f).sum(1)), None, None

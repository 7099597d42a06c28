"""`ada_propagate` by our factorisation with torch CSR (MKL): no edge weights, Ã applied to u and C u.

In scaled variables u = rho H and v = rho b G both directions are the same step, with s = A u, p = A C u and
t = A v, r = A C v (docs/math.md has the derivation):

    u <- 2 rho b X + rho^2 b (C s + p)          v <- rho^2 b (C t + r)
    dC_i += <v_i, s_i> + <u_i, t_i>,   e_i += d_i <v_i, u_new_i>,   dX = (2 sum_k v_k + v_0 / b) / rho
"""

import torch
from torch import Tensor

from bench.baselines.structure import Structure, multiply

# Below this width torch is faster with node factors written out to [N, D] than broadcast from [N, 1].
_BROADCAST = 16


def _factors(s: Structure, b: Tensor, c: Tensor, D: int) -> list[Tensor]:
    """C, rho^2 b C and rho^2 b as [N, D] or [N, 1]."""
    scale = s.rho.square().mul_(b)
    columns = {"c": c, "scale_c": scale * c, "scale": scale}
    if D >= _BROADCAST:
        return [column[:, None] for column in columns.values()]
    return [s.scratch(name, s.N, D).copy_(column[:, None]) for name, column in columns.items()]


class TorchCsrFactored(torch.autograd.Function):
    """apply(structure, x [N, D], c [N], steps) -> H [N, D]"""

    @staticmethod
    def forward(ctx, structure: Structure, x: Tensor, c: Tensor, steps: int) -> Tensor:
        st, size = structure, x.shape
        keep = any(ctx.needs_input_grad)
        b = st.scale(c)
        C, scale_c, scale = _factors(st, b, c, size[1])
        base = torch.mul(x, (2 * b * st.rho)[:, None], out=st.scratch("base", *size))
        cu, p = st.scratch("c_table", *size), st.scratch("p", *size)
        all_u, all_s = (x.new_empty(steps, *size), x.new_empty(steps, *size)) if keep else (None, None)
        u = st.scratch("table", *size) if all_u is None else all_u[0]
        torch.mul(x, st.rho[:, None], out=u)
        for k in range(steps):
            s = multiply(st.A, u, st.scratch("s", *size) if all_s is None else all_s[k])
            multiply(st.A, torch.mul(u, C, out=cu), p)
            if k == steps - 1:
                u = torch.empty_like(x)
            elif all_u is not None:
                u = all_u[k + 1]
            torch.addcmul(base, s, scale_c, out=u).addcmul_(p, scale)
        h = u.div_(st.rho[:, None])
        if keep:
            ctx.structure, ctx.steps = st, steps
            ctx.save_for_backward(c, b, all_u, all_s, h)
        return h

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        st, K = ctx.structure, ctx.steps
        c, b, all_u, all_s, h = ctx.saved_tensors
        size = grad.shape
        C, scale_c, scale = _factors(st, b, c, size[1])
        rho, rho_b = st.rho[:, None], (st.rho * b)[:, None]
        cv, t, r = st.scratch("c_table", *size), st.scratch("s", *size), st.scratch("p", *size)
        dc, through_b = st.scratch("dc", *size).zero_(), st.scratch("through_b", *size)
        v = torch.mul(grad, rho_b, out=st.scratch("table", *size))
        grad_x = torch.zeros_like(grad)
        torch.mul(h, rho, out=through_b).mul_(v)
        for k in reversed(range(K)):
            if k < K - 1:
                through_b.addcmul_(v, all_u[k + 1])
            grad_x.add_(v)
            multiply(st.A, v, t)
            multiply(st.A, torch.mul(v, C, out=cv), r)
            dc.addcmul_(v, all_s[k]).addcmul_(all_u[k], t)
            torch.mul(t, scale_c, out=v).addcmul_(r, scale)
        grad_x.mul_((2 / st.rho)[:, None]).addcdiv_(v, rho_b)
        grad_c = dc.sum(1).sub_(st.scale_adjoint(through_b.sum(1).mul_(st.degree)))
        return None, grad_x, grad_c, None

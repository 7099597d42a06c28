"""`ada_propagate` with stored edge weights: one product with a torch CSR matrix (MKL) per step, both ways.

With M = diag(b) W, W_ij = (C_i + C_j) rho_i rho_j and W symmetric:

    forward    H_k = 2 b X + M H_{k-1}
    backward   q_K = b G,  q_{k-1} = b W q_k = M q_k,  dX = 2 sum_k q_k + W q_1
               dW_ij = sum_k <q_k,i , H_{k-1},j>  (sampled product),  dC_i = sum_j rho_i rho_j (dW_ij + dW_ji)

so b costs nothing and one matrix serves both directions.
"""

import torch
from torch import Tensor

from bench.baselines.structure import Structure, multiply

# Below this width the sampled product is faster once, over all steps side by side [N, K D], than per step.
_WIDE = 16


class TorchCsr(torch.autograd.Function):
    """apply(structure, x [N, D], c [N], steps) -> H [N, D]"""

    @staticmethod
    def forward(ctx, structure: Structure, x: Tensor, c: Tensor, steps: int) -> Tensor:
        s = structure
        keep = any(ctx.needs_input_grad)
        b = s.scale(c)
        w = c.index_select(0, s.row)
        w.add_(c.index_select(0, s.col)).mul_(s.norm).mul_(b.index_select(0, s.row))
        M = s.matrix(w)
        base = torch.mul(x, (2 * b)[:, None], out=s.scratch("base", *x.shape))
        states = x.new_empty(steps - 1, *x.shape) if keep else None  # H_1 .. H_{K-1}
        h = x
        for k in range(steps):
            if k == steps - 1:
                out = torch.empty_like(x)
            else:
                out = s.scratch(f"h{k % 2}", *x.shape) if states is None else states[k]
            h = torch.addmm(base, M, h, out=out)
        if keep:
            ctx.structure, ctx.steps = s, steps
            ctx.save_for_backward(x, b, w, states, h)
        return h

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        s, K = ctx.structure, ctx.steps
        x, b, w, states, h = ctx.saved_tensors
        N, D = x.shape
        M = s.matrix(w)
        dW = s.matrix(s.scratch("dW", len(w)).zero_())
        q, q_next = s.scratch("q0", N, D), s.scratch("q1", N, D)
        through_b = s.scratch("through_b", N, D).zero_()
        grad_x = torch.zeros_like(x)
        if D < _WIDE:
            all_q, all_h = s.scratch("all_q", N, K, D), s.scratch("all_h", N, K, D)

        torch.mul(grad, b[:, None], out=q)
        for k in reversed(range(K)):
            before = states[k - 1] if k > 0 else x
            through_b.addcmul_(q, states[k] if k < K - 1 else h)
            grad_x.add_(q)
            if D < _WIDE:
                all_q[:, k] = q
                all_h[:, k] = before
            else:
                torch.sparse.sampled_addmm(dW, q, before.t(), out=dW)
            q, q_next = multiply(M, q, q_next), q
        grad_x.mul_(2).add_(q.div_(b[:, None]))
        if D < _WIDE:
            torch.sparse.sampled_addmm(dW, all_q.view(N, K * D), all_h.view(N, K * D).t(), out=dW)

        d_pair = dW.values().mul_(s.norm)  # of C_i + C_j
        grad_c = torch.mv(s.matrix(d_pair), s.ones)
        grad_c.index_add_(0, s.col, d_pair)
        grad_c.sub_(s.scale_adjoint(through_b.sum(1)))
        return None, grad_x, grad_c, None

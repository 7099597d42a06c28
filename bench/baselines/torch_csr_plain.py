"""`ada_propagate` as one writes it first with a torch CSR matrix: stored edge weights, a product per step, both ways.

The formulas are those of torch_csr; but every step allocates its results, and the gradient of an edge weight is the
product of two gathered rows, summed over the steps.
"""

import torch
from torch import Tensor

from bench.baselines.structure import Structure


class TorchCsrPlain(torch.autograd.Function):
    """apply(structure, x [N, D], c [N], steps) -> H [N, D]"""

    @staticmethod
    def forward(ctx, structure: Structure, x: Tensor, c: Tensor, steps: int) -> Tensor:
        s = structure
        b = s.scale(c)
        w = (c[s.row] + c[s.col]) * s.norm * b[s.row]
        M = s.matrix(w)
        states = [x]
        for _ in range(steps):
            states.append(2 * b[:, None] * x + M @ states[-1])
        ctx.structure = s
        ctx.save_for_backward(b, w, *states)
        return states[-1]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        s = ctx.structure
        b, w, *states = ctx.saved_tensors
        M = s.matrix(w)
        q = b[:, None] * grad
        grad_x, through_b = torch.zeros_like(grad), torch.zeros_like(b)
        d_pair = torch.zeros_like(w)
        for before, after in zip(reversed(states[:-1]), reversed(states[1:]), strict=True):
            grad_x = grad_x + 2 * q
            through_b = through_b + (q * after).sum(1)
            d_pair = d_pair + (q[s.row] * before[s.col]).sum(1)
            q = M @ q
        grad_x = grad_x + q / b[:, None]
        d_pair = d_pair * s.norm
        grad_c = torch.zeros_like(b).index_add_(0, s.row, d_pair).index_add_(0, s.col, d_pair)
        return None, grad_x, grad_c - s.scale_adjoint(through_b), None

"""Steps of APPNP with a torch CSR matrix (MKL): H <- agg Ã H + skip X, Ã normalised.

    stored weights   H <- agg (Ã H) + skip X
    factored         u = rho H:  u <- agg rho^2 (A u) + skip rho X

Ã is symmetric, so that the gradient of x is the same steps on the gradient of H.
"""

import torch
from torch import Tensor

from bench.baselines.structure import Structure, multiply


class TorchCsrSteps(torch.autograd.Function):
    """apply(structure, x [N, D], steps, agg, skip, factored) -> H [N, D]"""

    @staticmethod
    def forward(ctx, s: Structure, x: Tensor, steps: int, agg: float, skip: float, factored: bool) -> Tensor:
        ctx.structure, ctx.constants = s, (steps, agg, skip, factored)
        base = torch.mul(x, skip, out=s.scratch("base", *x.shape))
        places = [s.scratch("h0", *x.shape), s.scratch("h1", *x.shape)]
        if not factored:
            h = x
            for k in range(steps):
                out = torch.empty_like(x) if k == steps - 1 else places[k % 2]
                h = torch.addmm(base, s.normalised, h, alpha=agg, out=out)
            return h
        scale = (agg * s.rho.square())[:, None]
        base.mul_(s.rho[:, None])
        u = torch.mul(x, s.rho[:, None], out=places[1])
        for k in range(steps):
            u = multiply(s.A, u, places[k % 2]).mul_(scale).add_(base)
        return u / s.rho[:, None]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        return None, TorchCsrSteps.apply(ctx.structure, grad.contiguous(), *ctx.constants), None, None, None, None

"""PairNorm: a layer that keeps node features apart."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ugnn_fast._checks import acc_dtype, check_choice, check_number, shape
from ugnn_fast._quadratic import node_mean

_MODES = ("PN", "PN-SI", "PN-SCS")


class PairNorm(nn.Module):
    """PairNorm of Zhao and Akoglu 2020, between any two layers: with X' = X less its mean over the nodes,

        PN        scale X' / sqrt(eps + mean_i |X'_i|^2)        the mean |X'_i|^2 is scale^2, whatever came before
        PN-SI     scale X'_i / (eps + |X'_i|)                   every node on a sphere
        PN-SCS    scale X_i / (eps + |X_i|) - mean              scaled, then centred by the mean of X

    forward(x): x [N, D] or [N, R, D], each replica by itself.
    """

    def __init__(self, scale: float = 1.0, mode: str = "PN", eps: float = 1e-5):
        super().__init__()
        self.scale = check_number(scale, "scale", low=0.0)
        check_choice(mode, "mode", _MODES)
        self.mode = mode
        self.eps = check_number(eps, "eps", low=0.0)

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            got = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"x must be a floating tensor, got {got}")
        if x.dim() not in (2, 3):
            raise ValueError(f"x must be [N, D] or [N, R, D], got {shape(x)}")
        values = x.to(acc_dtype(x))
        mean = node_mean(values)
        if self.mode == "PN-SCS":
            out = self.scale * _unit(values, self.eps) - mean
        elif self.mode == "PN-SI":
            out = self.scale * _unit(values - mean, self.eps)
        else:
            apart = values - mean
            squared = node_mean(apart.square().sum(-1, keepdim=True))
            out = self.scale * apart / (self.eps + squared).sqrt()
        return out.to(x.dtype)

    def extra_repr(self) -> str:
        return f'scale={self.scale:g}, mode="{self.mode}"'


def _unit(x: Tensor, eps: float) -> Tensor:
    return x / (eps + torch.linalg.vector_norm(x, dim=-1, keepdim=True))

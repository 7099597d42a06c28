"""GPRGNN: a learned polynomial of the normalised adjacency."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ugnn_fast._checks import acc_dtype, check_number, check_share, check_steps
from ugnn_fast.dropping import dropout
from ugnn_fast.functional import propagate
from ugnn_fast.graph import Graph
from ugnn_fast.nn._mlp import Mlp


class GPRGNN(nn.Module):
    """GPRGNN of Chien et al. 2021.

        X = dropout(mlp(x)),   H = sum_{k=0}^K gamma_k S^k X

    mlp: dropout, Linear(hidden), ReLU, dropout, Linear(classes). forward(x, graph): x dense or torch sparse CSR
    [N, in_features]; returns logits [N, classes]. With replicas=R there are R models with weights, gamma and dropout
    masks of their own, and logits [N, R, classes].

    steps: K. gamma [K + 1] (or [R, K + 1]) is learned from personalised PageRank on: alpha (1 - alpha)^k, and
    (1 - alpha)^K for the last, which is APPNP. dprate: dropout of the scores X before the steps.
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        classes: int,
        *,
        steps: int = 10,
        alpha: float = 0.1,
        dropout: float = 0.5,
        dprate: float = 0.5,
        replicas: int | None = None,
    ):
        super().__init__()
        self.steps = check_steps(steps)
        self.alpha = check_number(alpha, "alpha", low=0.0)
        if self.alpha > 1:
            raise ValueError(f"alpha must be in [0, 1], got {alpha}")
        self.dprate = check_share(dprate, "dprate")
        self.mlp = Mlp(in_features, hidden, classes, dropout, replicas)
        self.gamma = nn.Parameter(self.mlp.new_parameter(steps + 1))
        self._reset_gamma()

    def reset_parameters(self) -> None:
        """Draws all parameters anew; gamma starts again from alpha."""
        self.mlp.reset_parameters()
        self._reset_gamma()

    def _reset_gamma(self) -> None:
        powers = (1 - self.alpha) ** torch.arange(self.steps + 1, dtype=torch.float64)
        powers[:-1] *= self.alpha
        with torch.no_grad():
            self.gamma.copy_(powers)

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        self.mlp.check_input(x, graph)
        scores = dropout(self.mlp(x, self.training), self.dprate if self.training else 0.0)
        gamma = self.gamma.to(acc_dtype(scores))
        if gamma.dim() == 1:
            return propagate(graph, scores, self.steps, out="sum", gamma=gamma)
        powers = propagate(graph, scores, self.steps, out="all")  # [K + 1, N, R, classes]
        return torch.einsum("knrc,rk->nrc", powers, gamma.to(powers.dtype))

    def extra_repr(self) -> str:
        return f"steps={self.steps}, alpha={self.alpha:g}, dprate={self.dprate:g}"

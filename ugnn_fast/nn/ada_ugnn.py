"""ADA-UGNN: aggregation whose strength is learned per node."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ugnn_fast._checks import acc_dtype, check_number, check_steps
from ugnn_fast.functional import ada_c, ada_propagate
from ugnn_fast.graph import Graph
from ugnn_fast.nn._mlp import Mlp
from ugnn_fast.nn.sparse_linear import init_uniform


class AdaUGNN(nn.Module):
    """ADA-UGNN of Ma et al. 2021.

        X = mlp(x),   C_i = s sigmoid(h1(var_{j in N~(i)} X_j)),   H = ada_propagate(X, C, K)

    mlp: dropout, Linear(hidden), ReLU, dropout, Linear(classes). h1: linear, no bias. forward(x, graph): x
    dense or torch sparse CSR [N, in_features]; returns logits [N, classes]. With replicas=R there are R
    models with weights and dropout masks of their own, and logits [N, R, classes].

    steps: K. s: the largest C. soft: L1-normalise the scores of a node before the variance is taken.
    detach: C sends no gradient to the scores (but does to h1), as in the paper's experiments.
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        classes: int,
        *,
        steps: int = 10,
        s: float = 9.0,
        dropout: float = 0.8,
        soft: bool = False,
        detach: bool = True,
        replicas: int | None = None,
    ):
        super().__init__()
        self.steps = check_steps(steps)
        self.s = check_number(s, "s", low=0.0)
        self.soft, self.detach = bool(soft), bool(detach)
        self.mlp = Mlp(in_features, hidden, classes, dropout, replicas)
        self.h1 = nn.Parameter(self.mlp.new_parameter(classes))  # [classes] or [R, classes]
        init_uniform(self.h1, classes)

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        self.mlp.reset_parameters()
        init_uniform(self.h1, self.h1.shape[-1])

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        self.mlp.check_input(x, graph)
        scores = self.mlp(x, self.training)
        return ada_propagate(graph, scores, self._c(scores, graph), self.steps)

    @torch.no_grad()
    def smoothness(self, x: Tensor, graph: Graph) -> Tensor:
        """C, [N] or [N, R]: large where neighbours shall become alike. Never with dropout."""
        self.mlp.check_input(x, graph)
        return self._c(self.mlp(x, False), graph)

    def _c(self, scores: Tensor, graph: Graph) -> Tensor:
        if self.detach:
            scores = scores.detach()
        if self.soft:
            # the sum of |scores| as a product: over so few columns torch's norm takes ten times as long
            total = scores.abs() @ scores.new_ones(scores.shape[-1], 1)
            scores = scores / total.clamp(min=1e-12)
        return ada_c(graph, scores, self.h1.to(acc_dtype(scores)), self.s)

    def extra_repr(self) -> str:
        return f"steps={self.steps}, s={self.s:g}, soft={self.soft}, detach={self.detach}"

"""PPNP: aggregation to the end, of the same strength everywhere."""

from __future__ import annotations

from torch import Tensor

from ugnn_fast._checks import check_count, check_positive
from ugnn_fast.graph import Graph
from ugnn_fast.nn.appnp import PageRankModel, strength
from ugnn_fast.solving import ada_solve


class PPNP(PageRankModel):
    """PPNP of Gasteiger et al. 2019: denoising with C_i = 1 / alpha - 1, solved exactly (Ma et al. 2021, Theorem 1).

        X = mlp(x),   H = alpha (1 - (1 - alpha) A~)^-1 X

    mlp, forward(x, graph) and replicas: as in APPNP, whose limit for many steps this is. No matrix is inverted: one
    `ada_solve` forward and one backward, to the relative residual tol in at most max_iter iterations.
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        classes: int,
        *,
        alpha: float = 0.1,
        tol: float = 1e-6,
        dropout: float = 0.8,
        max_iter: int = 1000,
        replicas: int | None = None,
    ):
        super().__init__(in_features, hidden, classes, strength(None, alpha), dropout, replicas)
        self.tol, self.max_iter = check_positive(tol, "tol"), check_count(max_iter, "max_iter", 1)

    def aggregate(self, scores: Tensor, graph: Graph) -> Tensor:
        f = ada_solve(graph, scores, self.s, tol=self.tol, max_iter=self.max_iter)
        assert isinstance(f, Tensor)
        return f

    def extra_repr(self) -> str:
        return f"alpha={self.alpha:g}, tol={self.tol:g}, max_iter={self.max_iter}"

"""APPNP: aggregation of the same strength everywhere."""

from __future__ import annotations

from torch import Tensor, nn

from ugnn_fast._checks import check_number, check_steps
from ugnn_fast.functional import ada_propagate
from ugnn_fast.graph import Graph
from ugnn_fast.nn._mlp import Mlp

_DEFAULT_S = 9.0


class PageRankModel(nn.Module):
    """What APPNP and PPNP share: class scores, then aggregation of strength s, or alpha = 1 / (1 + s), everywhere."""

    def __init__(self, in_features: int, hidden: int, classes: int, s: float, dropout: float, replicas: int | None):
        super().__init__()
        self.s = s
        self.mlp = Mlp(in_features, hidden, classes, dropout, replicas)

    @property
    def alpha(self) -> float:
        return 1 / (1 + self.s)

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        self.mlp.reset_parameters()

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        self.mlp.check_input(x, graph)
        return self.aggregate(self.mlp(x, self.training), graph)

    def aggregate(self, scores: Tensor, graph: Graph) -> Tensor:
        raise NotImplementedError


class APPNP(PageRankModel):
    """APPNP of Gasteiger et al. 2019, which is ADA-UGNN with C_i = s everywhere (Ma et al. 2021, Theorem 2).

        X = mlp(x),   H <- alpha X + (1 - alpha) A~ H,   K times from H = X,   alpha = 1 / (1 + s)

    mlp: dropout, Linear(hidden), ReLU, dropout, Linear(classes). forward(x, graph): x dense or torch sparse
    CSR [N, in_features]; returns logits [N, classes], or [N, R, classes] with replicas=R models side by side.
    Give s or alpha; without either s = 9, alpha = 0.1.
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        classes: int,
        *,
        steps: int = 10,
        s: float | None = None,
        alpha: float | None = None,
        dropout: float = 0.8,
        replicas: int | None = None,
    ):
        super().__init__(in_features, hidden, classes, strength(s, alpha), dropout, replicas)
        self.steps = check_steps(steps)

    def aggregate(self, scores: Tensor, graph: Graph) -> Tensor:
        return ada_propagate(graph, scores, self.s, self.steps)

    def extra_repr(self) -> str:
        return f"steps={self.steps}, s={self.s:g}, alpha={self.alpha:g}"


def strength(s: float | None, alpha: float | None) -> float:
    """s from either of the two."""
    if alpha is None:
        return _DEFAULT_S if s is None else check_number(s, "s", low=0.0)
    if s is not None:
        raise ValueError(f"s and alpha = 1 / (1 + s) say the same: give one of them, got s={s} and alpha={alpha}")
    alpha = check_number(alpha, "alpha", low=0.0)
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha must be in (0, 1], got {alpha}")
    return 1 / alpha - 1

"""UGNN: a transform of the features, then the solution of a denoising problem."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from ugnn_fast.graph import Graph
from ugnn_fast.regularizers import Regularizer
from ugnn_fast.solvers import Solver


class UGNN(nn.Module):
    """The framework of Ma et al. 2021: S = transform(x), then F = argmin_F |F - S|^2 + r(C, F, G) by the solver.

    transform: a module or function of x, None for S = x. regularizer: one of `ugnn_fast.regularizers`; solver: one of
    `ugnn_fast.solvers` that fits it. forward(x, graph): F, in the shape of S, [N, D] or [N, R, D].

        UGNN(nn.Linear(1433, 7), Laplacian(9.0), GradientDescent(10))                   # APPNP, alpha = 1/10
        UGNN(nn.Linear(1433, 7), Laplacian(1.0), GradientDescent(1, step_size=0.5))     # a layer of GCN
    """

    def __init__(self, transform: Callable[[Tensor], Tensor] | None, regularizer: Regularizer, solver: Solver):
        super().__init__()
        if transform is not None and not callable(transform):
            raise TypeError(f"transform must be a module, a function or None, got {type(transform).__name__}")
        if not isinstance(regularizer, Regularizer):
            raise TypeError(f"regularizer must be one of ugnn_fast.regularizers, got {type(regularizer).__name__}")
        if not isinstance(solver, Solver):
            raise TypeError(f"solver must be one of ugnn_fast.solvers, got {type(solver).__name__}")
        solver.check_fits(regularizer)
        self.transform, self.regularizer, self.solver = transform, regularizer, solver

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        s = x if self.transform is None else self.transform(x)
        return self.solver(graph, s, self.regularizer)

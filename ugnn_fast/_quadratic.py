"""Quadratic regularisers in the terms of the operators: what `regularizers` describe and `solvers` work on."""

from __future__ import annotations

import math
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ugnn_fast import ops
from ugnn_fast._checks import acc_dtype
from ugnn_fast.functional import denoising_energy, propagate
from ugnn_fast.graph import Graph


class Quadratic(NamedTuple):
    """r(F) = 1/2 <F, (diag(t) - P) F>,   P = N (A o W) N,   t_i = N_i^2 sum_j a_ij W_ij,

    that is 1/4 sum_ij a_ij W_ij |N_i F_i - N_j F_j|^2, less `pairs` times the sum of |F_i - F_j|^2 over all pairs
    i < j. That sum is N |F'|^2 with F' = F less its mean, so all pairs only move the diagonal, once F is centred.
    """

    graph: Graph
    c: Tensor | float | None  # W_ij = c_i + c_j
    edge_value: Tensor | None  # or W itself, [E]
    norm: str  # N: "sym" is rho, "none" is 1
    pairs: Tensor | float | None = None

    @property
    def weights(self) -> dict:
        """P as arguments of propagate and solve."""
        return {"c": self.c, "edge_value": self.edge_value, "norm": self.norm}

    @property
    def adaptive(self) -> bool:
        """Whether this is ADA-UGNN's regulariser, which has operators of its own."""
        return self.norm == "sym" and self.edge_value is None

    @property
    def even(self) -> bool:
        """Whether t is the same number 2c on all nodes."""
        one_c = isinstance(self.c, float) or (isinstance(self.c, Tensor) and self.c.dim() == 0)
        return self.adaptive and one_c and self.graph.self_loops

    def diagonal(self, f: Tensor) -> Tensor:
        """t in the type of coefficients beside f, [N], or [N, R] if each replica has weights of its own."""
        own = isinstance(self.c, Tensor) and self.c.dim() == 2
        ones = torch.ones((*f.shape[: 2 if own else 1], 1), dtype=acc_dtype(f), device=f.device)
        # rho_i^2 = 1 / d_i
        t = propagate(self.graph, ones, 1, **(self.weights | {"norm": "row" if self.norm == "sym" else "none"}))
        t = t.squeeze(-1)
        return t if self.pairs is None else t - 2 * self.graph.num_nodes * self.pairs

    def gradient(self, f: Tensor) -> Tensor:
        """(diag(t) - P) f."""
        if self.pairs is not None:
            f = centered(f)
        t = self.diagonal(f)
        if t.dim() == 1:
            return propagate(self.graph, f, 1, agg=-1.0, keep=t, **self.weights)
        return t.unsqueeze(-1).to(f.dtype) * f - propagate(self.graph, f, 1, **self.weights)

    def energy(self, f: Tensor) -> Tensor:
        """r(f), 0-d or [R]."""
        if self.adaptive:
            assert self.c is not None
            return denoising_energy(self.graph, f, f, self.c)
        f = f.to(acc_dtype(f))
        # a common offset costs nothing, and without it there is less to cancel
        f = centered(f) if self.norm == "none" else f
        return ops.row_sum((), (f * self.gradient(f)).sum(-1)) / 2

    def replica(self, r: int) -> Quadratic:
        """The problem of replica r alone, where c is [N, R]."""
        assert isinstance(self.c, Tensor)
        return self._replace(c=self.c[:, r])


def number(value: Tensor | float) -> float:
    """A 0-d tensor, or a number, as a number."""
    return value.item() if isinstance(value, Tensor) else value


def centered(f: Tensor) -> Tensor:
    """f less its mean over the nodes."""
    return f - node_mean(f)


def node_mean(f: Tensor) -> Tensor:
    """Mean over the nodes, in the dtype of f."""
    return (ops.row_sum((), f.to(acc_dtype(f))) / max(f.shape[0], 1)).to(f.dtype)


def degree_without_loops(g: Graph, dtype: torch.dtype) -> Tensor:
    """sum_{j != i} a_ij, [N]; Graph.degree has float32 only."""
    ones = torch.ones((g.num_nodes, 1), dtype=dtype, device=g.device)
    return propagate(g, ones, 1, norm="none", keep=-1.0 if g.self_loops else 0.0).squeeze(-1)


def laplacian(g: Graph, f: Tensor, degree: Tensor, times: int = 1) -> Tensor:
    """(D - A)^times f in one call; degree is that without loops, as a loop adds the same to D and to A."""
    diagonal = degree + 1 if g.self_loops else degree
    return propagate(g, f, times, norm="none", agg=-1.0, keep=diagonal)


# up to this N the eigenvalues of the dense matrix are quickly there
_DENSE = 512
_MAX_ITERATIONS = 2000
_lambda_2: WeakKeyDictionary[Graph, float] = WeakKeyDictionary()


@torch.no_grad()
def lambda_2(g: Graph) -> float:
    """The second smallest eigenvalue of D - A, inf for N < 2. Computed once per graph.

    For larger graphs it is a lower bound of the value found: by the residual, which is small but for graphs like long
    chains, whose lambda_2 is next to 0 anyway.
    """
    if g not in _lambda_2:
        _lambda_2[g] = _dense_lambda_2(g) if g.num_nodes <= _DENSE else _iterative_lambda_2(g)
    return _lambda_2[g]


def _dense_lambda_2(g: Graph) -> float:
    if g.num_nodes < 2:
        return math.inf
    degree = degree_without_loops(g, torch.float64)
    eye = torch.eye(g.num_nodes, dtype=torch.float64, device=g.device)
    return max(torch.linalg.eigvalsh(laplacian(g, eye, degree))[1].item(), 0.0)


def _iterative_lambda_2(g: Graph) -> float:
    """Locally optimal conjugate gradients (Knyazev 2001) among the vectors with mean zero, with steps scaled by 1/D."""
    degree = degree_without_loops(g, torch.float64)
    scale = torch.where(degree > 0, degree, 1).reciprocal()[:, None]
    tolerance = 1e-9 * degree.max().item()
    x = torch.randn((g.num_nodes, 1), generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(g.device)
    basis = centered(x)
    value = residual = math.inf
    for _ in range(_MAX_ITERATIONS):
        basis, _ = torch.linalg.qr(basis)
        image = laplacian(g, basis, degree)
        values, vectors = torch.linalg.eigh(basis.T @ image)
        value = values[0].item()
        x = basis @ vectors[:, :1]
        off = image @ vectors[:, :1] - value * x
        residual = off.norm().item()
        if residual <= tolerance:
            break
        # the part of x that is new is the direction of the last step
        last = [basis[:, 1:] @ vectors[1:, :1]] if basis.shape[1] > 1 else []
        basis = centered(torch.cat([x, scale * off, *last], dim=1))
    return max(value - residual, 0.0)

"""Regularisers r(C, F, G) of the denoising problem argmin_F |F - S|^2 + r(C, F, G) (Ma et al. 2021).

A regulariser is a torch module: weights that are nn.Parameter are trained with the model that holds it. Each has
`energy(graph, f)`, the value r as a 0-d tensor (or [R] for f [N, R, D]); `gradient(graph, f)`, its gradient in f, by
the operators; `solvers`, the classes of `ugnn_fast.solvers` that fit it; and `check(graph)`, which raises ValueError
if the problem is not bounded below. a_ij are the graph's edge weights (1 without), rho_i = d_i^-1/2, with self loops
as the graph has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ugnn_fast import ops
from ugnn_fast._checks import acc_dtype, check_coefficient, check_graph, check_nodes, check_number, shape, value_checks
from ugnn_fast._quadratic import Quadratic, degree_without_loops, lambda_2, laplacian, number
from ugnn_fast.dropping import drop_edges
from ugnn_fast.graph import Graph
from ugnn_fast.solvers import Chebyshev, ConjugateGradient, GradientDescent, PrimalDual, Solver

__all__ = ["AdaptiveLaplacian", "DropEdge", "EdgeLaplacian", "Energy", "Laplacian", "PairNorm", "Regularizer",
           "TrendFilter"]  # fmt: skip

_QUADRATIC = (GradientDescent, ConjugateGradient, Chebyshev)


class Regularizer(nn.Module):
    """What all regularisers share. One of your own defines `on`, or is an `Energy`."""

    solvers: tuple[type[Solver], ...] = ()

    def on(self, graph: Graph, s: Tensor) -> Any:
        """The regulariser of one solve: an object with energy(f) and gradient(f).

        What is random is drawn here, and weights that depend on s are computed. The quadratic ones give what the
        solvers need beyond that.
        """
        raise NotImplementedError

    def check(self, graph: Graph) -> None:
        """ValueError if |F - S|^2 + r is not bounded below on this graph."""

    def energy(self, graph: Graph, f: Tensor) -> Tensor:
        """r, 0-d or [R]."""
        check_graph(graph)
        check_nodes(graph, f, "f")
        return self.on(graph, f).energy(f)

    def gradient(self, graph: Graph, f: Tensor) -> Tensor:
        """dr/df, like f."""
        check_graph(graph)
        check_nodes(graph, f, "f")
        return self.on(graph, f).gradient(f)

    def _hold(self, name: str, value: Tensor) -> None:
        """self.name = value, as a parameter or else as a buffer."""
        if isinstance(value, nn.Parameter):
            setattr(self, name, value)
        else:
            self.register_buffer(name, value)

    def _hold_number(self, name: str, value: Any) -> None:
        """self.name = value, a number >= 0 or a 0-d tensor."""
        if not isinstance(value, Tensor):
            setattr(self, name, check_number(value, name, low=0.0))
        elif value.dim() != 0:
            raise ValueError(f"{name} must be a number or a 0-d tensor, got {shape(value)}")
        else:
            self._hold(name, value)

    def extra_repr(self) -> str:
        """The weights: numbers as they are, of tensors the shape."""
        held = {name: value for name, value in vars(self).items() if name[0] != "_" and name != "training"}
        held |= {
            name: list(value.shape)
            for name, value in (*self.named_parameters(recurse=False), *self.named_buffers(recurse=False))
        }
        return ", ".join(f"{name}={value}" for name, value in held.items())


class Laplacian(Regularizer):
    """r = c tr(F^T L F),   L = I - D^-1/2 A D^-1/2, or D - A with normalized=False.

    That is c/2 sum_ij a_ij |N_i F_i - N_j F_j|^2 with N = rho, or 1; a node without neighbours adds nothing. c: a
    number, or a 0-d tensor, which may be learned; >= 0. PPNP, APPNP and GCN are solvers of this problem (Theorems 1
    to 3).
    """

    solvers = _QUADRATIC
    c: Tensor | float

    def __init__(self, c: Tensor | float, normalized: bool = True):
        super().__init__()
        self._hold_number("c", c)
        self.normalized = bool(normalized)

    def on(self, graph: Graph, s: Tensor) -> Quadratic:
        _check_not_negative(self.c, "c", s)
        return Quadratic(graph, self.c, None, _norm(self.normalized))


class AdaptiveLaplacian(Regularizer):
    """r = 1/2 sum_i C_i sum_j a_ij |N_i F_i - N_j F_j|^2,   N = rho, or 1 with normalized=False.

    ADA-UGNN's regulariser; un-normalised it is that of GAT's denoising form (Theorem 4). c: [N], or [N, R] beside
    replicas; >= 0; or a function c(graph, s) that computes them from S, as ADA-UGNN does, and may be a module with
    parameters of its own.
    """

    solvers = _QUADRATIC
    c: Tensor | Callable[[Graph, Tensor], Tensor]

    def __init__(self, c: Tensor | Callable[[Graph, Tensor], Tensor], normalized: bool = True):
        super().__init__()
        if not isinstance(c, Tensor) and not callable(c):
            raise TypeError(
                f"c must be a tensor or a function of (graph, s), got {type(c).__name__}; Laplacian takes a number"
            )
        if isinstance(c, Tensor):
            self._hold("c", c)
        else:
            self.c = c
        self.normalized = bool(normalized)

    def on(self, graph: Graph, s: Tensor) -> Quadratic:
        c = self.c if isinstance(self.c, Tensor) else self.c(graph, s)
        _check_not_negative(c, "c", s)
        return Quadratic(graph, c, None, _norm(self.normalized))

    def energy(self, graph: Graph, f: Tensor) -> Tensor:
        self._refuse_function()
        return super().energy(graph, f)

    def gradient(self, graph: Graph, f: Tensor) -> Tensor:
        self._refuse_function()
        return super().gradient(graph, f)

    def _refuse_function(self) -> None:
        if not isinstance(self.c, Tensor):
            raise TypeError("c is a function of S, which energy and gradient do not get: use on(graph, s).energy(f)")


class EdgeLaplacian(Regularizer):
    """r = 1/2 sum_ij C_ij a_ij |N_i F_i - N_j F_j|^2 over stored entries,   N = rho, or 1 with normalized=False.

    The edge-centric form: C_ij = (C_i + C_j) / 2 is AdaptiveLaplacian, C_ij = c is Laplacian. c_ij: [E], in the order
    of graph.edge_index, >= 0 and the same in both directions. Its gradient is the same in both directions too.
    """

    solvers = _QUADRATIC
    c_ij: Tensor

    def __init__(self, c_ij: Tensor, normalized: bool = True):
        super().__init__()
        if not isinstance(c_ij, Tensor):
            raise TypeError(f"c_ij must be a tensor, got {type(c_ij).__name__}")
        self._hold("c_ij", c_ij)
        self.normalized = bool(normalized)

    def on(self, graph: Graph, s: Tensor) -> Quadratic:
        c = self.c_ij
        check_coefficient(graph, s, c, "c_ij", {"[E]": (graph.num_edges,)})
        _check_not_negative(c, "c_ij", s)
        other = c[graph.reverse]
        if value_checks(s):
            differ = (c - other).abs() > 1e-5 * (c + other)
            if differ.any():
                e = int(differ.nonzero()[0])
                (i, j), values = graph.edge_index[:, e].tolist(), (c[e].item(), other[e].item())
                raise ValueError(
                    "c_ij must be the same in both directions,"
                    f" got {values[0]} at ({i}, {j}) and {values[1]} at ({j}, {i})"
                )
        # W_ij = 2 C_ij, as the mean of both directions: only so the gradient is symmetric, and a learned C_ij stays so
        return Quadratic(graph, None, c + other, _norm(self.normalized))


class PairNorm(Regularizer):
    """r = cp sum_E |F_i - F_j|^2 - cn sum_notE |F_i - F_j|^2 over pairs i < j: neighbours together, others apart.

    That is (cp + cn) tr(F^T (D - A) F) - cn (N sum_i |F_i|^2 - |sum_i F_i|^2), and costs O(N D) beside the edges.
    With weights a pair counts cp a_ij - cn (1 - a_ij). cp, cn: numbers or 0-d tensors, >= 0. The problem has a
    minimum if and only if 1 + (cp + cn) lambda_2(D - A) > cn N; solvers refuse others.
    """

    solvers = _QUADRATIC
    cp: Tensor | float
    cn: Tensor | float

    def __init__(self, cp: Tensor | float, cn: Tensor | float):
        super().__init__()
        self._hold_number("cp", cp)
        self._hold_number("cn", cn)

    def on(self, graph: Graph, s: Tensor) -> Quadratic:
        _check_not_negative(self.cp, "cp", s)
        _check_not_negative(self.cn, "cn", s)
        return Quadratic(graph, self.cp + self.cn, None, "none", self.cn)

    def check(self, graph: Graph) -> None:
        cp, cn, N = number(self.cp), number(self.cn), graph.num_nodes
        if cn * N < 1 or N < 2:
            return
        second = lambda_2(graph)
        if 1 + (cp + cn) * second <= cn * N:
            bound = (1 + cp * second) / (N - second)
            raise ValueError(
                f"cn must be < (1 + cp lambda_2) / (N - lambda_2) = {bound:.6g}, so that 1 + (cp + cn) lambda_2 > cn N"
                f" and the problem is bounded below;"
                f" got cn = {cn:g} with cp = {cp:g}, N = {N}, lambda_2(D - A) = {second:.6g}"
            )


class DropEdge(Regularizer):
    """c tr(F^T L F) on the edges that a Bernoulli(1 - q) mask keeps, with the degrees of the kept edges.

    Self loops are never dropped, both directions of an edge agree, nothing is rescaled. In training mode every solve
    (and every call of energy or gradient) draws its mask anew from torch's generator, or always takes that of `seed`,
    if it is given; after eval() nothing is dropped. c as in Laplacian; q in [0, 1).
    """

    solvers = _QUADRATIC
    c: Tensor | float

    def __init__(self, c: Tensor | float, q: float, normalized: bool = True, *, seed: int | None = None):
        super().__init__()
        self._hold_number("c", c)
        self.q = check_number(q, "q", low=0.0)
        if self.q >= 1:
            raise ValueError(f"q must be < 1, got {q}")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise TypeError(f"seed must be an int or None, got {type(seed).__name__}")
        self.normalized, self.seed = bool(normalized), seed

    def on(self, graph: Graph, s: Tensor) -> Quadratic:
        _check_not_negative(self.c, "c", s)
        if self.training and self.q > 0:
            graph = drop_edges(graph, self.q, seed=self.seed)
        return Quadratic(graph, self.c, None, _norm(self.normalized))


class TrendFilter(Regularizer):
    """r = c |L F|_1, the sum of all absolute values,   L = D - A: F is piecewise linear (trend filtering on graphs).

    c: a number or a 0-d tensor, >= 0. `gradient` is the subgradient c L sign(L F), with sign(0) = 0.
    """

    solvers = (PrimalDual,)
    c: Tensor | float

    def __init__(self, c: Tensor | float):
        super().__init__()
        self._hold_number("c", c)

    def on(self, graph: Graph, s: Tensor) -> Trend:
        _check_not_negative(self.c, "c", s)
        return Trend(graph, self.c, degree_without_loops(graph, acc_dtype(s)))


class Trend(NamedTuple):
    """c |L F|_1 on a graph."""

    graph: Graph
    c: Tensor | float
    degree: Tensor  # [N], without loops

    def laplacian(self, f: Tensor, times: int = 1) -> Tensor:
        return laplacian(self.graph, f, self.degree, times)

    def energy(self, f: Tensor) -> Tensor:
        return self.c * ops.row_sum((), self.laplacian(f.to(self.degree.dtype)).abs().sum(-1))

    def gradient(self, f: Tensor) -> Tensor:
        return (self.c * self.laplacian(self.laplacian(f).sign())).to(f.dtype)


class Energy(Regularizer):
    """r = fn(f, graph), any differentiable function that gives a 0-d tensor (or [R] for f [N, R, D]).

    Its gradient is autograd's. fn may be a module, whose parameters are then trained. GradientDescent needs its
    step_size: nothing is known about fn, and whether the problem is bounded below is the user's matter.
    """

    solvers = (GradientDescent,)

    def __init__(self, fn: Callable[[Tensor, Graph], Tensor]):
        super().__init__()
        if not callable(fn):
            raise TypeError(f"fn must be a function of (f, graph), got {type(fn).__name__}")
        self.fn = fn

    def on(self, graph: Graph, s: Tensor) -> _Function:
        with torch.enable_grad():
            learned = self.fn(s.detach(), graph)
        return _Function(graph, self.fn, isinstance(learned, Tensor) and learned.requires_grad)


class _Function(NamedTuple):
    graph: Graph
    fn: Callable[[Tensor, Graph], Tensor]
    learned: bool  # whether fn has parameters that ask for gradients

    def energy(self, f: Tensor) -> Tensor:
        value = self.fn(f, self.graph)
        expected = f.shape[1:-1]
        if not isinstance(value, Tensor) or value.shape != expected:
            got = shape(value) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"fn must give a tensor {list(expected)} for f {shape(f)}, got {got}")
        return value

    def gradient(self, f: Tensor) -> Tensor:
        keep = torch.is_grad_enabled() and (f.requires_grad or self.learned)
        with torch.enable_grad():
            at = f if keep and f.requires_grad else f.detach().requires_grad_()
            value = self.energy(at).sum()
            if not value.requires_grad:
                return torch.zeros_like(f)
            (gradient,) = torch.autograd.grad(value, at, create_graph=keep, materialize_grads=True)
        return gradient


def _norm(normalized: bool) -> str:
    return "sym" if normalized else "none"


def _check_not_negative(value: Any, name: str, x: Tensor) -> None:
    """Values of a tensor are >= 0 and finite; numbers were checked when they were given."""
    if isinstance(value, Tensor) and value_checks(x):
        bad = ~((value >= 0) & (value < torch.inf))
        if bad.any():
            at = f" at {bad.nonzero()[0].tolist()}" if value.dim() else ""
            raise ValueError(f"{name} must be finite and >= 0, got {value[bad].flatten()[0].item()}{at}")

"""Solvers of the denoising problem argmin_F |F - S|^2 + r(C, F, G), from F = S.

    f = solver(graph, s, regularizer)                             # s: [N, D] or [N, R, D]
    f, info = solver(graph, s, regularizer, return_info=True)     # SolverInfo

Gradients reach s and the tensors of the regulariser: through the steps for GradientDescent, Chebyshev and PrimalDual,
by implicit differentiation for ConjugateGradient. Where the recurrence allows it all steps are one call of an
operator.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ugnn_fast import ops
from ugnn_fast._checks import (
    acc_dtype,
    check_choice,
    check_coefficient,
    check_count,
    check_graph,
    check_nodes,
    check_number,
    check_positive,
    check_steps,
)
from ugnn_fast._projected_solve import projected_solve
from ugnn_fast._quadratic import Quadratic, centered, degree_without_loops, node_mean, number
from ugnn_fast.functional import ada_propagate, propagate
from ugnn_fast.graph import Graph
from ugnn_fast.solving import ada_solve, solve

if TYPE_CHECKING:
    from ugnn_fast.regularizers import Regularizer

__all__ = ["Chebyshev", "ConjugateGradient", "GradientDescent", "PrimalDual", "Solver", "SolverInfo"]

_ON_FAIL = ("warn", "raise", "ignore")
# PrimalDual looks at its gap once in so many steps
_CHECK_EVERY = 10


class SolverInfo(NamedTuple):
    """What a solver reached. energy: |F - S|^2 + r, 0-d or [R].

    residual: the largest |2 (F - S) + dr/dF| / |2 S| of a column; for PrimalDual gap / energy. gap: of PrimalDual, at
    least energy - minimum. converged: whether the tolerance was met; None for a solver without one.
    """

    iterations: int
    residual: float
    energy: Tensor
    gap: Tensor | None
    converged: bool | None


class Solver(nn.Module):
    """What all solvers share; a tensor among the settings is a parameter or buffer of the module."""

    def forward(self, graph: Graph, s: Tensor, regularizer: Regularizer, return_info: bool = False) -> Any:
        check_graph(graph)
        check_nodes(graph, s, "s")
        self.check_fits(regularizer)
        regularizer.check(graph)
        problem = regularizer.on(graph, s)
        f, iterations, info = self._solve(problem, s)
        if not return_info:
            return f
        with torch.no_grad():
            return f, info() if info is not None else _info(problem, f, s, iterations)

    def check_fits(self, regularizer: Regularizer) -> None:
        """TypeError if this solver cannot solve problems with this regulariser."""
        fitting = getattr(regularizer, "solvers", None)
        if fitting is None:
            raise TypeError(f"regularizer must be one of ugnn_fast.regularizers, got {type(regularizer).__name__}")
        if not isinstance(self, fitting):
            names = " or ".join(solver.__name__ for solver in fitting)
            raise TypeError(f"solver must be {names} for {type(regularizer).__name__}, got {type(self).__name__}")

    def _solve(self, problem: Any, s: Tensor) -> tuple[Tensor, int, Callable[[], SolverInfo] | None]:
        """F, the number of iterations, and how to make the info if it is not by the gradient."""
        raise NotImplementedError


class GradientDescent(Solver):
    """F <- F - b (2 (F - S) + dr/dF), `steps` times from F = S.

    step_size: b, a number, a 0-d tensor or [N]. None takes b_i = 1 / (2 + t_i), t the diagonal of the quadratic r,
    with which the F_i on the right cancel and no step raises the energy: 1 / (2 + 2c) for the normalised Laplacian,
    which is APPNP; the paper's b_i for AdaptiveLaplacian, which is ADA-UGNN. For PairNorm it is the inverse of a
    bound on the second derivative; Energy needs a number. One call of an operator for quadratic r (but for PairNorm
    with cn N >= 1), a loop otherwise.
    """

    step_size: Tensor | float | None

    def __init__(self, steps: int, step_size: Tensor | float | None = None):
        super().__init__()
        self.steps = check_steps(steps)
        if isinstance(step_size, Tensor) and not isinstance(step_size, nn.Parameter):
            self.register_buffer("step_size", step_size)
        else:
            given = step_size is None or isinstance(step_size, Tensor)
            self.step_size = step_size if given else check_number(step_size, "step_size", low=0.0)

    def extra_repr(self) -> str:
        b = self.step_size
        return f"steps={self.steps}, step_size={list(b.shape) if isinstance(b, Tensor) else b}"

    def _solve(self, problem, s):
        return self._descend(problem, s), self.steps, None

    def _descend(self, problem: Any, s: Tensor) -> Tensor:
        b = self.step_size
        if isinstance(b, Tensor):
            check_coefficient(problem.graph, s, b, "step_size", {"[]": (), "[N]": (problem.graph.num_nodes,)})
        if isinstance(problem, Quadratic):
            if b is None and problem.adaptive:
                assert problem.c is not None
                return ada_propagate(problem.graph, s, problem.c, self.steps)
            t = problem.diagonal(s)
            if t.dim() == 2:
                return _by_replica(self._descend, problem, s)
            if problem.pairs is None:
                return _descend_quadratic(problem, s, t, b, self.steps)
            if b is None:
                b = 1 / _curvature(problem, s)
            # one b for all nodes leaves the mean at that of S; the rest shrinks unless cn N > 1
            if (isinstance(b, float) or b.dim() == 0) and number(problem.pairs) * problem.graph.num_nodes <= 1:
                return node_mean(s) + centered(_descend_quadratic(problem, centered(s), t, b, self.steps))
        if b is None:
            raise ValueError("step_size must be given for Energy: nothing is known about the size of its gradient")
        if isinstance(b, Tensor):
            b = b.to(s.dtype).reshape(-1, *(1,) * (s.dim() - 1))
        f = s
        for _ in range(self.steps):
            f = f - b * (2 * (f - s) + problem.gradient(f))
        return f.clone() if self.steps == 0 else f


class Chebyshev(Solver):
    """Chebyshev's semi-iteration: of all first-order methods with `steps` steps the one with the least worst error.

    F_{k+1} = F_k + alpha_k b (2S - M F_k) + beta_k (F_k - F_{k-1}) with M the second derivative and b as in
    GradientDescent; alpha and beta follow from the bounds |1 - b M| <= max_i t_i / (2 + t_i), for PairNorm from 2 - 2
    cn N <= M <= curvature. One call of propagate. The error falls like that of descent with the square of the steps:
    for the normalised Laplacian at the rate (sqrt(1 + 2c) - 1) / (sqrt(1 + 2c) + 1) a step, in place of c / (1 + c).
    """

    def __init__(self, steps: int):
        super().__init__()
        self.steps = check_steps(steps)

    def extra_repr(self) -> str:
        return f"steps={self.steps}"

    def _solve(self, problem, s):
        return self._iterate(problem, s), self.steps, None

    def _iterate(self, problem: Quadratic, s: Tensor) -> Tensor:
        g = problem.graph
        if self.steps == 0 or s.numel() == 0:
            return s.clone()
        if problem.even:
            assert problem.c is not None
            b: Any = 1 / (2 + 2 * problem.c)
            return self._recurrence(problem, s, b, 1.0, 2 * problem.c * b)
        t = problem.diagonal(s)
        if t.dim() == 2:
            return _by_replica(self._iterate, problem, s)
        if problem.pairs is None:
            b = 1 / (2 + t)
            return self._recurrence(problem, s, b, 1.0, (t * b).amax())
        low, high = 2 - 2 * g.num_nodes * problem.pairs, _curvature(problem, s)
        if number(low) <= 0:
            raise ValueError(
                f"Chebyshev needs cn N < 1, got {number(problem.pairs) * g.num_nodes:g}: use ConjugateGradient"
            )
        # scaled by 1 / (2 + t) the mean would not stay apart
        start = centered(s)
        f = self._recurrence(problem, start, 1.0, (low + high) / 2, (high - low) / 2, diagonal=2 + t)
        return node_mean(s) + centered(f)

    def _recurrence(
        self, problem: Quadratic, s: Tensor, b: Any, middle: Any, radius: Any, diagonal: Tensor | float = 1.0
    ) -> Tensor:
        """The iteration for b M with its spectrum in middle +- radius; diagonal is that of b M."""
        coefficients = _chebyshev(self.steps, *map(_number, (middle, radius)))
        alpha, beta = (_per_step(values, s) for values in coefficients)  # [K, 1]
        return propagate(
            problem.graph, s, self.steps, agg=alpha * b, skip=2 * alpha * b, keep=1 + beta - alpha * diagonal,
            prev=-beta, **problem.weights,
        )  # fmt: skip


class ConjugateGradient(Solver):
    """The exact minimiser of a quadratic r, by conjugate gradients on M F = 2S, with implicit gradients.

    tol: per column |2S - M F| <= tol |2S|. on_fail: "warn", "raise" (RuntimeError) or "ignore" if max_iter is not
    enough.
    """

    def __init__(self, tol: float = 1e-6, max_iter: int = 1000, on_fail: str = "warn"):
        super().__init__()
        self.tol = check_positive(tol, "tol")
        self.max_iter = check_count(max_iter, "max_iter", 1)
        check_choice(on_fail, "on_fail", _ON_FAIL)
        self.on_fail = on_fail

    def extra_repr(self) -> str:
        return f"tol={self.tol:g}, max_iter={self.max_iter}"

    def _solve(self, problem, s):
        f, done = self._minimum(problem, s)
        if not done.converged:
            what = f"{done.residual:.3g} after {done.iterations} iterations, tol = {self.tol:g}"
            _failed(self.on_fail, f"ConjugateGradient: relative residual {what}; allow a larger max_iter or tol")

        def info() -> SolverInfo:
            return SolverInfo(done.iterations, done.residual, _energy(problem, f, s), None, done.converged)

        return f, done.iterations, info

    def _minimum(self, problem: Quadratic, s: Tensor) -> Any:
        """(F, SolveInfo)."""
        g = problem.graph
        options: dict = {"tol": self.tol, "max_iter": self.max_iter, "return_info": True}
        if problem.adaptive:
            assert problem.c is not None
            return ada_solve(g, s, problem.c, **options)
        t = problem.diagonal(s)
        if problem.pairs is None:
            return solve(g, 2 * s, 2 + t, **problem.weights, **options)
        # the mean of F is that of S, as all pairs and edges see differences only; what is left is solved on its own
        rest = centered(s)
        if number(problem.pairs) * g.num_nodes < 1:
            f, info = solve(g, 2 * rest, 2 + t, **problem.weights, **options)
        else:
            f, info = projected_solve(problem, rest, self.tol, self.max_iter)
        return node_mean(s) + f, info


class PrimalDual(Solver):
    """Trend filtering by accelerated projected ascent on its dual: Z in [-c, c], F = S - L Z / 2.

    Step sizes per node, 1 / (d_i^2 + sum_j a_ij d_j), so that a hub slows its neighbourhood only; momentum starts
    anew, for each column, where it points uphill (O'Donoghue and Candes 2015). The duality gap c |L F|_1 - <Z, L F>
    bounds energy - minimum, and |F - F*|^2. tol: stop when gap <= tol energy, for every replica, looked at every 10
    steps; on_fail: "warn", "raise" (RuntimeError) or "ignore" if `steps` are not enough.
    """

    def __init__(self, steps: int, tol: float | None = None, on_fail: str = "warn"):
        super().__init__()
        self.steps = check_steps(steps)
        self.tol = None if tol is None else check_number(tol, "tol", low=0.0)
        check_choice(on_fail, "on_fail", _ON_FAIL)
        self.on_fail = on_fail

    def extra_repr(self) -> str:
        return f"steps={self.steps}, tol={self.tol}"

    def _solve(self, problem, s):
        c, x = problem.c, s.to(acc_dtype(s))
        degree = problem.degree
        # |L| |L| 1 / 2: what bounds L^2 / 2, the curvature of the dual, from above
        reach = propagate(problem.graph, degree[:, None], 1, norm="none", keep=-float(problem.graph.self_loops))
        curvature = (degree.square() + reach.squeeze(-1)).reshape(-1, *(1,) * (x.dim() - 1))
        step = torch.where(curvature > 0, curvature, torch.inf).reciprocal()
        slope = problem.laplacian(x)  # of the dual at Z = 0
        z = y = torch.zeros_like(x)
        momentum = torch.ones(x.shape[1:], dtype=x.dtype, device=x.device)  # of each column
        k = 0
        for k in range(1, self.steps + 1):
            ahead = (y + step * (slope - problem.laplacian(y, times=2) / 2)).clamp(-c, c)
            with torch.no_grad():
                uphill = ops.row_sum((), curvature * (y - ahead) * (ahead - z)) > 0
                grown = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
                beta = torch.where(uphill, 0, (momentum - 1) / grown)
                momentum = torch.where(uphill, 1, grown)
            y, z = ahead + beta * (ahead - z), ahead
            if self.tol is not None and k % _CHECK_EVERY == 0 and _gap(problem, x, z)[0] <= self.tol:
                break
        f = x - problem.laplacian(z) / 2
        if self.tol is not None:
            residual, gap, _ = _gap(problem, x, z)
            if not residual <= self.tol:
                what = f"{residual:.3g} (gap {gap.max():.3g}) after {k} steps, tol = {self.tol:g}"
                _failed(self.on_fail, f"PrimalDual: gap / energy {what}; allow more steps or a larger tol")

        def info() -> SolverInfo:
            residual, gap, energy = _gap(problem, x, z)
            return SolverInfo(k, residual, energy, gap, None if self.tol is None else residual <= self.tol)

        return f.to(s.dtype), k, info


def _descend_quadratic(problem: Quadratic, s: Tensor, t: Tensor, b: Any, steps: int) -> Tensor:
    """steps times F <- (1 - b (2 + t)) F + 2 b S + b P F from F = S."""
    b, keep = (1 / (2 + t), 0.0) if b is None else (b, 1 - b * (2 + t))
    return propagate(problem.graph, s, steps, agg=b, skip=2 * b, keep=keep, **problem.weights)


def _curvature(problem: Quadratic, s: Tensor) -> Tensor | float:
    """For PairNorm: an upper bound of the second derivative 2 + 2 (cp + cn) L - 2 cn N, as L <= 2 max d."""
    N = problem.graph.num_nodes
    largest = degree_without_loops(problem.graph, acc_dtype(s)).max().item() if N else 0.0
    assert problem.c is not None and problem.pairs is not None
    return 2 + 4 * problem.c * largest - 2 * N * problem.pairs


def _by_replica(solve: Callable[[Quadratic, Tensor], Tensor], problem: Quadratic, s: Tensor) -> Tensor:
    """For operators whose coefficients are shared: the replicas one by one."""
    return torch.stack([solve(problem.replica(r), s[:, r]) for r in range(s.shape[1])], dim=1)


def _chebyshev(steps: int, middle: Any, radius: Any) -> tuple[list, list]:
    """alpha_k and beta_k of Chebyshev's semi-iteration (Golub and Varga 1961) for a spectrum in middle +- radius."""
    alpha, beta, rho = [1 / middle], [0.0 * middle], radius / middle
    for _ in range(steps - 1):
        inverse = 1 / (2 * middle - radius * rho)
        alpha.append(2 * inverse)
        beta.append(radius * inverse * rho)
        rho = radius * inverse
    return alpha, beta


def _number(value: Tensor | float) -> Tensor | float:
    """A 0-d tensor that needs no gradient as a float, on which a recurrence is many times faster."""
    return value if isinstance(value, Tensor) and value.requires_grad else number(value)


def _per_step(values: list, s: Tensor) -> Tensor:
    """[K, 1] in the type of coefficients."""
    if any(isinstance(value, Tensor) for value in values):
        values = [torch.as_tensor(value, dtype=acc_dtype(s), device=s.device) for value in values]
        return torch.stack(values)[:, None]
    return torch.tensor(values, dtype=acc_dtype(s), device=s.device)[:, None]


def _failed(on_fail: str, message: str) -> None:
    if on_fail == "raise":
        raise RuntimeError(message)
    if on_fail == "warn":
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def _energy(problem: Any, f: Tensor, s: Tensor) -> Tensor:
    """|F - S|^2 + r, 0-d or [R]."""
    return ops.row_sum((), (f - s).to(acc_dtype(f)).square().sum(-1)) + problem.energy(f)


def _info(problem: Any, f: Tensor, s: Tensor, iterations: int) -> SolverInfo:
    off = 2 * (f - s) + problem.gradient(f)
    size = (2 * s).norm(dim=0)
    ratio = off.norm(dim=0) / torch.where(size > 0, size, 1)
    residual = ratio.max().item() if ratio.numel() else 0.0
    return SolverInfo(iterations, residual, _energy(problem, f, s), None, None)


@torch.no_grad()
def _gap(problem: Any, s: Tensor, z: Tensor) -> tuple[float, Tensor, Tensor]:
    """Of the dual Z: the largest gap / energy of a replica, and both."""
    f = s - problem.laplacian(z) / 2
    lf = problem.laplacian(f)
    # what a column adds is never negative
    gap = ops.row_sum((), (problem.c * lf.abs() - z * lf).sum(-1))
    energy = _energy(problem, f, s)
    ratio = gap / torch.where(energy > 0, energy, 1)
    return ratio.max().item() if ratio.numel() else 0.0, gap, energy

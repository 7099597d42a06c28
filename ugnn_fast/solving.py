"""The documented functions that solve a linear system, in the notation of functional.py."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ugnn_fast import ops, reference
from ugnn_fast._backend import choose
from ugnn_fast._checks import (
    acc_dtype,
    check_choice,
    check_count,
    check_edge_value,
    check_graph,
    check_nodes,
    check_positive,
    value_checks,
)
from ugnn_fast._graph_build import NEAR_WORK
from ugnn_fast.functional import _check_values, _node_weights, _reference_storage, neighbor_mean
from ugnn_fast.graph import Graph


class SolveInfo(NamedTuple):
    """How a solve ended: iterations (of the slowest column), the largest |X - M F| / |X| of a column, and whether that
    is within tol."""

    iterations: int
    residual: float
    converged: bool


def solve(
    g: Graph,
    x: Tensor,
    diag: Tensor | float,
    *,
    c: Tensor | float | None = None,
    edge_value: Tensor | None = None,
    norm: str = "sym",
    tol: float = 1e-6,
    max_iter: int = 1000,
    return_info: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, SolveInfo]:
    """F with M F = X, M = diag - N (A o W) N, which must be positive definite: conjugate gradients for every column.

    x: [N, D] or [N, R, D]. diag: > 0, a number, [N] or [N, R]. N: d^-1/2 for norm "sym", 1 for "none". W: 1; c_i + c_j
    for c float, [N] or [N, R] (a float gives 2c); or edge_value [E] with e_ij = e_ji. A column ends when
    |X - M F| <= tol |X|; tol much below 1e-6 is out of reach in float32, as is 1e-6 for a matrix that is far from well
    conditioned. Without return_info a solution that is not good enough is returned with a warning; with it, f and
    a SolveInfo (not under torch.compile). A column of x with NaN or infinity comes back as NaN, and is not converged.

    Gradients for x, diag, c and edge_value (each entry on its own) take one more solve to the same tol, and no memory
    that grows with the iterations.
    """
    check_graph(g)
    check_nodes(g, x)
    if norm == "row":
        raise ValueError('norm must be "sym" or "none", as M must be symmetric, got "row"')
    check_choice(norm, "norm", ("sym", "none"))
    tol, max_iter = check_positive(tol, "tol"), check_count(max_iter, "max_iter", 1)
    diag = _node_weights(g, x, diag, name="diag") if isinstance(diag, Tensor) else check_positive(diag, "diag")
    _check_values(x, diag, "diag", lambda values: values > 0, "finite and > 0")
    if c is not None:
        if edge_value is not None:
            raise ValueError("c and edge_value both give W: pass one of them")
        c = _node_weights(g, x, c, low=-math.inf)
        _check_values(x, c, "c", lambda values: values > -math.inf, "finite")
    if edge_value is not None:
        check_edge_value(g, x, edge_value)
        _check_symmetric(g, x, edge_value)
    chosen = choose("solve", backend, x)
    if chosen == "reference" or x.numel() == 0:
        f, iterations, residual, curvature = reference.solve(
            g, _reference_storage(x), diag, c=c, edge_value=edge_value, norm=norm, tol=tol, max_iter=max_iter
        )
        ops.check_solution(iterations, residual, curvature, tol, not return_info)
        return (f, SolveInfo(iterations, residual, residual <= tol)) if return_info else f
    diag_values, diag_value = (diag, 0.0) if isinstance(diag, Tensor) else (None, diag)
    c_values, scale = (None, 2 * c) if isinstance(c, float) else (c, 1.0)
    # tens of iterations; if in near form, then from the first call on: the order of nodes changes the bits of products
    steps = NEAR_WORK if edge_value is None else 0
    f, info = ops.solve(
        g.tensors(chosen, steps), x, diag_values, c_values, edge_value, diag_value, scale, norm, tol, max_iter, chosen,
        not return_info,
    )  # fmt: skip
    if not return_info:
        return f
    iterations, residual = info.tolist()
    return f, SolveInfo(int(iterations), residual, residual <= tol)


def ada_solve(
    g: Graph,
    x: Tensor,
    c: Tensor | float,
    *,
    tol: float = 1e-6,
    max_iter: int = 1000,
    return_info: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, SolveInfo]:
    """The exact minimiser of ADA-UGNN's denoising problem, where ada_propagate ends with ever more steps.

        (2 + c_i + m_i) F_i - sum_j a_ij (c_i + c_j) rho_i rho_j F_j = 2 X_i,   m_i = sum_j a_ij c_j / d_i

    x: [N, D] or [N, R, D]. c: float, [N] or [N, R], finite and >= 0. With one number it is PPNP with
    alpha = 1 / (1 + c). tol, max_iter, return_info, and the gradients for x and c: as in `solve`.
    """
    check_graph(g)
    check_nodes(g, x)
    c = _node_weights(g, x, c)
    _check_values(x, c, "c")
    # both sides halved: the right one is then x itself
    if not isinstance(c, Tensor):
        diag = 1 + c if g.self_loops else 1 + c * (g.degree > 0).to(acc_dtype(x))
    else:
        with torch.autocast(x.device.type, enabled=False):
            c = c.to(acc_dtype(x))
            mean = neighbor_mean(g, c if c.dim() == 2 else c.unsqueeze(1), backend=backend).reshape(c.shape)
            diag = 1 + (c + mean) / 2
            if not g.self_loops:
                diag = torch.where((g.degree > 0).reshape(-1, *(1,) * (c.dim() - 1)), diag, 1)
    return solve(g, x, diag, c=c / 2, tol=tol, max_iter=max_iter, return_info=return_info, backend=backend)


def _check_symmetric(g: Graph, x: Tensor, edge_value: Tensor) -> None:
    """e_ij = e_ji up to rounding."""
    if value_checks(x):
        values = edge_value.detach()
        same = torch.isclose(values, values[g.reverse], rtol=16 * torch.finfo(values.dtype).eps, atol=0)
        bad = ~(same & values.isfinite())
        if bad.any():
            e = int(bad.nonzero()[0, 0])
            i, j = g.edge_index[:, e].tolist()
            got = f"{values[e].item()} at ({i}, {j}) and {values[g.reverse[e]].item()} at ({j}, {i})"
            raise ValueError(f"edge_value must be finite and the same for (i, j) and (j, i), got {got}")

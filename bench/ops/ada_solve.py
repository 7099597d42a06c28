"""The exact minimiser of ADA-UGNN's problem to a relative residual of 1e-6; K is not used."""

from __future__ import annotations

from collections.abc import Callable

import torch

import ugnn_fast as uf
from bench.baselines.implicit_solve import ImplicitSolve, Solver, scipy_cg, torch_csr
from bench.baselines.structure import Structure
from bench.registry import (
    OURS,
    Calls,
    Contender,
    Op,
    Problem,
    Results,
    Work,
    graph_work,
    node_problem,
    with_autograd,
)

TOL = 1e-6


def ours(problem: Problem) -> Calls:
    return with_autograd(problem, lambda x, c: uf.ada_solve(problem.g, x, c, tol=TOL, backend="cpu"))


def with_solver(solver: Solver) -> Callable[[Problem], Calls]:
    def made(problem: Problem) -> Calls:
        s = Structure(problem.g)
        return with_autograd(problem, lambda x, c: ImplicitSolve.apply(s, x, c, TOL, solver))

    return made


def iterations(problem: Problem) -> int:
    with torch.no_grad():
        return uf.ada_solve(problem.g, problem.x, problem.c, tol=TOL, return_info=True)[1].iterations


def as_many_steps(problem: Problem) -> Calls:
    """So many bare steps as conjugate gradients have iterations: what those cost beyond their products."""
    g, x, c = problem.g, problem.x, problem.c
    b = 1 / (2 + c + uf.neighbor_mean(g, c[:, None])[:, 0])
    K = iterations(problem)
    return {"fwd": lambda: (uf.propagate(g, x, K, agg=b, skip=2 * b, c=c, backend="cpu"),)}


def expected(problem: Problem) -> Results:
    """By conjugate gradients in float64, with products of MKL."""
    s = Structure(problem.g, torch.float64)
    x, c = (tensor.double().requires_grad_() for tensor in problem.inputs)
    f = ImplicitSolve.apply(s, x, c, 1e-12, torch_csr)
    return f.detach(), *torch.autograd.grad(f, (x, c), problem.grad.double())


def work(problem: Problem, mode: str, itemsize: int) -> Work:
    """An iteration gathers once and streams 9 N D: p in and q out; u, r, p and q in, u, r and p out. The residual is
    one more pass. Backward is one more solve."""
    K, solves = iterations(problem), 1 if mode == "fwd" else 2
    return graph_work(problem, solves * (K + 1), solves * 9 * K, itemsize)


OP = Op(
    name="ada_solve",
    what="exact minimiser by conjugate gradients, tolerance 1e-6; gradients of x and of c per node",
    cases=("pubmed:3:1", "large_ogbn_arxiv:40:1", "large_cnr2000:16:1"),
    make=lambda data, D, K: node_problem(data.graph, D, K),
    expected=expected,
    work=work,
    results=("F", "dX", "dC"),
    contenders=(
        Contender(OURS, ours, "uf.ada_solve"),
        Contender(f"{OURS} steps", as_many_steps, "as many bare steps as iterations, not the solution", exact=False),
        Contender("torch_csr", with_solver(torch_csr), "conjugate gradients with MKL products, implicit gradients"),
        Contender("scipy", with_solver(scipy_cg), "scipy.sparse.linalg.cg, a column at a time", needs="scipy"),
    ),
)

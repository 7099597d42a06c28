"""K steps of APPNP on a graph that has lost half of its edges, a view that stores no mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

import ugnn_fast as uf
from bench.baselines.structure import Structure
from bench.baselines.torch_csr_steps import TorchCsrSteps
from bench.ops.propagate import AGG, SKIP, make
from bench.registry import OURS, Calls, Contender, Op, Problem, Results, Work, by_columns, graph_work, with_autograd
from ugnn_fast.reference._edges import kept

SHARE, SEED = 0.5, 1


def steps(share: float) -> Callable[[Problem], Calls]:
    def made(problem: Problem) -> Calls:
        g = uf.drop_edges(problem.g, share, seed=SEED) if share else problem.g
        return with_autograd(problem, lambda x: uf.propagate(g, x, problem.K, agg=AGG, skip=SKIP, backend="cpu"))

    return made


def view(problem: Problem) -> Calls:
    def call() -> Results:
        return (uf.drop_edges(problem.g, SHARE, seed=SEED).degree,)

    return dict.fromkeys(("fwd", "fwdbwd"), call)


def rebuilt(problem: Problem) -> Calls:
    """torch_csr of `propagate` on a matrix of the kept entries alone."""
    s = Structure(kept_graph(problem.g))
    return with_autograd(problem, lambda x: TorchCsrSteps.apply(s, x, problem.K, AGG, SKIP, False))


def kept_graph(g: uf.Graph) -> uf.Graph:
    """A graph that has the kept edges and no others."""
    return uf.Graph.from_edge_index(g.edge_index[:, kept(uf.drop_edges(g, SHARE, seed=SEED))], g.num_nodes)


def plain(problem: Problem, x: torch.Tensor) -> torch.Tensor:
    g = uf.drop_edges(problem.g, SHARE, seed=SEED)
    return uf.propagate(g, x, problem.K, agg=AGG, skip=SKIP, backend="reference")


def work(problem: Problem, mode: str, itemsize: int) -> Work:
    """As in `propagate`, on the kept entries; ids of the others are read too."""
    passes = problem.K * (1 if mode == "fwd" else 2)
    found = replace(problem, g=kept_graph(problem.g))
    lost = problem.g.num_edges - found.g.num_edges
    return graph_work(found, passes, 2 * passes, itemsize, extra=4 * lost * passes)


OP = Op(
    name="drop_edges",
    what=f"K steps of APPNP with {SHARE:.0%} of the edges dropped; gradient of x",
    cases=("cora:7:10", "large_ogbn_arxiv:40:1", "large_ogbn_arxiv:40:10", "large_ogbn_arxiv:7:10"),
    make=make,
    expected=by_columns(plain),
    apart=True,
    work=work,
    results=("H", "dX"),
    contenders=(
        Contender(OURS, steps(SHARE), "uf.propagate on the view of uf.drop_edges"),
        Contender(f"{OURS} 10 %", steps(0.1), "the same, with 10 % dropped", exact=False),
        Contender(f"{OURS} whole", steps(0.0), "the same steps on the whole graph", exact=False),
        Contender(f"{OURS} view", view, "making the view, once for all steps", exact=False),
        Contender("torch_csr", rebuilt, "a matrix of the kept entries, which is made before and not timed"),
    ),
)

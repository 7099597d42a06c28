"""K steps of APPNP, H <- 0.9 Ã H + 0.1 X, with the gradient of x."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

import ugnn_fast as uf
from bench.baselines.products import PRODUCTS, Product
from bench.baselines.structure import Structure
from bench.baselines.torch_csr_steps import TorchCsrSteps
from bench.registry import (
    OURS,
    Calls,
    Contender,
    Op,
    Problem,
    Work,
    by_columns,
    compiled,
    graph_work,
    node_problem,
    refuse_messages,
    with_autograd,
)
from ugnn_fast.datasets import Dataset

AGG, SKIP = 0.9, 0.1  # alpha = 0.1


def make(data: Dataset, D: int, K: int) -> Problem:
    problem = node_problem(data.graph, D, K)
    return replace(problem, inputs=problem.inputs[:1])


def plain(problem: Problem, x: Tensor) -> Tensor:
    return uf.propagate(problem.g, x, problem.K, agg=AGG, skip=SKIP, backend="reference")


def ours(problem: Problem) -> Calls:
    return with_autograd(problem, lambda x: uf.propagate(problem.g, x, problem.K, agg=AGG, skip=SKIP, backend="cpu"))


def scatter(problem: Problem) -> Callable[[Tensor], Tensor]:
    """Gather and index_add with stored edge weights."""
    s = Structure(problem.g)
    row, col = s.row.long(), s.col.long()

    def steps(x: Tensor) -> Tensor:
        h = x
        for _ in range(problem.K):
            h = AGG * torch.zeros_like(x).index_add(0, row, s.norm[:, None] * h[col]) + SKIP * x
        return h

    return steps


def csr(factored: bool) -> Callable[[Problem], Callable[[Tensor], Tensor]]:
    def made(problem: Problem) -> Callable[[Tensor], Tensor]:
        s = Structure(problem.g)
        return lambda x: TorchCsrSteps.apply(s, x, problem.K, AGG, SKIP, factored)

    return made


def with_product(library: Callable[[Structure], Product]) -> Callable[[Problem], Calls]:
    def made(problem: Problem) -> Calls:
        s = Structure(problem.g)
        product = library(s)

        def steps(x: Tensor) -> Tensor:
            h = x
            for _ in range(problem.K):
                h = AGG * product(s.norm, h) + SKIP * x
            return h

        return with_autograd(problem, steps)

    return made


def _scipy(problem: Problem) -> Calls:
    from bench.baselines.scipy_csr import ScipyCsr

    A = ScipyCsr(problem.g).normalised()

    def steps(x: Tensor) -> Tensor:
        h = base = x.numpy()
        base = SKIP * base
        for _ in range(problem.K):
            h = A @ h
            h *= AGG
            h += base
        return torch.from_numpy(h)

    # Ã is symmetric: the gradient is the same steps on it
    return {"fwd": lambda: (steps(problem.x),), "fwdbwd": lambda: (steps(problem.x), steps(problem.grad))}


def _numba(problem: Problem) -> Calls:
    from bench.baselines.numba_fused import Propagate

    s = Structure(problem.g)
    return with_autograd(problem, lambda x: Propagate.apply(s, x, problem.K, AGG, SKIP))


def work(problem: Problem, mode: str, itemsize: int) -> Work:
    """A step gathers once and streams X in and H out; backward is the same steps on the gradient."""
    directions = 1 if mode == "fwd" else 2
    return graph_work(problem, directions * problem.K, 2 * directions * problem.K, itemsize)


OP = Op(
    name="propagate",
    what="K steps of APPNP with constant coefficients; gradient of x",
    cases=("cora:7:10", "pubmed:3:10", "large_ogbn_arxiv:40:10", "large_cnr2000:16:10", "power_law-1e6-2e7:16:2"),
    make=make,
    expected=by_columns(plain),
    apart=True,
    work=work,
    results=("H", "dX"),
    contenders=(
        Contender(OURS, ours, "uf.propagate"),
        Contender(
            "torch_scatter",
            lambda problem: with_autograd(problem, scatter(problem)),
            "gather and index_add, torch's autograd",
            refuse=refuse_messages,
        ),
        Contender(
            "torch_csr",
            lambda problem: with_autograd(problem, csr(False)(problem)),
            "stored edge weights, MKL products, symmetric backward by hand, memory reused",
        ),
        Contender(
            "torch_csr_factored",
            lambda problem: with_autograd(problem, csr(True)(problem)),
            "the same without edge weights, on scaled rows",
        ),
        *(
            Contender(name, with_product(library), what, needs=needs, refuse=refuse)
            for name, (library, needs, refuse, what) in PRODUCTS.items()
        ),
        Contender(
            "torch_scatter compiled", compiled(scatter), "torch.compile of it", compiled=True, refuse=refuse_messages
        ),
        Contender("torch_csr compiled", compiled(csr(False)), "torch.compile of it", compiled=True),
        Contender("scipy", _scipy, "csr @ dense, one thread", needs="scipy"),
        Contender("numba", _numba, "fused steps by hand, scaled rows", needs="numba", fused=True),
        Contender(OURS, ours, "bfloat16 x, float32 sums", dtype=torch.bfloat16),
    ),
)

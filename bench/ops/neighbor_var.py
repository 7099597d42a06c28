"""The variance of neighbours, the input of C in ADA-UGNN, with the gradient of x."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import ugnn_fast as uf
from bench.baselines.products import PRODUCTS, Product
from bench.baselines.structure import Structure
from bench.ops.propagate import make
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
    refuse_messages,
    with_autograd,
)
from ugnn_fast import reference


def ours(problem: Problem) -> Calls:
    return with_autograd(problem, lambda x: uf.neighbor_var(problem.g, x, backend="cpu"))


def scatter(problem: Problem) -> Callable[[Tensor], Tensor]:
    return lambda x: reference.neighbor_var(problem.g, x)


def with_product(library: Callable[[Structure], Product]) -> Callable[[Problem], Calls]:
    """Mean of squares less square of the mean, two products: exact enough for numbers about 0."""

    def made(problem: Problem) -> Calls:
        s = Structure(problem.g)
        product, mean = library(s), 1 / s.degree[s.row]
        return with_autograd(problem, lambda x: product(mean, x * x) - product(mean, x) ** 2)

    return made


def torch_csr(problem: Problem) -> Calls:
    """The same with torch's CSR product; its adjoint is the product with the kept transpose."""
    s = Structure(problem.g)

    class Mean(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h: Tensor) -> Tensor:
            return s.mean @ h

        @staticmethod
        def backward(ctx, grad: Tensor) -> Tensor:
            return s.mean_t @ grad

    def variance(x: Tensor) -> Tensor:
        both = Mean.apply(torch.cat([x * x, x], 1))
        D = x.shape[1]
        return both[:, :D] - both[:, D:] ** 2

    return with_autograd(problem, variance)


def work(problem: Problem, mode: str, itemsize: int) -> Work:
    """Forward gathers x once and writes the variance. Backward gathers g_i / d_i and g_i mean_i / d_i, whose tables it
    writes before; x, mean and g in, the gradient out."""
    passes, streams = (1, 1) if mode == "fwd" else (3, 8)
    return graph_work(problem, passes, streams, itemsize)


OP = Op(
    name="neighbor_var",
    what="variance of neighbours; gradient of x",
    cases=("cora:7:1", "pubmed:3:1", "large_ogbn_arxiv:40:1", "power_law-1e6-2e7:16:1"),
    make=make,
    expected=by_columns(lambda problem, x: reference.neighbor_var(problem.g, x)),
    apart=True,
    work=work,
    results=("variance", "dX"),
    contenders=(
        Contender(OURS, ours, "uf.neighbor_var"),
        Contender(
            "torch_scatter",
            lambda problem: with_autograd(problem, scatter(problem)),
            "gather and index_add, torch's autograd",
            refuse=refuse_messages,
        ),
        Contender("torch_csr", torch_csr, "one MKL product for squares and values side by side, backward by hand"),
        *(
            Contender(name, with_product(library), what, needs=needs, refuse=refuse)
            for name, (library, needs, refuse, what) in PRODUCTS.items()
        ),
        Contender(
            "torch_scatter compiled", compiled(scatter), "torch.compile of it", compiled=True, refuse=refuse_messages
        ),
        Contender(OURS, ours, "bfloat16 x, float32 sums", dtype=torch.bfloat16),
    ),
)

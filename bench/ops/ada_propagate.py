"""K steps of ADA-UGNN, with gradients of x and of c per node."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import ugnn_fast as uf
from bench.baselines.products import PRODUCTS, Product
from bench.baselines.structure import Structure
from bench.baselines.torch_csr import TorchCsr
from bench.baselines.torch_csr_factored import TorchCsrFactored
from bench.baselines.torch_csr_plain import TorchCsrPlain
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
from ugnn_fast import reference


def ours(backend: str, memory: str = "save") -> Callable[[Problem], Calls]:
    """The backend by name: "auto" would time the reference where nothing was compiled."""

    def make(problem: Problem) -> Calls:
        g, K = problem.g, problem.K
        return with_autograd(problem, lambda x, c: uf.ada_propagate(g, x, c, K, backend=backend, memory=memory))

    return make


def scatter(problem: Problem) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, c: reference.ada_propagate(problem.g, x, c, problem.K)


def torch_scatter(problem: Problem) -> Calls:
    return with_autograd(problem, scatter(problem))


def torch_csr(function: type[torch.autograd.Function]) -> Callable[[Problem], Calls]:
    def make(problem: Problem) -> Calls:
        return with_autograd(problem, csr_function(function)(problem))

    return make


def csr_function(function: type[torch.autograd.Function]) -> Callable[[Problem], Callable[[Tensor, Tensor], Tensor]]:
    def make(problem: Problem) -> Callable[[Tensor, Tensor], Tensor]:
        structure = Structure(problem.g)
        return lambda x, c: function.apply(structure, x, c, problem.K)

    return make


def with_product(library: Callable[[Structure], Product]) -> Callable[[Problem], Calls]:
    """K steps with stored edge weights, a product of a library each, and autograd."""

    def make(problem: Problem) -> Calls:
        s = Structure(problem.g)
        product = library(s)

        def steps(x: Tensor, c: Tensor) -> Tensor:
            mean = torch.zeros_like(c).index_add(0, s.row, c[s.col]) / s.degree
            b = 1 / (2 + c + mean)
            w = (c[s.row] + c[s.col]) * s.norm * b[s.row]
            base, h = 2 * b[:, None] * x, x
            for _ in range(problem.K):
                h = base + product(w, h)
            return h

        return with_autograd(problem, steps)

    return make


def _scipy(problem: Problem) -> Calls:
    from bench.baselines.scipy_csr import ScipyCsr

    csr = ScipyCsr(problem.g)
    x, c, grad, K = problem.x.numpy(), problem.c.numpy(), problem.grad.numpy(), problem.K
    return {
        "fwd": lambda: (torch.from_numpy(csr.forward(x, c, K)),),
        "fwdbwd": lambda: tuple(map(torch.from_numpy, csr.forward_backward(x, c, K, grad))),
    }


def _numba(problem: Problem) -> Calls:
    from bench.baselines.numba_fused import AdaPropagate

    structure = Structure(problem.g)
    return with_autograd(problem, lambda x, c: AdaPropagate.apply(structure, x, c, problem.K))


def work(problem: Problem, mode: str, itemsize: int) -> Work:
    """A step and its adjoint gather once each. Beside that stream
    forward             2 N D: X in, H out;
    forward, gradients  3 N D: s out too;
    backward            5 N D: u and s in, dX in and out, the next gradient out.
    """
    passes, streams = (1, 2) if mode == "fwd" else (2, 8)
    return graph_work(problem, problem.K * passes, problem.K * streams, itemsize)


CSR = {"torch_csr": TorchCsr, "torch_csr_factored": TorchCsrFactored}
OP = Op(
    name="ada_propagate",
    what="K steps of ADA-UGNN; gradients of x and of c per node",
    cases=(
        "cora:7:10",
        "pubmed:3:10",
        "coauthor_physics:5:5",
        "flickr:9:2",
        "large_ogbn_arxiv:40:10",
        "large_cnr2000:16:10",
        "power_law-1e6-2e7:16:2",
        "power_law-1e6-2e7:64:2",
        "power_law-1e6-2e7:128:2",
    ),
    make=lambda data, D, K: node_problem(data.graph, D, K),
    expected=by_columns(lambda problem, x, c: reference.ada_propagate(problem.g, x, c, problem.K)),
    apart=True,
    work=work,
    contenders=(
        Contender(OURS, ours("cpu"), 'uf.ada_propagate, memory="save"'),
        *(
            Contender(f"{OURS} {memory}", ours("cpu", memory), f'the same, memory="{memory}"')
            for memory in ("recompute", "checkpoint")
        ),
        Contender("torch_scatter", torch_scatter, "gather and index_add, torch's autograd", refuse=refuse_messages),
        Contender("torch_csr_plain", torch_csr(TorchCsrPlain), "stored edge weights, MKL products, backward by hand"),
        Contender("torch_csr", torch_csr(TorchCsr), "the same, tuned: memory reused, dC by MKL's sampled product"),
        Contender("torch_csr_factored", torch_csr(TorchCsrFactored), "our factorisation with MKL products"),
        *(
            Contender(name, with_product(make), what, needs=needs, refuse=refuse)
            for name, (make, needs, refuse, what) in PRODUCTS.items()
        ),
        Contender(
            "torch_scatter compiled", compiled(scatter), "torch.compile of it", compiled=True, refuse=refuse_messages
        ),
        *(
            Contender(f"{name} compiled", compiled(csr_function(f)), "torch.compile of it", compiled=True)
            for name, f in CSR.items()
        ),
        Contender("scipy", _scipy, "csr @ dense; gradients by our factorisation; one thread", needs="scipy"),
        Contender("numba", _numba, "fused steps by hand, our factorisation", needs="numba", fused=True),
        Contender(OURS, ours("cpu"), "bfloat16 x, float32 sums", dtype=torch.bfloat16),
    ),
)

"""dropout(x) @ weight + bias for the sparse features of a data set, dropout 0.5, with gradients of weight and bias."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import ugnn_fast as uf
from bench.registry import OURS, Calls, Contender, Gather, Op, Problem, Results, Work, too_large, with_autograd
from ugnn_fast._sparse import sparse_features
from ugnn_fast.datasets import Dataset, row_normalize

DROPOUT = 0.5


def make(data: Dataset, D: int, K: int) -> Problem:
    if data.x is None:
        raise ValueError(f"{data.name} has no features")
    x = row_normalize(data.x)
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(x.shape[1], D, generator=random) / x.shape[1] ** 0.5
    bias = torch.randn(D, generator=random)
    return Problem(data.graph, (weight, bias), torch.randn(x.shape[0], D, generator=random), K, DROPOUT, features=x)


def _features(problem: Problem) -> Tensor:
    assert problem.features is not None
    return problem.features


def _csr(crow: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    return torch.sparse_csr_tensor(crow, col, values, shape, check_invariants=False)


def expected(problem: Problem) -> Results:
    x = _features(problem)
    weight, bias = (tensor.double() for tensor in problem.inputs)
    grad = problem.grad.double()
    exact = _csr(x.crow_indices(), x.col_indices(), x.values().double(), tuple(x.shape)).to_sparse_coo()
    return exact @ weight + bias, exact.t() @ grad, grad.sum(0)


def ours(problem: Problem) -> Calls:
    x, p = _features(problem), problem.dropout
    sparse_features(x)  # once per x, as the structures of the others
    return with_autograd(problem, lambda weight, bias: uf.sparse_linear(x, weight, bias, dropout=p, backend="cpu"))


def torch_csr(problem: Problem) -> Calls:
    """The sparse product as a user writes it, differentiated by torch."""
    x, p = _features(problem), problem.dropout

    def layer(weight: Tensor, bias: Tensor) -> Tensor:
        values = F.dropout(x.values(), p)
        return _csr(x.crow_indices(), x.col_indices(), values, tuple(x.shape)) @ weight + bias

    return with_autograd(problem, layer)


def torch_csr_transposed(problem: Problem) -> Calls:
    """The same with a backward by hand, on a transpose that is made once, and dropout in the fastest way torch has."""
    x, p = _features(problem), problem.dropout
    N, columns = x.shape
    crow, col = x.crow_indices(), x.col_indices()
    order = col.argsort(stable=True)
    t_col = torch.arange(N).repeat_interleave(crow.diff())[order]
    t_crow = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(col, minlength=columns).cumsum(0)])

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weight: Tensor, bias: Tensor) -> Tensor:
            values = x.values()
            if p:
                values = values * torch.rand(values.shape).ge_(p).mul_(1 / (1 - p))
            ctx.save_for_backward(values)
            return torch.addmm(bias, _csr(crow, col, values, (N, columns)), weight)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            (values,) = ctx.saved_tensors
            return _csr(t_crow, t_col, values.index_select(0, order), (columns, N)) @ grad, grad.sum(0)

    return with_autograd(problem, Product.apply)


def torch_dense(problem: Problem) -> Calls:
    dense, p = _features(problem).to_dense(), problem.dropout
    return with_autograd(problem, lambda weight, bias: F.linear(F.dropout(dense, p), weight.t(), bias))


def _refuse_dense(problem: Problem) -> str | None:
    N, columns = _features(problem).shape
    return too_large(3 * 4 * N * columns, problem.x.device)


def work(problem: Problem, mode: str, itemsize: int) -> Work:
    """Forward gathers rows of the weight by the entries of x; backward rows of the gradient by those of the transpose.
    Beside that: a value of each entry, the result out, or the gradient of the weight."""
    x = _features(problem)
    found = sparse_features(x)
    (N, columns), D = x.shape, problem.x.shape[1]
    gathers = [Gather(found.rowptr, found.col, columns, D, 1)]
    streamed = 4 * len(found.col) + N * D * itemsize
    if mode == "fwdbwd":
        gathers.append(Gather(found.t_rowptr, found.t_col, N, D, 1))
        streamed += 4 * len(found.col) + columns * D * itemsize
    return Work(tuple(gathers), streamed)


OP = Op(
    name="sparse_linear",
    what=f"dropout({DROPOUT:g}) @ weight + bias for sparse features, D columns; gradients of weight and bias",
    cases=("cora:16:1", "pubmed:16:1", "coauthor_physics:64:1", "flickr:64:1"),
    make=make,
    expected=expected,
    work=work,
    results=("Y", "dWeight", "dBias"),
    contenders=(
        Contender(OURS, ours, "uf.sparse_linear"),
        Contender("torch_csr_transposed", torch_csr_transposed, "MKL products, backward by hand on a kept transpose"),
        Contender("torch_csr", torch_csr, "MKL product, torch's autograd"),
        Contender("torch_dense", torch_dense, "features made dense once", refuse=_refuse_dense),
    ),
)

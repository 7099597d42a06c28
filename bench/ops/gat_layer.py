"""A whole GAT layer: linear map of 128 features, scores, attention of 8 heads; gradients of its parameters."""

from __future__ import annotations

import torch
from torch import Tensor

import ugnn_fast as uf
from bench.ops.gat_aggregate import DROPOUT, HEADS
from bench.ops.gat_aggregate import work as attention_work
from bench.registry import OURS, Calls, Contender, Op, Problem, Results, Work, refuse_messages, with_autograd
from ugnn_fast.datasets import Dataset

FEATURES = 128


def make(data: Dataset, D: int, K: int) -> Problem:
    """Inputs are the parameters: weight [F, H D], scores [H, D] twice, bias [H D]; always the same numbers."""
    random = torch.Generator().manual_seed(0)
    N, width = data.graph.num_nodes, HEADS * D
    x, grad = torch.randn(N, FEATURES, generator=random), torch.randn(N, width, generator=random)
    sizes = ((FEATURES, width), (HEADS, D), (HEADS, D), (width,))
    parameters = tuple(torch.randn(size, generator=random) / 8 for size in sizes)
    return Problem(data.graph, parameters, grad, K, DROPOUT, features=x)


def call_of(
    module: torch.nn.Module, names: tuple[str, ...], problem: Problem, inputs: tuple, transposed: bool
) -> Calls:
    """The module with the problem's parameters under its own names; transposed: its weight is [H D, F]."""
    own = {name: parameter.shape for name, parameter in module.named_parameters()}

    def layer(weight: Tensor, *others: Tensor) -> Tensor:
        given = {name: value.view(own[name]) for name, value in zip(names[1:], others, strict=True)}
        given[names[0]] = weight.t() if transposed else weight
        return torch.func.functional_call(module, given, inputs)

    return with_autograd(problem, layer)


def ours(problem: Problem) -> Calls:
    assert problem.features is not None
    H, D = problem.inputs[1].shape
    module = uf.nn.GATLayer(FEATURES, D, heads=H, attention_dropout=problem.dropout)
    names = ("linear.weight", "att_src", "att_dst", "bias")
    return call_of(module, names, problem, (problem.features, problem.g), False)


def pyg(problem: Problem) -> Calls:
    from torch_geometric.nn import GATConv

    H, D = problem.inputs[1].shape
    module = GATConv(FEATURES, D, heads=H, add_self_loops=False, dropout=problem.dropout)  # the graph has the loops
    names = ("lin.weight", "att_src", "att_dst", "bias")
    # torch_geometric: from, to
    return call_of(module, names, problem, (problem.features, problem.g.edge_index.flip(0)), True)


def expected(problem: Problem) -> Results:
    """The layer in plain torch, attention by the reference, in float64."""
    assert problem.features is not None
    weight, src, dst, bias = leaves = [tensor.double().requires_grad_() for tensor in problem.inputs]
    rows = (problem.features.double() @ weight).view(-1, *src.shape)
    scores = (rows * src).sum(2), (rows * dst).sum(2)
    y = uf.gat_aggregate(problem.g, rows, *scores, backend="reference").flatten(1) + bias
    return y.detach(), *torch.autograd.grad(y, leaves, problem.grad.double())


def work(problem: Problem, mode: str, itemsize: int) -> Work:
    """That of `gat_aggregate`; the linear map reads x once more in each direction."""
    N, (H, D) = problem.g.num_nodes, problem.inputs[1].shape
    rows = Problem(problem.g, (torch.empty(1, H, D).expand(N, H, D),), problem.grad)
    found = attention_work(rows, mode, itemsize)
    directions = 1 if mode == "fwd" else 2
    return Work(found.gathers, found.streamed + directions * itemsize * N * (FEATURES + H * D))


OP = Op(
    name="gat_layer",
    what=f"GAT layer, {FEATURES} features, {HEADS} heads, dropout {DROPOUT}, D columns a head; gradients of parameters",
    cases=("large_ogbn_arxiv:8:1",),
    make=make,
    expected=expected,
    work=work,
    results=("Y", "dWeight", "dSrc", "dDst", "dBias"),
    contenders=(
        Contender(OURS, ours, "uf.nn.GATLayer"),
        Contender("pyg", pyg, "torch_geometric's GATConv", needs="torch_geometric", refuse=refuse_messages),
    ),
)

"""Attention of GAT when rows and scores are given, 8 heads, attention dropout 0.6; D is the width of a head."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import ugnn_fast as uf
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
from ugnn_fast.datasets import Dataset

HEADS, DROPOUT = 8, 0.6


def make(data: Dataset, D: int, K: int) -> Problem:
    random = torch.Generator().manual_seed(0)
    N = data.graph.num_nodes
    x, grad = torch.randn(2, N, HEADS, D, generator=random)
    scores = torch.randn(2, N, HEADS, generator=random)
    return Problem(data.graph, (x, *scores), grad, K, DROPOUT)


def ours(problem: Problem) -> Calls:
    g, q = problem.g, problem.dropout
    return with_autograd(problem, lambda x, src, dst: uf.gat_aggregate(g, x, src, dst, dropout=q, backend="cpu"))


def plain(problem: Problem, x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return uf.gat_aggregate(problem.g, x, src, dst, backend="reference")


def scatter(problem: Problem) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Softmax and sums by scatter, as one writes it with torch alone; torch's own dropout."""
    (row, col), q = problem.g.edge_index.long(), problem.dropout

    def attention(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        e = F.leaky_relu(dst[row] + src[col], 0.2)
        rows = row[:, None].expand_as(e)
        largest = torch.zeros_like(dst).scatter_reduce(0, rows, e.detach(), "amax", include_self=False)
        powers = (e - largest[row]).exp()
        alpha = powers / torch.zeros_like(dst).index_add(0, row, powers)[row]
        alpha = F.dropout(alpha, q)
        return torch.zeros_like(x).index_add(0, row, alpha[:, :, None] * x[col])

    return attention


def pyg(problem: Problem) -> Calls:
    """What GATConv does once it has rows and scores."""
    from torch_geometric.nn import GATConv

    H, D = problem.x.shape[1:]
    layer = GATConv(1, D, heads=H, add_self_loops=False, dropout=problem.dropout)  # the graph has the loops
    edge_index = problem.g.edge_index.flip(0)  # torch_geometric: from, to

    def attention(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        alpha = layer.edge_updater(edge_index, alpha=(src, dst), edge_attr=None, size=None)
        return layer.propagate(edge_index, x=(x, x), alpha=alpha, size=None)

    return with_autograd(problem, attention)


def dgl(problem: Problem) -> Calls:
    """What dgl's GATConv does once it has rows and scores."""
    import dgl

    row, col = problem.g.edge_index
    graph = dgl.graph((col, row), num_nodes=problem.g.num_nodes)
    graph.create_formats_()

    def attention(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        e = F.leaky_relu(dgl.ops.u_add_v(graph, src[:, :, None], dst[:, :, None]), 0.2)
        alpha = F.dropout(dgl.ops.edge_softmax(graph, e), problem.dropout)
        return dgl.ops.u_mul_e_sum(graph, x, alpha)

    return with_autograd(problem, attention)


def work(problem: Problem, mode: str, itemsize: int) -> Work:
    """Forward gathers rows of x and, of each entry, a score of every head; y out. Backward gathers rows of the
    gradient and three numbers of every head (score, sum of the softmax, <gradient, y>); x and y in, the gradient out.
    """
    scores = 4 * problem.g.num_edges * problem.x.shape[1]
    passes, streams, numbers = (1, 1, 1) if mode == "fwd" else (2, 5, 4)
    return graph_work(problem, passes, streams, itemsize, extra=numbers * scores)


OP = Op(
    name="gat_aggregate",
    what=f"attention of {HEADS} heads, dropout {DROPOUT}, D columns a head; gradients of rows and scores",
    cases=("cora:8:1", "pubmed:8:1", "large_ogbn_arxiv:8:1"),
    make=make,
    expected=by_columns(plain),
    apart=True,
    work=work,
    results=("Y", "dX", "dSrc", "dDst"),
    contenders=(
        Contender(OURS, ours, "uf.gat_aggregate"),
        Contender(
            "torch_scatter",
            lambda problem: with_autograd(problem, scatter(problem)),
            "softmax and sums by scatter, torch's autograd",
            refuse=refuse_messages,
        ),
        Contender(
            "torch_scatter compiled", compiled(scatter), "torch.compile of it", compiled=True, refuse=refuse_messages
        ),
        Contender("pyg", pyg, "the same part of GATConv", needs="torch_geometric", refuse=refuse_messages),
        Contender("dgl", dgl, "the same part of dgl's GATConv", needs="dgl"),
        Contender(OURS, ours, "bfloat16 rows, float32 sums", dtype=torch.bfloat16),
    ),
)

"""y_i = sum_j w_ij h_j over the stored entries, as other libraries have it: product(w [E], h [N, D]) -> y [N, D].

All are differentiated by their own autograd, in w and in h.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bench.baselines.structure import Structure
from bench.registry import Refuse, never, refuse_messages

Product = Callable[[Tensor, Tensor], Tensor]


def torch_spmm_reduce(s: Structure) -> Product:
    return lambda w, h: torch.sparse.mm(s.matrix(w), h, "sum")


def torch_sparse(s: Structure) -> Product:
    import torch_sparse

    adjacency = torch_sparse.SparseTensor(
        rowptr=s.rowptr.long(), col=s.col.long(), value=s.norm, sparse_sizes=(s.N, s.N), is_sorted=True
    ).fill_cache_()
    return lambda w, h: torch_sparse.matmul(adjacency.set_value(w, layout="csr"), h, reduce="sum")


def pyg(s: Structure) -> Product:
    from bench.baselines.pyg_messages import WeightedMessages

    layer, edge_index = WeightedMessages(), torch.stack([s.row, s.col]).long()
    return lambda w, h: layer(h, edge_index, w)


def dgl(s: Structure) -> Product:
    import dgl

    graph = dgl.graph((s.col, s.row), num_nodes=s.N)
    graph.create_formats_()  # for products, their transposes and products per edge
    return lambda w, h: dgl.ops.u_mul_e_sum(graph, h, w[:, None])


# name -> product, the package it needs, why it cannot take part, what it is
PRODUCTS: dict[str, tuple[Callable[[Structure], Product], str | None, Refuse, str]] = {
    "torch_spmm_reduce": (torch_spmm_reduce, None, never, 'torch.sparse.mm(A, H, "sum"), torch\'s autograd'),
    "torch_sparse": (torch_sparse, "torch_sparse", never, "torch_sparse.matmul, its transpose kept"),
    "pyg": (pyg, "torch_geometric", refuse_messages, "torch_geometric's MessagePassing with edge weights"),
    "dgl": (dgl, "dgl", never, "dgl.ops.u_mul_e_sum with edge weights"),
}

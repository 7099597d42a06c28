"""S^K x W, the linear layer of GCN and SGC."""

from __future__ import annotations

import torch
from torch import Tensor

from ugnn_fast.functional import propagate
from ugnn_fast.graph import Graph
from ugnn_fast.nn.sparse_linear import SparseLinear


def graph_linear(graph: Graph, x: Tensor, layer: SparseLinear, steps: int) -> Tensor:
    """S^K x W with S = D^-1/2 A~ D^-1/2: steps on x, or on x W, whichever has fewer columns.

    x: [N, F], shared by the replicas if there are any, or [N, R, F]; sparse CSR is multiplied by W first. layer has
    no bias, which would not commute with S.
    """
    columns = x.shape[1:].numel()
    if x.layout is torch.strided and columns < layer.out_features * (layer.replicas or 1):
        return layer.product(propagate(graph, x, steps), 0.0)
    return propagate(graph, layer.product(x, 0.0), steps)

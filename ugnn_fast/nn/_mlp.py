"""What the models share: the checks of their input, and the class scores that they then aggregate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ugnn_fast._checks import check_device, check_size
from ugnn_fast.graph import Graph
from ugnn_fast.nn.sparse_linear import SparseLinear, check_input


class Mlp(nn.Module):
    """Class scores of each node: dropout, Linear(hidden), ReLU, dropout, Linear(classes).

    x: dense or torch sparse CSR [N, in_features]. Returns [N, classes]; with replicas=R, R models side by
    side that share nothing but x, [N, R, classes]. Weights are [in, out] or [R, in, out].
    """

    def __init__(self, in_features: int, hidden: int, classes: int, dropout: float, replicas: int | None):
        super().__init__()
        check_size(hidden, "hidden")
        check_size(classes, "classes")
        self.first = SparseLinear(in_features, hidden, dropout=dropout, replicas=replicas)
        self.second = SparseLinear(hidden, classes, dropout=dropout, replicas=replicas)

    def new_parameter(self, *size: int) -> Tensor:
        """Empty [*size], or [R, *size] with replicas."""
        R = self.first.replicas
        return torch.empty(size if R is None else (R, *size))

    def reset_parameters(self) -> None:
        """Draws all parameters anew, uniform in +-1/sqrt(inputs) like torch.nn.Linear."""
        self.first.reset_parameters()
        self.second.reset_parameters()

    def forward(self, x: Tensor, training: bool) -> Tensor:
        p = self.first.dropout if training else 0.0
        return self.second.product(self.first.product(x, p), p, relu=True)

    def check_input(self, x: Any, graph: Any) -> None:
        check_features(graph, x, self.first)


def check_features(graph: Any, x: Any, layer: SparseLinear) -> None:
    """graph is one; x is an input of the model's first layer, with a row for each node, on the graph's device."""
    if not isinstance(graph, Graph):
        raise TypeError(f"graph must be a ugnn_fast.Graph, got {type(graph).__name__}")
    check_input(x, layer.in_features, layer.weight.dtype, rows=graph.num_nodes, replicas=layer.replicas)
    check_device(graph, x, "x")

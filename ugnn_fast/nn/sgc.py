"""SGC: aggregation and one linear layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ugnn_fast._checks import check_size, check_steps
from ugnn_fast.graph import Graph
from ugnn_fast.nn._graph_linear import graph_linear
from ugnn_fast.nn._mlp import check_features
from ugnn_fast.nn.sparse_linear import SparseLinear, init_uniform


class SGC(nn.Module):
    """SGC of Wu et al. 2019: logits S^K x W + b.

    forward(x, graph): x dense or torch sparse CSR [N, in_features]; returns logits [N, classes], or [N, R, classes]
    with replicas=R models side by side. steps: K. Where x has more columns than there are classes, x W comes first and
    nothing of the size of x is ever made.
    """

    def __init__(self, in_features: int, classes: int, *, steps: int = 2, replicas: int | None = None):
        super().__init__()
        self.in_features = check_size(in_features, "in_features")
        self.classes = check_size(classes, "classes")
        self.steps = check_steps(steps)
        self.replicas = None if replicas is None else check_size(replicas, "replicas")
        self.linear = SparseLinear(in_features, classes, bias=False, replicas=replicas)
        self.bias = nn.Parameter(torch.empty(classes) if replicas is None else torch.empty(replicas, classes))
        init_uniform(self.bias, in_features)

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        self.linear.reset_parameters()
        init_uniform(self.bias, self.in_features)

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        check_features(graph, x, self.linear)
        return graph_linear(graph, x, self.linear, self.steps) + self.bias

    def extra_repr(self) -> str:
        replicas = "" if self.replicas is None else f", replicas={self.replicas}"
        return f"{self.in_features}, {self.classes}, steps={self.steps}{replicas}"

"""GCN: a linear layer and one step of aggregation, several times."""

from __future__ import annotations

import itertools
import math
from typing import cast

import torch
from torch import Tensor, nn

from ugnn_fast._checks import check_share, check_size
from ugnn_fast.dropping import dropout
from ugnn_fast.graph import Graph
from ugnn_fast.nn._graph_linear import graph_linear
from ugnn_fast.nn._mlp import check_features
from ugnn_fast.nn.sparse_linear import SparseLinear


class GCN(nn.Module):
    """GCN of Kipf and Welling 2017.

        H_0 = x,   H_{l+1} = S dropout(relu(H_l)) W_l + b_l,   neither ReLU nor dropout on x

    forward(x, graph): x dense or torch sparse CSR [N, in_features]; returns logits [N, classes]. With replicas=R there
    are R models with weights and dropout masks of their own, and logits [N, R, classes]. layers: number of W_l; all
    widths between them are `hidden`. Weights are drawn as by Glorot and Bengio 2010, biases start at 0.
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        classes: int,
        *,
        dropout: float = 0.5,
        layers: int = 2,
        replicas: int | None = None,
    ):
        super().__init__()
        self.in_features = check_size(in_features, "in_features")
        self.hidden = check_size(hidden, "hidden")
        self.classes = check_size(classes, "classes")
        self.dropout = check_share(dropout, "dropout")
        self.layers = check_size(layers, "layers")
        self.replicas = None if replicas is None else check_size(replicas, "replicas")
        widths = [in_features, *[hidden] * (layers - 1), classes]
        self.linears = nn.ModuleList(
            SparseLinear(before, after, bias=False, replicas=replicas) for before, after in itertools.pairwise(widths)
        )
        own = () if replicas is None else (replicas,)
        self.biases = nn.ParameterList(torch.empty(*own, width) for width in widths[1:])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        with torch.no_grad():
            for linear, bias in self._layers():
                bound = math.sqrt(6 / (linear.in_features + linear.out_features))
                linear.weight.uniform_(-bound, bound)
                bias.zero_()

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        check_features(graph, x, self._layers()[0][0])
        p = self.dropout if self.training else 0.0
        h = x
        for layer, (linear, bias) in enumerate(self._layers()):
            if layer > 0:
                h = dropout(h.relu(), p)
            h = graph_linear(graph, h, linear, 1) + bias
        return h

    def _layers(self) -> list[tuple[SparseLinear, Tensor]]:
        return list(zip(cast("list[SparseLinear]", self.linears), self.biases, strict=True))

    def extra_repr(self) -> str:
        replicas = "" if self.replicas is None else f", replicas={self.replicas}"
        sizes = f"{self.in_features}, {self.hidden}, {self.classes}"
        return f"{sizes}, dropout={self.dropout:g}, layers={self.layers}{replicas}"

"""What the models share: the checks of their input, and the class scores that they then aggregate."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ugnn_fast._checks import check_device, check_share, shape
from ugnn_fast.graph import Graph
from ugnn_fast.nn._sparse import sparse_product, structure_of


class Mlp(nn.Module):
    """Class scores of each node: dropout, Linear(hidden), ReLU, dropout, Linear(classes).

    x: dense or torch sparse CSR [N, in_features]. Returns [N, classes]; with replicas=R, R models side by
    side that share nothing but x, [N, R, classes]. Weights are [in, out] or [R, in, out].
    """

    def __init__(self, in_features: int, hidden: int, classes: int, dropout: float, replicas: int | None):
        super().__init__()
        self.in_features = check_size(in_features, "in_features")
        self.hidden = check_size(hidden, "hidden")
        self.classes = check_size(classes, "classes")
        self.dropout = check_dropout(dropout)
        self.replicas = None if replicas is None else check_size(replicas, "replicas")
        self.weight1 = nn.Parameter(self.new_parameter(in_features, hidden))
        self.bias1 = nn.Parameter(self.new_parameter(hidden))
        self.weight2 = nn.Parameter(self.new_parameter(hidden, classes))
        self.bias2 = nn.Parameter(self.new_parameter(classes))
        self.reset_parameters()

    def new_parameter(self, *size: int) -> Tensor:
        """Empty [*size], or [R, *size] with replicas."""
        return torch.empty(size if self.replicas is None else (self.replicas, *size))

    def reset_parameters(self) -> None:
        """Draws all parameters anew, uniform in +-1/sqrt(inputs) like torch.nn.Linear."""
        for parameter, inputs in (
            (self.weight1, self.in_features),
            (self.bias1, self.in_features),
            (self.weight2, self.hidden),
            (self.bias2, self.hidden),
        ):
            init_uniform(parameter, inputs)

    def forward(self, x: Tensor, training: bool) -> Tensor:
        p = self.dropout if training else 0.0
        h = self._first(x, p).relu()
        return _linear(_dropout(h, p), self.weight2, self.bias2)

    def _first(self, x: Tensor, p: float) -> Tensor:
        """dropout(x) @ weight1 + bias1, a mask for each replica."""
        if x.layout is torch.sparse_csr:
            return self._first_sparse(x, p)
        if self.replicas is not None:
            x = x.unsqueeze(1).expand(-1, self.replicas, -1)  # [N, R, F]
        return _linear(_dropout(x, p), self.weight1, self.bias1)

    def _first_sparse(self, x: Tensor, p: float) -> Tensor:
        # a dropped zero is a zero: only the stored values need a mask
        structure, values = structure_of(x), x.values()
        if self.replicas is None:
            return sparse_product(structure, _dropout(values, p), self.weight1) + self.bias1
        each = [sparse_product(structure, _dropout(values, p), weight) for weight in self.weight1]
        return torch.stack(each, dim=1) + self.bias1

    def check_input(self, x: Any, graph: Any) -> None:
        if not isinstance(graph, Graph):
            raise TypeError(f"graph must be a ugnn_fast.Graph, got {type(graph).__name__}")
        check_features(graph, x, self.in_features, self.weight1.dtype)

    def extra_repr(self) -> str:
        replicas = "" if self.replicas is None else f", replicas={self.replicas}"
        return f"{self.in_features}, {self.hidden}, {self.classes}, dropout={self.dropout:g}{replicas}"


def init_uniform(parameter: Tensor, inputs: int) -> None:
    bound = 1 / math.sqrt(inputs)
    with torch.no_grad():
        parameter.uniform_(-bound, bound)


def check_features(graph: Graph, x: Any, in_features: int, dtype: torch.dtype) -> None:
    """x is [N, in_features], dense or sparse CSR, of the model's dtype, on the graph's device."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor, got {type(x).__name__}")
    if x.layout not in (torch.strided, torch.sparse_csr):
        raise TypeError(f"x must be dense or torch sparse CSR, got {x.layout}")
    if tuple(x.shape) != (graph.num_nodes, in_features):
        expected = f"[N, in_features] = [{graph.num_nodes}, {in_features}]"
        raise ValueError(f"x must be {expected}, got {shape(x)}")
    if x.dtype != dtype:
        raise TypeError(f"x must be {dtype} like the model's parameters, got {x.dtype}")
    if x.layout is torch.sparse_csr and x.requires_grad:
        raise ValueError("x must not require grad when it is sparse: its gradient is not offered")
    check_device(graph, x, "x")


def check_size(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if not 1 <= value < 2**31:
        raise ValueError(f"{name} must be in 1..2^31 - 1, got {value}")
    return value


def check_dropout(value: Any) -> float:
    return check_share(value, "dropout")


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x [N, in] or [N, R, in], weight [in, out] or [R, in, out], bias [out] or [R, out]."""
    if x.dim() == 2:
        return torch.addmm(bias, x, weight)
    return torch.einsum("nri,rio->nro", x, weight) + bias


def _dropout(x: Tensor, p: float) -> Tensor:
    if p == 0:
        return x
    # F.dropout takes more than twice as long to draw its mask, and the masks are a large part of an epoch on
    # a small graph. float32 whatever the dtype of x, as 8 bits would not resolve p
    mask = torch.rand(x.shape, device=x.device).ge_(p).mul_(1 / (1 - p))
    return x * mask.to(x.dtype)

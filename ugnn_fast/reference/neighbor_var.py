"""Mean and population variance over neighbours in plain torch."""

import torch
from torch import Tensor

from ugnn_fast.graph import Graph
from ugnn_fast.reference._edges import column, computing_dtype, degrees, entry_weights, rows_of, sum_over_neighbors


def _mean(g: Graph, values: Tensor) -> Tensor:
    """sum_j a_ij values_ij / d_i of values [E, ...]."""
    degree = degrees(g, values.dtype)
    degree = torch.where(degree > 0, degree, 1)
    total = sum_over_neighbors(g, column(entry_weights(g, values.dtype), values) * values)
    return total / column(degree, total)


def neighbor_mean(g: Graph, x: Tensor) -> Tensor:
    """mean_i = sum_j a_ij x_j / d_i."""
    return _mean(g, x.to(computing_dtype(x))[g.col.long()]).to(x.dtype)


def neighbor_var(g: Graph, x: Tensor) -> Tensor:
    """var_i = sum_j a_ij (x_j - mean_i)^2 / d_i."""
    X = x.to(computing_dtype(x))
    mean = _mean(g, X[g.col.long()])
    return _mean(g, (X[g.col.long()] - mean[rows_of(g)]) ** 2).to(x.dtype)

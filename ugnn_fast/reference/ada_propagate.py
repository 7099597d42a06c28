"""K steps of ADA-UGNN in plain torch."""

import torch
from torch import Tensor

from ugnn_fast.graph import Graph
from ugnn_fast.reference._edges import column, computing_dtype, degrees, entry_weights, rho, rows_of, sum_over_neighbors


def ada_propagate(g: Graph, x: Tensor, c: Tensor | float, steps: int) -> Tensor:
    """H <- 2 b X + b sum_j a_ij (C_i + C_j) rho_i rho_j H_j, K times from H = X; x [N, D] or [N, R, D]. (S), (B)"""
    dtype = computing_dtype(x)
    X = x.to(dtype)
    C = torch.full((g.num_nodes,), float(c), dtype=dtype, device=x.device) if isinstance(c, float) else c.to(dtype)
    i, j, a = rows_of(g), g.col.long(), entry_weights(g, dtype)
    r, degree = rho(g, dtype), degrees(g, dtype)

    pair = column(a, C[i]) * (C[i] + C[j])  # [E] or [E, R]
    connected = column(degree > 0, C)
    share = sum_over_neighbors(g, pair) / column(torch.where(degree > 0, degree, 1), C)
    b = column(torch.where(connected, 1 / (2 + share), torch.full_like(share, 0.5)), X)

    w = column(pair * column(r[i] * r[j], pair), X[i])
    H = X.clone()  # a result never shares memory with x
    for _ in range(steps):
        H = 2 * b * X + b * sum_over_neighbors(g, w * H[j])
    return H.to(x.dtype)

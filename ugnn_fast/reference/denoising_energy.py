"""The objective of ADA-UGNN in plain torch."""

from torch import Tensor

from ugnn_fast.graph import Graph
from ugnn_fast.reference._edges import column, computing_dtype, entry_weights, rho, rows_of, sum_over_neighbors


def denoising_energy(g: Graph, f: Tensor, s: Tensor, c: Tensor | float) -> Tensor:
    """|F - S|^2 + 1/2 sum_i C_i sum_j a_ij |rho_i F_i - rho_j F_j|^2, 0-d or [R]. (P)"""
    dtype = computing_dtype(f)
    F, S = f.to(dtype), s.to(dtype)
    U = column(rho(g, dtype), F) * F
    off = U[rows_of(g)] - U[g.col.long()]
    graph_part = sum_over_neighbors(g, (column(entry_weights(g, dtype), off) * off**2).sum(-1))  # [N] or [N, R]
    C = c if isinstance(c, float) else column(c.to(dtype), graph_part)
    return ((F - S) ** 2).sum(-1).sum(0) + (C * graph_part).sum(0) / 2

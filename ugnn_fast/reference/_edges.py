"""Sums over the stored entries of a graph, one message per entry."""

import torch
from torch import Tensor

from ugnn_fast._random import kept_entries
from ugnn_fast.graph import Graph


def rows_of(g: Graph) -> Tensor:
    """Row of every stored entry, [E]."""
    return torch.repeat_interleave(g.rowptr.diff(), output_size=g.num_edges)


def kept(g: Graph) -> Tensor:
    """Which stored entries are not dropped, bool [E]."""
    return kept_entries(rows_of(g), g.col, *g.tensors()[-2:])


def computing_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def column(values: Tensor, like: Tensor) -> Tensor:
    """values [N] or [N, R] beside like [N, D] or [N, R, D]."""
    return values.reshape(*values.shape, *(1,) * (like.dim() - values.dim()))


def entry_weights(g: Graph, dtype: torch.dtype) -> Tensor:
    """a_ij of every stored entry, [E]."""
    return torch.ones(g.num_edges, dtype=dtype, device=g.device) if g.weight is None else g.weight.to(dtype)


def degrees(g: Graph, dtype: torch.dtype) -> Tensor:
    """d_i = sum_j a_ij, [N]; Graph.degree has it in float32 only."""
    return sum_over_neighbors(g, entry_weights(g, dtype))


def rho(g: Graph, dtype: torch.dtype) -> Tensor:
    """d_i^-1/2, 0 for a node without neighbours, [N]."""
    degree = degrees(g, dtype)
    return torch.where(degree > 0, degree, 1).rsqrt() * (degree > 0)


def sum_over_neighbors(g: Graph, messages: Tensor) -> Tensor:
    """sum_j of messages [E, ...] into their rows, [N, ...], but for those of entries that are dropped."""
    out = messages.new_zeros((g.num_nodes, *messages.shape[1:]))
    if g.drop == 0:
        return out.index_add(0, rows_of(g), messages)
    mask = kept(g)
    return out.index_add(0, rows_of(g)[mask], messages[mask])

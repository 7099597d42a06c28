"""`drop_edges`: DropEdge, as a view of a graph that every operator takes."""

from __future__ import annotations

import torch

from ugnn_fast import ops, reference
from ugnn_fast._backend import choose
from ugnn_fast._checks import check_graph, check_seeds, check_share, draw_seeds
from ugnn_fast.graph import Graph


def drop_edges(g: Graph, q: float, *, seed: int | None = None, backend: str = "auto") -> Graph:
    """The graph with a share q of its edges dropped at random (DropEdge, Rong et al. 2020), as a view of it.

    Operators skip the dropped edges, and `degree` counts the kept ones; stored entries, `edge_index` and `num_edges`
    stay as they are. Both directions of an edge agree, self loops are never dropped, and nothing is rescaled.

    seed: 64 bits; None draws it from torch's default generator. No mask is stored: every call makes it again from the
    seed (Philox counter (min(i, j), max(i, j), 0, 0)), the same on every backend. q = 0 gives the graph itself.
    """
    check_graph(g)
    q = check_share(q, "q")
    if g.drop:
        raise ValueError(f"g must have all of its edges, got a graph that drops {g.drop:g} of them already")
    seeds = draw_seeds(1) if seed is None else check_seeds(seed)
    if len(seeds) != 1:
        raise ValueError(f"seed must be one int, got {len(seeds)}")
    if q == 0:
        return g
    view = g._dropping(torch.empty_like(g.degree), q, int(seeds))
    chosen = choose("drop_edges", backend, g.degree)
    if chosen == "reference":
        view.degree.copy_(reference.degrees(view, g.degree.dtype))
    else:
        ops.kept_degree(view, chosen)
    return view

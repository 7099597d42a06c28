"""DropEdge for any model."""

from __future__ import annotations

from torch import nn

from ugnn_fast._checks import check_graph, check_share
from ugnn_fast.dropping import drop_edges
from ugnn_fast.graph import Graph


class DropEdge(nn.Module):
    """Drops a share q of the edges in training mode, others in every call: `model(x, drop_edge(graph))`.

    Rong et al. 2020. In evaluation mode the graph itself; see `ugnn_fast.drop_edges`.
    """

    def __init__(self, q: float):
        super().__init__()
        self.q = check_share(q, "q")

    def forward(self, graph: Graph) -> Graph:
        check_graph(graph)
        return drop_edges(graph, self.q) if self.training else graph

    def extra_repr(self) -> str:
        return f"{self.q:g}"

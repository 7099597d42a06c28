"""Local label smoothness in plain torch."""

import torch
from torch import Tensor

from ugnn_fast.graph import Graph
from ugnn_fast.reference._edges import rows_of, sum_over_neighbors


def local_smoothness(g: Graph, labels: Tensor) -> Tensor:
    """Share of labelled neighbours, the node itself not counted, that carry the node's label; nan where undefined."""
    i, j = rows_of(g), g.col.long()
    counted = (i != j) & (labels[j] >= 0)
    same = sum_over_neighbors(g, (counted & (labels[i] == labels[j])).double())
    share = same / sum_over_neighbors(g, counted.double())
    return torch.where(labels >= 0, share, torch.nan).float()

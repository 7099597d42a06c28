"""ADA-UGNN's adaptive weights in plain torch."""

from torch import Tensor

from ugnn_fast.graph import Graph
from ugnn_fast.reference._edges import computing_dtype
from ugnn_fast.reference.neighbor_var import neighbor_mean, neighbor_var


def ada_c(g: Graph, x: Tensor, weight: Tensor, s: float, bias: Tensor | None, stat: str) -> Tensor:
    """s sigmoid(<stat_i, weight> + bias), [N] or [N, R]."""
    x = x.to(computing_dtype(x))
    values = neighbor_var(g, x) if stat == "var" else neighbor_mean(g, x)
    logits = (values * weight).sum(-1)
    return s * (logits if bias is None else logits + bias).sigmoid()

"""<v_i, u_j> for every stored entry (i, j)."""

import torch
from torch import Tensor

from ugnn_fast.device.step import Stepper


def edge_dot(graph: tuple, v: Tensor, u: Tensor, backend: str) -> Tensor:
    """Body of ugnn::edge_dot."""
    v, u = v.flatten(1).contiguous(), u.flatten(1).contiguous()
    out = torch.empty(graph[1].shape, dtype=v.dtype, device=v.device)
    stepper = Stepper(graph, v, family="edge_dot", backend=backend)
    stepper.columns = 1
    stepper.launch("edge_dot", v, u, out)
    return out

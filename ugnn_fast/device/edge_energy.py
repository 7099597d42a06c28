"""The graph part of the denoising energy, for every node."""

import torch
from torch import Tensor

from ugnn_fast.device.step import Stepper, rsqrt_degree


def edge_energy(graph: tuple, f: Tensor, backend: str) -> Tensor:
    """Body of ugnn::edge_energy."""
    stepper = Stepper(graph, f, replicas=True)
    sums = torch.empty((*f.shape[:-1], stepper.blocks), dtype=torch.float32, device=f.device)
    stepper.launch("edge_energy", f.contiguous(), rsqrt_degree(graph), stepper.partial, sums)
    return sums.sum(-1)

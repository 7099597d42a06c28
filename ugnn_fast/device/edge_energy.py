"""The graph part of the denoising energy, for every node."""

import torch
from torch import Tensor

from ugnn_fast.device.step import Stepper, rsqrt_degree
from ugnn_fast.ops._native_call import acc_dtype


def edge_energy(graph: tuple, f: Tensor, backend: str) -> Tensor:
    """Body of ugnn::edge_energy."""
    stepper = Stepper(graph, f, replicas=True, backend=backend)
    rho = rsqrt_degree(graph, acc_dtype(f.dtype), backend)
    sums = torch.empty((*f.shape[:-1], stepper.blocks), dtype=rho.dtype, device=f.device)
    stepper.launch("edge_energy", f.contiguous(), rho, stepper.partial, sums)
    return sums.sum(-1)

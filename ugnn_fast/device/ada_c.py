"""The adaptive weights c_i = s sigmoid(<stat_i, weight> + bias), by the kernel of the statistic."""

import torch
from torch import Tensor

from ugnn_fast.device.neighbor_var import neighbor_stat
from ugnn_fast.ops._native_call import acc_dtype


def ada_c(graph, x, weight, bias, s, stat, keep, backend) -> tuple[Tensor, Tensor, Tensor]:
    """Body of ugnn::ada_c."""
    x, weight = x.contiguous(), weight.contiguous()
    c = torch.empty(x.shape[:-1], dtype=acc_dtype(x.dtype), device=x.device)
    keep_var = keep and stat == "var"
    var = x.new_empty(x.shape if keep_var else 0)
    mean = torch.empty(x.shape if keep else 0, dtype=c.dtype, device=x.device)
    if x.shape[-1] == 0:
        c.copy_(s * torch.sigmoid(c.new_zeros(()) if bias is None else bias))
        return c, var, mean
    neighbor_stat(
        graph, x, stat, var if keep_var else None, mean if keep else None, backend, weight=weight,
        bias=None if bias is None else bias.contiguous(), s=s, c=c,
    )  # fmt: skip
    return c, var, mean

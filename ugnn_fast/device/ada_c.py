"""The adaptive weights c_i = s sigmoid(<stat_i, weight> + bias), by the kernel of the statistic."""

import torch
from torch import Tensor

from ugnn_fast.device.neighbor_var import neighbor_stat


def ada_c(graph, x, weight, bias, s, stat, keep, backend) -> tuple[Tensor, Tensor, Tensor]:
    """Body of ugnn::ada_c."""
    x, weight = x.contiguous(), weight.contiguous()
    c = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    keep_var = keep and stat == "var"
    var = x.new_empty(x.shape if keep_var else 0)
    mean = torch.empty(x.shape if keep else 0, dtype=torch.float32, device=x.device)
    neighbor_stat(
        graph, x, stat, var if keep_var else None, mean if keep else None, weight=weight,
        bias=None if bias is None else bias.contiguous(), s=s, c=c,
    )  # fmt: skip
    return c, var, mean

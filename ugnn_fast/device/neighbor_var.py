"""Mean and variance over neighbours, also as the adaptive weight that is made of them, and the variance's backward."""

import torch
from torch import Tensor

from ugnn_fast.device.step import Stepper, degrees
from ugnn_fast.ops._native_call import acc_dtype


def neighbor_stat(
    graph: tuple, x: Tensor, stat: str, var: Tensor | None, mean: Tensor | None, backend: str, *,
    weight: Tensor | None = None, bias: Tensor | None = None, s: float = 0.0, c: Tensor | None = None,
) -> None:  # fmt: skip
    """Fills what is given of var, mean (like x) and c [N, replicas]; see kernels/neighbor_var.py."""
    stepper = Stepper(graph, x, replicas=c is not None, sums=4, backend=backend)
    if c is not None:
        stepper.columns = x.shape[1:-1].numel()
    elif stepper.config is not None:
        stepper.D = stepper.config.block
    stepper.launch("neighbor_stat", x, stepper.partial, var, mean, weight, bias, s, c, VAR=stat == "var")


def neighbor_var(graph, x, keep_mean, backend) -> tuple[Tensor, Tensor]:
    """Body of ugnn::neighbor_var."""
    x = x.contiguous()
    var = torch.empty_like(x)
    mean = torch.empty(x.shape if keep_mean else 0, dtype=acc_dtype(x.dtype), device=x.device)
    neighbor_stat(graph, x, "var", var, mean if keep_mean else None, backend)
    return var, mean


def neighbor_var_backward(graph, x, mean, grad, backend) -> Tensor:
    """Body of ugnn::neighbor_var_backward."""
    x, mean, grad = x.contiguous(), mean.contiguous(), grad.contiguous()
    if backend != "triton":
        grad = grad.to(mean.dtype)
    grad_x = torch.empty_like(x)
    stepper = Stepper(graph, x, backend=backend)
    degree = degrees(graph, mean.dtype, backend)
    stepper.launch("neighbor_var_bwd", degree, x, mean, grad, stepper.partial, grad_x)
    return grad_x

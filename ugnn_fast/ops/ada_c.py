"""ugnn::ada_c, the adaptive weights c_i = s sigmoid(<stat_i, weight> + bias) in one pass over the neighbours."""

import torch

from ugnn_fast._library import GRAPH, define
from ugnn_fast.ops._native_call import (
    DTYPES,
    acc_dtype,
    coefficients,
    csr,
    native,
    pointer,
    replicas_and_width,
    result,
    storage,
)
from ugnn_fast.ops.neighbor_var import neighbor_var_backward
from ugnn_fast.ops.propagate import mean_adjoint
from ugnn_fast.ops.row_sum import row_sum

STATS = ("var", "mean")


def _outputs(x, stat, keep):
    """Shapes and types of c, var and mean: the statistic for the gradient of weight; the mean for that of x too."""
    acc = acc_dtype(x.dtype)
    var, mean = (x.shape if kept else (0,) for kept in (keep and stat == "var", keep))
    return (x.shape[:-1], acc), (var, x.dtype), (mean, acc)


def _fake(graph, x, weight, bias, s, stat, keep, backend):
    return tuple(x.new_empty(shape, dtype=dtype) for shape, dtype in _outputs(x, stat, keep))


def _body(graph, x, weight, bias, s, stat, keep, backend):
    x, weight = x.contiguous(), weight.contiguous()
    R, D = replicas_and_width(x)
    c, var, mean = (result(shape, dtype) for shape, dtype in _outputs(x, stat, keep))
    if bias is not None:
        bias = bias.contiguous()
    native.neighbor_stat(
        csr(graph), DTYPES[x.dtype], torch.get_num_threads(), R, D, x.data_ptr(),
        mean.data_ptr() if mean.numel() else 0, var.data_ptr() if var.numel() else 0,
        weight.data_ptr(), pointer(bias), stat == "mean", s, c.data_ptr(),
    )  # fmt: skip
    return c, var, mean


class _AdaC(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernel, graph, x, weight, bias, s, stat, keep, backend):
        c, var, mean = kernel(graph, x, weight, bias, s, stat, True, backend)
        ctx.graph, ctx.constants = graph, (s, stat, backend)
        ctx.save_for_backward(x, weight, c, var, mean)
        return c

    @staticmethod
    def backward(ctx, grad):
        if torch.is_grad_enabled():
            raise RuntimeError("ada_c: double backward is not offered here; use backend='reference'")
        x, weight, c, var, mean = ctx.saved_tensors
        s, stat, backend = ctx.constants
        _, _, need_x, need_weight, need_bias = ctx.needs_input_grad[:5]
        grad_z = grad * c * (1 - c / s) if s > 0 else torch.zeros_like(c)  # of the argument of the sigmoid
        grad_x = grad_weight = grad_bias = None
        if need_weight:
            grad_weight = row_sum((), grad_z.unsqueeze(-1) * (mean if stat == "mean" else var))
        if need_bias:
            grad_bias = row_sum((), grad_z).reshape(-1)
        if need_x:
            grad_stat = grad_z.unsqueeze(-1) * weight
            if stat == "var":
                grad_x = neighbor_var_backward(ctx.graph, x, mean, grad_stat, backend)
            else:
                grad_x = mean_adjoint(ctx.graph, grad_stat, backend).to(x.dtype)
        return None, None, grad_x, grad_weight, grad_bias, None, None, None, None


def _autocast(dtype: torch.dtype, args: tuple) -> tuple:
    x = storage(dtype, args[0])
    return (x, *coefficients(x, *args[1:3]), *args[3:])


ada_c = define(
    f"ada_c({GRAPH}, Tensor x, Tensor w, Tensor? bias, float s, str stat, bool keep, str backend)"
    " -> (Tensor c, Tensor var, Tensor mean)",
    _body,
    _fake,
    _AdaC,
    _autocast,
    first_only=True,
)

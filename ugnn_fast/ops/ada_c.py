"""ugnn::ada_c, the adaptive weights c_i = s sigmoid(<stat_i, weight> + bias) in one pass over the neighbours."""

import torch
from torch import Tensor

from ugnn_fast._library import GRAPH, below_autograd, define
from ugnn_fast.ops._native_call import DTYPES, acc_dtype, coefficients, csr, native, pointer, replicas_and_width, storage
from ugnn_fast.ops.neighbor_var import neighbor_var_backward
from ugnn_fast.ops.propagate import mean_adjoint
from ugnn_fast.ops.row_sum import row_sum

STATS = ("var", "mean")


def _empty_outputs(x: Tensor, weight: Tensor, stat: str, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    acc = acc_dtype(x.dtype)
    c = x.new_empty(x.shape[:-1], dtype=acc)
    var = x.new_empty(x.shape if keep and stat == "var" else 0)
    return c, var, x.new_empty(x.shape if keep else 0, dtype=acc)


def _body(rowptr, col, weight, degree, order, hubs, x, w, bias, s, stat, keep, backend):
    x, w = x.contiguous(), w.contiguous()
    R, D = replicas_and_width(x)
    c, var, mean = _empty_outputs(x, w, stat, keep)
    if bias is not None:
        bias = bias.contiguous()
    native.neighbor_stat(
        csr(rowptr, col, weight, degree, order, hubs), DTYPES[x.dtype], torch.get_num_threads(), R, D, x.data_ptr(),
        pointer(mean) if mean.numel() else 0, pointer(var) if var.numel() else 0,
        w.data_ptr(), pointer(bias), stat == "mean", s, c.data_ptr(),
    )  # fmt: skip
    return c, var, mean


def _fake(rowptr, col, weight, degree, order, hubs, x, w, bias, s, stat, keep, backend):
    return _empty_outputs(x, w, stat, keep)


class _AdaC(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *args):
        graph, (x, w, bias, s, stat, _, backend) = args[:6], args[6:]
        c, var, mean = below_autograd(ada_c, *graph, x, w, bias, s, stat, True, backend)
        ctx.constants = s, stat, backend
        ctx.bias_shape = None if bias is None else bias.shape
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(var, mean)
        ctx.save_for_backward(*graph, x, w, c, var, mean)
        return c, var, mean

    @staticmethod
    def backward(ctx, grad, *_):
        if grad is None:
            return (None,) * 13
        if torch.is_grad_enabled():
            raise RuntimeError("ada_c: double backward is not offered; use backend='reference'")
        graph, (x, w, c, var, mean) = ctx.saved_tensors[:6], ctx.saved_tensors[6:]
        s, stat, backend = ctx.constants
        need_x, need_w, need_bias = ctx.needs_input_grad[6:9]
        grad_z = grad * c * (1 - c / s) if s > 0 else torch.zeros_like(c)  # of the argument of the sigmoid
        grad_x = grad_w = grad_bias = None
        if need_w:
            grad_w = row_sum(grad_z.unsqueeze(-1) * (mean if stat == "mean" else var))
        if need_bias:
            grad_bias = row_sum(grad_z).reshape(ctx.bias_shape)
        if need_x:
            grad_stat = grad_z.unsqueeze(-1) * w
            if stat == "var":
                grad_x = neighbor_var_backward(*graph, x, mean, grad_stat, backend)
            else:
                grad_x = mean_adjoint(graph, grad_stat, backend).to(x.dtype)
        return *(None,) * 6, grad_x, grad_w, grad_bias, None, None, None, None


def _autocast(dtype: torch.dtype, args: tuple) -> tuple:
    x = storage(dtype, args[6])
    return (*args[:6], x, *coefficients(x, *args[7:9]), *args[9:])


ada_c = define(
    f"ada_c({GRAPH}, Tensor x, Tensor w, Tensor? bias, float s, str stat, bool keep, str backend)"
    " -> (Tensor c, Tensor var, Tensor mean)",
    _body,
    _fake,
    _AdaC,
    _autocast,
)

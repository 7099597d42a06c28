"""ugnn::neighbor_var and its backward."""

import torch

from ugnn_fast._library import GRAPH, define, no_double_backward
from ugnn_fast.ops._native_call import DTYPES, acc_dtype, csr, native, replicas_and_width, result, storage


def _fake(graph, x, keep_mean, backend):
    var = torch.empty_like(x, memory_format=torch.contiguous_format)
    return var, x.new_empty(x.shape if keep_mean else 0, dtype=acc_dtype(x.dtype))


def _body(graph, x, keep_mean, backend):
    x = x.contiguous()
    R, D = replicas_and_width(x)
    var, mean = result(x.shape, x.dtype), result(x.shape if keep_mean else (0,), acc_dtype(x.dtype))
    native.neighbor_stat(
        csr(graph), DTYPES[x.dtype], torch.get_num_threads(), R, D, x.data_ptr(),
        mean.data_ptr() if keep_mean else 0, var.data_ptr(), 0, 0, False, 0.0, 0,
    )  # fmt: skip
    return var, mean


def _backward_fake(graph, x, mean, grad, backend):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _backward_body(graph, x, mean, grad, backend):
    x, mean, grad = x.contiguous(), mean.contiguous(), grad.to(mean.dtype).contiguous()
    R, D = replicas_and_width(x)
    grad_x = result(x.shape, x.dtype)
    native.neighbor_var_backward(
        csr(graph), DTYPES[x.dtype], torch.get_num_threads(), R, D, x.data_ptr(), mean.data_ptr(), grad.data_ptr(),
        grad_x.data_ptr(),
    )  # fmt: skip
    return grad_x


class _NeighborVar(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernel, graph, x, keep_mean, backend):
        var, mean = kernel(graph, x, True, backend)
        ctx.graph, ctx.backend = graph, backend
        ctx.save_for_backward(x, mean)
        return var

    @staticmethod
    def backward(ctx, grad):
        return None, None, neighbor_var_backward(ctx.graph, *ctx.saved_tensors, grad, ctx.backend), None, None


def _autocast(dtype: torch.dtype, args: tuple) -> tuple:
    return (storage(dtype, args[0]), *args[1:])


neighbor_var = define(
    f"neighbor_var({GRAPH}, Tensor x, bool keep_mean, str backend) -> (Tensor var, Tensor mean)",
    _body,
    _fake,
    _NeighborVar,
    _autocast,
    first_only=True,
)
neighbor_var_backward = define(
    f"neighbor_var_backward({GRAPH}, Tensor x, Tensor mean, Tensor grad, str backend) -> Tensor",
    _backward_body,
    _backward_fake,
    no_double_backward("neighbor_var"),
)

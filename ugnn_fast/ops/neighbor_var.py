"""ugnn::neighbor_var and its backward."""

import torch

from ugnn_fast._library import GRAPH, below_autograd, define
from ugnn_fast.ops._native_call import DTYPES, acc_dtype, csr, native, pointer, replicas_and_width, storage


def _body(rowptr, col, weight, degree, order, hubs, x, keep_mean, backend):
    x = x.contiguous()
    R, D = replicas_and_width(x)
    var = torch.empty_like(x)
    mean = x.new_empty(x.shape if keep_mean else 0, dtype=acc_dtype(x.dtype))
    native.neighbor_stat(
        csr(rowptr, col, weight, degree, order, hubs), DTYPES[x.dtype], torch.get_num_threads(), R, D,
        x.data_ptr(), pointer(mean) if keep_mean else 0, var.data_ptr(), 0, 0, False, 0.0, 0,
    )  # fmt: skip
    return var, mean


def _fake(rowptr, col, weight, degree, order, hubs, x, keep_mean, backend):
    var = torch.empty_like(x, memory_format=torch.contiguous_format)
    return var, x.new_empty(x.shape if keep_mean else 0, dtype=acc_dtype(x.dtype))


def _backward_body(rowptr, col, weight, degree, order, hubs, x, mean, grad, backend):
    x, grad = x.contiguous(), grad.to(mean.dtype).contiguous()
    R, D = replicas_and_width(x)
    grad_x = torch.empty_like(x)
    native.neighbor_var_backward(
        csr(rowptr, col, weight, degree, order, hubs), DTYPES[x.dtype], torch.get_num_threads(), R, D,
        x.data_ptr(), mean.data_ptr(), grad.data_ptr(), grad_x.data_ptr(),
    )  # fmt: skip
    return grad_x


def _backward_fake(rowptr, col, weight, degree, order, hubs, x, mean, grad, backend):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


class _NeighborVar(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *args):
        graph, (x, _, backend) = args[:6], args[6:]
        var, mean = below_autograd(neighbor_var, *graph, x, True, backend)
        ctx.backend = backend
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(mean)
        ctx.save_for_backward(*graph, x, mean)
        return var, mean

    @staticmethod
    def backward(ctx, grad, _):
        if grad is None:
            return (None,) * 9
        return *(None,) * 6, neighbor_var_backward(*ctx.saved_tensors, grad, ctx.backend), None, None


class _NoDoubleBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *args):
        return below_autograd(neighbor_var_backward, *args)

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError("neighbor_var: double backward is not offered; use backend='reference'")


def _autocast(dtype: torch.dtype, args: tuple) -> tuple:
    return (*args[:6], storage(dtype, args[6]), *args[7:])


neighbor_var = define(
    f"neighbor_var({GRAPH}, Tensor x, bool keep_mean, str backend) -> (Tensor var, Tensor mean)",
    _body,
    _fake,
    _NeighborVar,
    _autocast,
)
neighbor_var_backward = define(
    f"neighbor_var_backward({GRAPH}, Tensor x, Tensor mean, Tensor grad, str backend) -> Tensor",
    _backward_body,
    _backward_fake,
    _NoDoubleBackward,
)

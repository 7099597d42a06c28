"""ugnn::gat_aggregate, sums of neighbour rows under GAT's attention, and its backward."""

import torch

from ugnn_fast._library import GRAPH, define, no_double_backward
from ugnn_fast.ops._native_call import DTYPES, acc_dtype, coefficients, csr, native, result, storage


def _seeds(seeds):
    """Address and number of the seeds."""
    return (0, 1) if seeds is None else (seeds.data_ptr(), seeds.shape[0])


def _fake(graph, x, att_src, att_dst, slope, dropout, seeds, backend):
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    return y, x.new_empty(x.shape[:2], dtype=acc_dtype(x.dtype))


def _body(graph, x, att_src, att_dst, slope, dropout, seeds, backend):
    # contiguous copies must outlive the call
    x, att_src, att_dst = x.contiguous(), att_src.contiguous(), att_dst.contiguous()
    seeds = None if seeds is None else seeds.contiguous()
    y, lse = result(x.shape, x.dtype), result(x.shape[:2], acc_dtype(x.dtype))
    native.gat_aggregate_forward(
        csr(graph), DTYPES[x.dtype], torch.get_num_threads(), x.shape[1], x.shape[2], x.data_ptr(),
        att_src.data_ptr(), att_dst.data_ptr(), slope, dropout, *_seeds(seeds), y.data_ptr(), lse.data_ptr(),
    )  # fmt: skip
    return y, lse


def _backward_fake(graph, x, att_src, att_dst, lse, grad, slope, dropout, seeds, backend):
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, att_src, att_dst))


def _backward_body(graph, x, att_src, att_dst, lse, grad, slope, dropout, seeds, backend):
    x, att_src, att_dst, lse = x.contiguous(), att_src.contiguous(), att_dst.contiguous(), lse.contiguous()
    grad = grad.to(x.dtype).contiguous()
    seeds = None if seeds is None else seeds.contiguous()
    grads = grad_x, grad_src, grad_dst = tuple(result(t.shape, t.dtype) for t in (x, att_src, att_dst))
    native.gat_aggregate_backward(
        csr(graph), DTYPES[x.dtype], torch.get_num_threads(), x.shape[1], x.shape[2], x.data_ptr(),
        att_src.data_ptr(), att_dst.data_ptr(), lse.data_ptr(), slope, dropout, *_seeds(seeds), grad.data_ptr(),
        grad_x.data_ptr(), grad_src.data_ptr(), grad_dst.data_ptr(),
    )  # fmt: skip
    return grads


class _GatAggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernel, graph, x, att_src, att_dst, slope, dropout, seeds, backend):
        y, lse = kernel(graph, x, att_src, att_dst, slope, dropout, seeds, backend)
        ctx.graph, ctx.constants = graph, (slope, dropout, backend)
        ctx.save_for_backward(x, att_src, att_dst, lse, seeds)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, att_src, att_dst, lse, seeds = ctx.saved_tensors
        slope, dropout, backend = ctx.constants
        grads = gat_aggregate_backward(ctx.graph, x, att_src, att_dst, lse, grad, slope, dropout, seeds, backend)
        return None, None, *grads, None, None, None, None


def _autocast(dtype: torch.dtype, args: tuple) -> tuple:
    x = storage(dtype, args[0])
    return (x, *coefficients(x, *args[1:3]), *args[3:])


gat_aggregate = define(
    f"gat_aggregate({GRAPH}, Tensor x, Tensor att_src, Tensor att_dst, float slope, float dropout, Tensor? seeds,"
    " str backend) -> (Tensor y, Tensor lse)",
    _body,
    _fake,
    _GatAggregate,
    _autocast,
    first_only=True,
)
gat_aggregate_backward = define(
    f"gat_aggregate_backward({GRAPH}, Tensor x, Tensor att_src, Tensor att_dst, Tensor lse, Tensor grad, float slope,"
    " float dropout, Tensor? seeds, str backend) -> (Tensor grad_x, Tensor grad_src, Tensor grad_dst)",
    _backward_body,
    _backward_fake,
    no_double_backward("gat_aggregate"),
)

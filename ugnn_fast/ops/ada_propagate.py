"""ugnn::ada_propagate, K adaptive steps, and its backward."""

import torch
from torch import Tensor

from ugnn_fast import _memory
from ugnn_fast._library import GRAPH, below_autograd, define
from ugnn_fast.ops._native_call import (
    DTYPES,
    acc_dtype,
    by_replica,
    coefficients,
    csr,
    native,
    padded_width,
    pointer,
    replicas_and_width,
    storage,
)

# tables per step that each memory mode keeps for backward: (u, s)
KEPT = {"none": (0, 0), "recompute": (1, 0), "save": (1, 1)}


def _kept_sizes(x: Tensor, steps: int, memory: str) -> list:
    R, D = replicas_and_width(x)
    table = steps * x.shape[0] * R * padded_width(x.dtype, D)
    return [tables * table for tables in KEPT[memory]]


def _body(rowptr, col, weight, degree, order, hubs, x, c, c_value, steps, memory, backend, check):
    x = x.contiguous()
    R, D = replicas_and_width(x)
    N = x.shape[0]
    RC = 1 if c is None or c.dim() == 1 else R
    h = torch.empty_like(x)
    rows = None if c is None else by_replica(c)
    b = x.new_empty((N,) if rows is None else rows.shape, dtype=acc_dtype(x.dtype))
    u_size, s_size = _kept_sizes(x, steps, memory)
    _memory.require((u_size + s_size) * x.element_size(), x.device, f'ada_propagate with memory="{memory}"')
    u, s = x.new_empty(u_size), x.new_empty(s_size)
    bad = native.ada_propagate_forward(
        csr(rowptr, col, weight, degree, order, hubs), DTYPES[x.dtype], torch.get_num_threads(), R, D, steps,
        x.data_ptr(), pointer(rows), c_value, RC, check,
        h.data_ptr(), b.data_ptr(), u.data_ptr() if u_size else 0, s.data_ptr() if s_size else 0,
    )  # fmt: skip
    if bad >= 0:
        raise ValueError(f"c must be finite and >= 0 everywhere, got {c[bad].tolist()} at node {bad}")
    return h, b, u, s


def _fake(rowptr, col, weight, degree, order, hubs, x, c, c_value, steps, memory, backend, check):
    u_size, s_size = _kept_sizes(x, steps, memory)
    b = x.new_empty((x.shape[0],) if c is None else c.t().shape, dtype=acc_dtype(x.dtype))
    h = torch.empty_like(x, memory_format=torch.contiguous_format)
    return h, b, x.new_empty(u_size), x.new_empty(s_size)


def _backward_body(
    rowptr, col, weight, degree, order, hubs, grad_h, h, c, b, u, s, steps, backend, need_x, need_c
):
    grad_h = grad_h.contiguous()
    R, D = replicas_and_width(grad_h)
    rows = by_replica(c)
    # gradients are summed over the steps in the accumulation type
    grad_x = torch.empty_like(grad_h, dtype=b.dtype) if need_x else None
    grad_c = torch.empty_like(b) if need_c else None
    native.ada_propagate_backward(
        csr(rowptr, col, weight, degree, order, hubs), DTYPES[grad_h.dtype], torch.get_num_threads(), R, D, steps,
        grad_h.data_ptr(), h.data_ptr(), rows.data_ptr(), 1 if c.dim() == 1 else R, b.data_ptr(),
        u.data_ptr() if need_c else 0, s.data_ptr() if need_c and s.numel() else 0, pointer(grad_x), pointer(grad_c),
    )  # fmt: skip
    empty = grad_h.new_empty(0)
    return empty if grad_x is None else grad_x.to(grad_h.dtype), empty if grad_c is None else grad_c.t().contiguous()


def _backward_fake(
    rowptr, col, weight, degree, order, hubs, grad_h, h, c, b, u, s, steps, backend, need_x, need_c
):
    grad_x = torch.empty_like(grad_h, memory_format=torch.contiguous_format) if need_x else grad_h.new_empty(0)
    return grad_x, torch.empty_like(c, memory_format=torch.contiguous_format) if need_c else grad_h.new_empty(0)


class _AdaPropagate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *args):
        graph, (x, c, c_value, steps, memory, backend, check) = args[:6], args[6:]
        h, b, u, s = below_autograd(ada_propagate, *args)
        ctx.constants = c_value, steps, backend
        ctx.has_c = c is not None
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(b, u, s)
        # for a constant c backward is forward on the gradient
        ctx.save_for_backward(*graph, *((h, c, b, u, s) if ctx.has_c else ()))
        return h, b, u, s

    @staticmethod
    def backward(ctx, grad_h, *_):
        nothing = (None,) * 6
        c_value, steps, backend = ctx.constants
        if grad_h is None:
            return (*nothing, None, None, None, None, None, None, None)
        need_x, need_c = ctx.needs_input_grad[6:8]
        graph, kept = ctx.saved_tensors[:6], ctx.saved_tensors[6:]
        if not ctx.has_c:
            # W and b are the same on every connected node, so the K-step operator is its own transpose. (G5)
            grad_x = ada_propagate(*graph, grad_h, None, c_value, steps, "none", backend, False)[0]
            return (*nothing, grad_x, None, None, None, None, None, None)
        h, c, b, u, s = kept
        grad_x, grad_c = ada_propagate_backward(*graph, grad_h, h, c, b, u, s, steps, backend, need_x, need_c)
        return (*nothing, grad_x if need_x else None, grad_c if need_c else None, None, None, None, None, None)


class _NoDoubleBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *args):
        ctx.inputs = len(args)
        return below_autograd(ada_propagate_backward, *args)

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError(
            "ada_propagate: double backward is not offered for c given per node; use backend='reference'"
        )


def _autocast(dtype: torch.dtype, args: tuple) -> tuple:
    # x is stored in the low precision and summed in float32; c stays float32, it weights every sum
    x = storage(dtype, args[6])
    return (*args[:6], x, *coefficients(x, args[7]), *args[8:])


ada_propagate = define(
    f"ada_propagate({GRAPH}, Tensor x, Tensor? c, float c_value, int steps, str memory, str backend, bool check)"
    " -> (Tensor h, Tensor b, Tensor u, Tensor s)",
    _body,
    _fake,
    _AdaPropagate,
    _autocast,
)
ada_propagate_backward = define(
    f"ada_propagate_backward({GRAPH}, Tensor grad_h, Tensor h, Tensor c, Tensor b, Tensor u, Tensor s, int steps,"
    " str backend, bool need_x, bool need_c) -> (Tensor grad_x, Tensor grad_c)",
    _backward_body,
    _backward_fake,
    _NoDoubleBackward,
)

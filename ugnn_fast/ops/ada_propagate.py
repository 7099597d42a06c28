"""ugnn::ada_propagate, K adaptive steps, and its backward."""

import math

import torch
from torch import Tensor

from ugnn_fast import _memory
from ugnn_fast._library import GRAPH, define, no_double_backward
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
    result,
    result_as,
    reused_empty,
    storage,
    table_dtype,
)

# what each memory mode keeps for backward: u, or u and s, of the steps that `interval` says; all but "none" keep b
TABLES = {"none": 0, "step_size": 0, "checkpoint": 1, "recompute": 1, "save": 2}
# where u alone is kept: columns of a slice (kNarrowWidth of floats in csrc/include/ugnn/shape.h)
_NARROW = 16


def interval(steps: int, memory: str, backend: str, D: int) -> int:
    """Of so many steps one is kept, the others are computed again from it.

    The CPU kernels find s of a step and u of the next one with one gather, and hold both of all steps between two that
    were kept, for one slice of columns at a time: K / m tables and 2 m of the width of a slice, the least where m =
    sqrt(K D / (2 slice)). The kernels of GPUs sum s again in backward.
    """
    if memory not in ("recompute", "checkpoint") or steps == 0:
        return 1
    if backend == "cpu":
        least = max(1, min(round(math.sqrt(steps * max(D / _NARROW, 1) / 2)), steps - 1))
        return least if memory == "checkpoint" else min(least, 3)
    return math.isqrt(steps - 1) + 1 if memory == "checkpoint" else 1


def kept_tables(steps: int, memory: str, backend: str, D: int) -> int:
    """How many tables u are kept. The CPU kernels make the first one again from x, where they keep no s."""
    every = interval(steps, memory, backend, D)
    return max(steps - 1, 0) // every if backend == "cpu" and TABLES[memory] == 1 else -(-steps // every)


def kept_sizes(x: Tensor, c: Tensor | None, steps: int, memory: str, backend: str) -> tuple[int, int]:
    """Values of b, and of the tables u of all steps, in `kept`: counted in the accumulation type."""
    if c is None or memory == "none":
        return 0, 0
    b_size = c.numel()
    if not TABLES[memory]:
        return b_size, 0
    R, D = replicas_and_width(x)
    dtype = table_dtype(x.dtype, x.shape[0], D, backend)
    width = padded_width(dtype, D, narrow=TABLES[memory] == 1) if backend == "cpu" else D
    size = kept_tables(steps, memory, backend, D) * x.shape[0] * R * width
    return b_size, (size + 1) // 2 if dtype.itemsize == 2 else size


def _fake(graph, x, c, c_value, steps, memory, backend, check):
    b_size, table_size = kept_sizes(x, c, steps, memory, backend)
    kept = x.new_empty(b_size + TABLES[memory] * table_size, dtype=acc_dtype(x.dtype))
    return torch.empty_like(x, memory_format=torch.contiguous_format), kept


def _body(graph, x, c, c_value, steps, memory, backend, check):
    R, D = replicas_and_width(x)
    inside = x.to(table_dtype(x.dtype, x.shape[0], D, backend)).contiguous()
    rows = None if c is None else by_replica(c)
    h = result(x.shape, inside.dtype)
    b_size, table_size = kept_sizes(x, c, steps, memory, backend)
    dtype = acc_dtype(x.dtype)
    size = b_size + TABLES[memory] * table_size
    if size * dtype.itemsize >= _memory.SMALL:
        less = {"save": '"recompute" keeps less', "recompute": '"checkpoint" keeps less'}
        hint = f"; memory={less[memory]}" if memory in less else ""
        _memory.require(size * dtype.itemsize, x.device, f'ada_propagate with memory="{memory}"', hint)
    kept = reused_empty((size,), dtype)
    b, u, s = _addresses(kept, b_size, table_size, memory)
    bad = native.ada_propagate_forward(
        csr(graph), DTYPES[inside.dtype], torch.get_num_threads(), R, D, steps,
        inside.data_ptr(), pointer(rows), c_value, 1 if c is None or c.dim() == 1 else R, check,
        h.data_ptr(), b, u, interval(steps, memory, backend, D), s,
    )  # fmt: skip
    if bad >= 0:
        raise ValueError(f"c must be finite and >= 0 everywhere, got {c[bad].tolist()} at node {bad}")
    return result_as(h, x.dtype), kept


def _addresses(kept: Tensor, b_size: int, table_size: int, memory: str) -> tuple[int, int, int]:
    """Where b, the tables u and the tables s lie in `kept`; 0 for what is not there."""
    if not b_size:
        return 0, 0, 0
    # tables first: their rows shall not straddle cache lines
    start, table_bytes = kept.data_ptr(), table_size * kept.element_size()
    b = start + TABLES[memory] * table_bytes
    return b, start if table_size else 0, start + table_bytes if memory == "save" else 0


def _backward_body(graph, x, grad_h, h, c, kept, steps, memory, backend, need_x, need_c):
    R, D = replicas_and_width(grad_h)
    inside = table_dtype(grad_h.dtype, grad_h.shape[0], D, backend)
    grad, h = (t.to(inside).contiguous() for t in (grad_h, h))
    x = None if x is None else x.to(inside).contiguous()
    kept, rows = kept.contiguous(), by_replica(c)
    # gradients are summed over the steps in the accumulation type
    grad_x = result(grad_h.shape, kept.dtype) if need_x else None
    grad_c = torch.empty_like(rows) if need_c else None
    b_size, tables = c.numel(), TABLES[memory]
    b, u, s = _addresses(kept, b_size, (kept.numel() - b_size) // tables if tables else 0, memory)
    native.ada_propagate_backward(
        csr(graph), DTYPES[inside], torch.get_num_threads(), R, D, steps, pointer(x), grad.data_ptr(), h.data_ptr(),
        rows.data_ptr(), 1 if c.dim() == 1 else R, b, u, interval(steps, memory, backend, D), s,
        pointer(grad_x), pointer(grad_c),
    )  # fmt: skip
    return (
        grad_h.new_empty(0) if grad_x is None else result_as(grad_x, grad_h.dtype),
        grad_h.new_empty(0) if grad_c is None else by_replica(grad_c),
    )


def _backward_fake(graph, x, grad_h, h, c, kept, steps, memory, backend, need_x, need_c):
    def like(t: Tensor, needed: bool) -> Tensor:
        return torch.empty_like(t, memory_format=torch.contiguous_format) if needed else grad_h.new_empty(0)

    return like(grad_h, need_x), like(c, need_c)


class _AdaPropagate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernel, graph, x, c, c_value, steps, memory, backend, check):
        if memory == "none":
            memory = "save" if ctx.needs_input_grad[3] else "step_size"
        h, kept = kernel(graph, x, c, c_value, steps, memory, backend, check)
        ctx.constants = (graph, c_value, steps, memory, backend)
        # for a constant c backward is forward on the gradient
        if c is not None:
            # x where the first table is made again from it
            again = TABLES[memory] == 1 and backend == "cpu"
            ctx.save_for_backward(x if again else None, h, c, kept)
        return h

    @staticmethod
    def backward(ctx, grad_h):
        graph, c_value, steps, memory, backend = ctx.constants
        _, _, need_x, need_c = ctx.needs_input_grad[:4]
        saved = ctx.saved_tensors
        if not saved:
            # W and b are the same on every connected node, so the K-step operator is its own transpose. (G5)
            grad_x, grad_c = ada_propagate(graph, grad_h, None, c_value, steps, "none", backend, False), None
        else:
            x, *found = saved
            grad_x, grad_c = ada_propagate_backward(graph, x, grad_h, *found, steps, memory, backend, need_x, need_c)
        return None, None, grad_x if need_x else None, grad_c if need_c else None, None, None, None, None, None


def _autocast(dtype: torch.dtype, args: tuple) -> tuple:
    # x is stored in the low precision and summed in float32; c stays float32, it weights every sum
    x = storage(dtype, args[0])
    return (x, *coefficients(x, args[1]), *args[2:])


ada_propagate = define(
    f"ada_propagate({GRAPH}, Tensor x, Tensor? c, float c_value, int steps, str memory, str backend, bool check)"
    " -> (Tensor h, Tensor kept)",
    _body,
    _fake,
    _AdaPropagate,
    _autocast,
    first_only=True,
)
ada_propagate_backward = define(
    f"ada_propagate_backward({GRAPH}, Tensor? x, Tensor grad_h, Tensor h, Tensor c, Tensor kept, int steps, str memory,"
    " str backend, bool need_x, bool need_c) -> (Tensor grad_x, Tensor grad_c)",
    _backward_body,
    _backward_fake,
    no_double_backward("ada_propagate"),
)

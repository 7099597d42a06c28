"""K adaptive steps by the kernel step, and their backward by a kernel of its own."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ugnn_fast.device.step import ONE, ZERO, Stepper, column, per_node, rsqrt_degree
from ugnn_fast.ops._native_call import acc_dtype
from ugnn_fast.ops.ada_propagate import TABLES, interval, kept_sizes, kept_tables


def _kept_parts(
    kept: Tensor, like: Tensor, b_shape: Any, steps: int, memory: str, backend: str
) -> tuple[Tensor, Any, Any]:
    """b, and u and s [kept steps, ...] if they are there; views of what forward keeps."""
    count = kept_tables(steps, memory, backend, like.shape[-1])
    size = kept_sizes(like, kept.new_empty(b_shape), steps, memory, backend)[1]
    b = kept[-b_shape.numel() :].view(b_shape)
    tables: list[Any] = [
        kept[k * size : (k + 1) * size].view(like.dtype)[: count * like.numel()].view(count, *like.shape)
        for k in range(TABLES[memory])
    ]
    u, s = tables + [None] * (2 - len(tables))
    return b, u, s


def ada_propagate(graph, x, c, c_value, steps, memory, backend, check) -> tuple[Tensor, Tensor]:
    """Body of ugnn::ada_propagate."""
    x = x.contiguous()
    rho = rsqrt_degree(graph, acc_dtype(x.dtype), backend)
    b_size, table_size = kept_sizes(x, c, steps, memory, backend)
    kept = torch.empty(b_size + TABLES[memory] * table_size, dtype=rho.dtype, device=x.device)
    all_u = all_s = None
    if c is None:
        b = torch.where(rho > 0, rho.new_full((), 1 / (2 + 2 * c_value)), 0.5)
        weights, scale = ZERO, 2 * c_value
    else:
        c = c.contiguous()
        mean = torch.empty_like(c)
        Stepper(graph, c.reshape(len(c), -1), backend=backend).step(c, left=rho.square(), out=mean)
        b = torch.where(column(rho, c) > 0, 1 / (2 + c + mean), 0.5)
        if kept.numel():
            kept_b, all_u, all_s = _kept_parts(kept, x, c.shape, steps, memory, backend)
            b = kept_b.copy_(b)
        weights, scale = per_node(c), 1.0
    agg, skip = per_node(b * column(rho, b), scale), per_node(b, 2.0)
    stepper = Stepper(
        graph, x, c=weights, replicas=weights.replica_stride > 0, sums=1 if all_s is None else 2, backend=backend
    )  # fmt: skip
    every = interval(steps, memory, backend, stepper.D)
    turns = [torch.empty_like(x) for _ in range(min(steps, 2))] if all_u is None or every > 1 else []
    tables = [turns[k % 2] if all_u is None or k % every else all_u[k // every] for k in range(steps)]
    h = torch.empty_like(x)
    torch.mul(x, column(rho, x), out=tables[0])
    with stepper.together():
        for k in range(steps):
            last = k == steps - 1
            stepper.step(
                tables[k], right=rho, agg=agg, skip=skip, x=x,
                out=h if last else None, following=None if last else tables[k + 1],
                s=None if all_s is None else all_s[k],
            )  # fmt: skip
    return h, kept


def ada_propagate_backward(
    graph, x, grad_h, h, c, kept, steps, memory, backend, need_x, need_c
) -> tuple[Tensor, Tensor]:
    """Body of ugnn::ada_propagate_backward."""
    grad_h, c, kept = grad_h.contiguous(), c.contiguous(), kept.contiguous()
    rho = rsqrt_degree(graph, acc_dtype(grad_h.dtype), backend)
    b, all_u, all_s = _kept_parts(kept, grad_h, c.shape, steps, memory, backend)
    q = column(b, grad_h) * grad_h.to(b.dtype)
    if not need_c:
        return _gradient_of_x(graph, grad_h, q, c, b, rho, steps, backend).to(grad_h.dtype), grad_h.new_empty(0)
    weights = per_node(c)
    stepper = Stepper(
        graph, grad_h, c=weights, replicas=weights.replica_stride > 0, sums=2 if all_s is not None else 3,
        family="ada_propagate_backward", backend=backend,
    )  # fmt: skip
    N = len(c)
    sums = c.new_zeros((2, N, stepper.columns))
    grad_x = 2 * q
    tables = [torch.empty_like(grad_h) for _ in range(min(steps, 2))]
    torch.mul(q, column(rho, q), out=tables[0])
    # of the last step, with v as it is stored: docs/math.md says why
    from_v = torch.where(rho > 0, 1 / rho, 0)
    e = (column(from_v, q) * tables[0] * h).reshape(N, stepper.width // stepper.D, -1).sum(-1)
    every = interval(steps, memory, backend, stepper.D)
    for start, u in [(0, all_u)] if every == 1 else _again(graph, all_u, weights, b, rho, steps, every, backend):
        with stepper.together():
            for k in reversed(range(start, start + len(u))):
                done = steps - 1 - k
                stepper.launch(
                    "ada_propagate_bwd", tables[done % 2], *weights[:3], stepper.partial, rho, b,
                    u[k - start], None if all_s is None else all_s[k], grad_x,
                    None if k == 0 else tables[(done + 1) % 2], *sums,
                )  # fmt: skip
    of_c, of_e = sums.view(2, N, e.shape[1], -1).sum(-1)
    e = (e + column(from_v.square(), of_e) * of_e).reshape(c.shape)
    through_b = torch.empty_like(e)
    Stepper(graph, e.reshape(N, -1), backend=backend).step(e * column(rho.square(), e), out=through_b)
    # a node without neighbours has a constant b
    e = torch.where(column(rho, e) > 0, e, 0)
    grad_c = of_c.reshape(c.shape) - e - through_b
    return grad_x.to(grad_h.dtype) if need_x else grad_h.new_empty(0), grad_c


def _again(graph, kept, weights, b, rho, steps, every, backend) -> Iterator[tuple[int, list[Tensor]]]:
    """(first step, u of the steps up to the next one kept), the last ones first: u <- 2 b u_0 + b rho^2 y(u)."""
    stepper = Stepper(graph, kept[0], c=weights, replicas=weights.replica_stride > 0, backend=backend)
    agg, skip = per_node(b * column(rho.square(), b)), per_node(b, 2.0)
    between = [torch.empty_like(kept[0]) for _ in range(min(every, steps) - 1)]
    for start in reversed(range(0, steps, every)):
        u = [kept[start // every], *between][: steps - start]
        with stepper.together():
            for table, out in itertools.pairwise(u):
                stepper.step(table, agg=agg, skip=skip, x=kept[0], out=out)
        yield start, u


def _gradient_of_x(graph, grad_h, q, c, b, rho, steps, backend) -> Tensor:
    """The steps of the adjoint alone: G <- W b G, dX = 2 sum b G + G_0."""
    weights = per_node(c)
    stepper = Stepper(graph, grad_h, c=weights, replicas=weights.replica_stride > 0, backend=backend)
    total = 2 * q
    tables = [torch.empty_like(grad_h) for _ in range(min(steps, 2))]
    torch.mul(q, column(rho, q), out=tables[0])
    two = total.new_full((1,), 2.0)
    one = total.new_ones(1)
    with stepper.together():
        for k in range(steps):
            last = k == steps - 1
            stepper.step(
                tables[k % 2], left=rho, right=rho, agg=ONE if last else per_node(b), gamma=one if last else two,
                following=None if last else tables[(k + 1) % 2], total=total,
            )  # fmt: skip
    return total

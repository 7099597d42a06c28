"""K adaptive steps by step_kernel, and their backward by a kernel of its own."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from ugnn_fast.kernels._rows import hub_row, hub_sum, live_entries, of_all_slots, program_rows
from ugnn_fast.kernels.step import ONE, ZERO, Stepper, column, per_node, rsqrt_degree

from ugnn_fast.ops._native_call import acc_dtype
from ugnn_fast.ops.ada_propagate import TABLES, kept_sizes


@triton.jit
def ada_propagate_bwd_kernel(
    rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, num_pieces,
    col_ptr, weight_ptr, drop_seed, keep_from,
    table_ptr,                  # v, [N, width]
    c_ptr, c_row, c_replica,
    partial_ptr,                # [2 or 3, pieces, width]
    rho_ptr, b_ptr,             # [N], and like c
    u_ptr, s_ptr,               # what forward kept, [N, width]; s is None: gathered again
    grad_x_ptr, next_ptr,       # [N, width]; next is None in the first step
    grad_c_ptr, e_ptr,          # [N, programs of a row]
    D: tl.constexpr, width: tl.constexpr,
    DROP: tl.constexpr, SLOTS: tl.constexpr, BLOCK_D: tl.constexpr, HUBS: tl.constexpr,
):  # fmt: skip
    """Backward of one step, (G1) to (G3): with v = rho b G, t = sum_j a_ij v_j and y = sum_j a_ij (c_i + c_j) v_j

        dC += <v, s> + <u, t>,   dX += 2 b rho y and e += b <y, u> for the step before,   v <- rho^2 b y

    In the first step, which has none before it, dX += rho y. Programs as in step_kernel.
    """
    blocks = tl.cdiv(D, BLOCK_D)
    r = tl.program_id(1) // blocks
    offs_d = tl.program_id(1) % blocks * BLOCK_D + tl.arange(0, BLOCK_D)
    mask_d = offs_d < D
    offs = r * D + offs_d
    partial_size = num_pieces.to(tl.int64) * width
    y = tl.zeros((SLOTS, BLOCK_D), tl.float32)
    t = tl.zeros((SLOTS, BLOCK_D), tl.float32)
    s = tl.zeros((SLOTS, BLOCK_D), tl.float32)
    if HUBS:
        i, first_piece, end_piece, owner = hub_row(plan_ptr, num_rows, num_middle, SLOTS)
        y = hub_sum(partial_ptr, first_piece, end_piece, width, offs, mask_d, SLOTS, BLOCK_D)
        partial_ptr += partial_size
        t = hub_sum(partial_ptr, first_piece, end_piece, width, offs, mask_d, SLOTS, BLOCK_D)
        if s_ptr is None:
            partial_ptr += partial_size
            s = hub_sum(partial_ptr, first_piece, end_piece, width, offs, mask_d, SLOTS, BLOCK_D)
    else:
        i, first, end, stride, trips, owner, piece = program_rows(
            rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, SLOTS
        )
        row, first, end = i[:, None], first[:, None], end[:, None]  # see live_entries
        c_i = tl.load(c_ptr + row * c_row + r * c_replica)
        for k in range(trips):
            live, j, a = live_entries(first + k * stride, end, row, col_ptr, weight_ptr, drop_seed, keep_from, DROP)
            c_j = tl.load(c_ptr + j * c_row + r * c_replica, mask=live, other=0.0)
            at_j = j * width + offs[None, :]
            mask_j = live & mask_d[None, :]
            v_j = a * tl.load(table_ptr + at_j, mask=mask_j, other=0.0).to(tl.float32)
            t += v_j
            y += (c_i + c_j) * v_j
            if s_ptr is None:
                s += a * tl.load(u_ptr + at_j, mask=mask_j, other=0.0).to(tl.float32)
        if stride > 1:
            y = of_all_slots(y, SLOTS, BLOCK_D)
            t = of_all_slots(t, SLOTS, BLOCK_D)
            if s_ptr is None:
                s = of_all_slots(s, SLOTS, BLOCK_D)
        if piece >= 0:
            at_piece = piece.to(tl.int64) * width + offs[None, :] + tl.zeros((SLOTS, 1), tl.int64)
            mask_piece = owner[:, None] & mask_d[None, :]
            tl.store(partial_ptr + at_piece, y, mask=mask_piece)
            tl.store(partial_ptr + partial_size + at_piece, t, mask=mask_piece)
            if s_ptr is None:
                tl.store(partial_ptr + 2 * partial_size + at_piece, s, mask=mask_piece)
            owner = owner & False

    mask = owner[:, None] & mask_d[None, :]
    at = i[:, None] * width + offs[None, :]
    rho = tl.load(rho_ptr + i, mask=owner, other=0.0)[:, None]
    b = tl.load(b_ptr + i * c_row + r * c_replica, mask=owner, other=0.0)
    u = tl.load(u_ptr + at, mask=mask, other=0.0).to(tl.float32)
    v = tl.load(table_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if s_ptr is not None:
        s = tl.load(s_ptr + at, mask=mask, other=0.0).to(tl.float32)
    grad_x = tl.load(grad_x_ptr + at, mask=mask, other=0.0)
    at_row = i * tl.num_programs(1) + tl.program_id(1)
    grad_c = tl.load(grad_c_ptr + at_row, mask=owner, other=0.0)
    tl.store(grad_c_ptr + at_row, grad_c + tl.sum(v * s + u * t, 1), mask=owner)
    if next_ptr is None:
        tl.store(grad_x_ptr + at, grad_x + rho * y, mask=mask)
    else:
        e = tl.load(e_ptr + at_row, mask=owner, other=0.0)
        tl.store(e_ptr + at_row, e + b * tl.sum(y * u, 1), mask=owner)
        q = b[:, None] * rho * y
        tl.store(grad_x_ptr + at, grad_x + 2 * q, mask=mask)
        tl.store(next_ptr + at, (rho * q).to(next_ptr.dtype.element_ty), mask=mask)


def _kept_parts(kept: Tensor, like: Tensor, b_shape: Any, steps: int, memory: str) -> tuple[Tensor, Any, Any]:
    """b, and u and s [K, ...] if they are there; views of what forward keeps."""
    size = kept_sizes(like, kept.new_empty(b_shape), steps, memory, "triton")[1]
    b = kept[-b_shape.numel() :].view(b_shape)
    tables = [
        kept[k * size : (k + 1) * size].view(like.dtype)[: steps * like.numel()].view(steps, *like.shape)
        for k in range(TABLES[memory])
    ]
    return b, *tables, *[None] * (2 - len(tables))


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
            kept_b, all_u, all_s = _kept_parts(kept, x, c.shape, steps, memory)
            b = kept_b.copy_(b)
        weights, scale = per_node(c), 1.0
    agg, skip = per_node(b * column(rho, b), scale), per_node(b, 2.0)
    stepper = Stepper(
        graph, x, c=weights, replicas=weights.replica_stride > 0, sums=1 if all_s is None else 2, backend=backend
    )  # fmt: skip
    tables = all_u if all_u is not None else [torch.empty_like(x) for _ in range(min(steps, 2))]
    h = torch.empty_like(x)
    torch.mul(x, column(rho, x), out=tables[0])
    with stepper.together():
        for k in range(steps):
            last = k == steps - 1
            stepper.step(
                tables[k % len(tables)], right=rho, agg=agg, skip=skip, x=x,
                out=h if last else None, following=None if last else tables[(k + 1) % len(tables)],
                s=None if all_s is None else all_s[k],
            )  # fmt: skip
    return h, kept


def ada_propagate_backward(graph, grad_h, h, c, kept, steps, memory, backend, need_x, need_c) -> tuple[Tensor, Tensor]:
    """Body of ugnn::ada_propagate_backward."""
    grad_h, c, kept = grad_h.contiguous(), c.contiguous(), kept.contiguous()
    rho = rsqrt_degree(graph, acc_dtype(grad_h.dtype), backend)
    b, all_u, all_s = _kept_parts(kept, grad_h, c.shape, steps, memory)
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
    e = (q * h).reshape(N, stepper.width // stepper.D, -1).sum(-1)  # of the last step
    grad_x = 2 * q
    tables = [torch.empty_like(grad_h) for _ in range(min(steps, 2))]
    torch.mul(q, column(rho, q), out=tables[0])
    with stepper.together():
        for k in reversed(range(steps)):
            done = steps - 1 - k
            stepper.launch(
                ada_propagate_bwd_kernel, tables[done % 2], *weights[:3], stepper.partial, rho, b,
                all_u[k], None if all_s is None else all_s[k], grad_x, None if k == 0 else tables[(done + 1) % 2],
                *sums,
            )  # fmt: skip
    of_c, of_e = sums.view(2, N, e.shape[1], -1).sum(-1)
    e = (e + of_e).reshape(c.shape)
    through_b = torch.empty_like(e)
    Stepper(graph, e.reshape(N, -1), backend=backend).step(e * column(rho.square(), e), out=through_b)
    # a node without neighbours has a constant b
    e = torch.where(column(rho, e) > 0, e, 0)
    grad_c = of_c.reshape(c.shape) - e - through_b
    return grad_x.to(grad_h.dtype) if need_x else grad_h.new_empty(0), grad_c


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

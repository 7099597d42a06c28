"""Backward of an adaptive step; forward is step_kernel."""

import triton
import triton.language as tl
from ugnn_fast.kernels._rows import hub_row, hub_sum, live_entries, of_all_slots, program_rows


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

        dC += <v, s> + <u, t>,   v <- rho^2 b y,   dX += 2 b rho y and e += <v, u> for the step before

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
        q = b[:, None] * rho * y
        tl.store(grad_x_ptr + at, grad_x + 2 * q, mask=mask)
        v = (rho * q).to(next_ptr.dtype.element_ty)
        tl.store(next_ptr + at, v, mask=mask)
        # with v as it is stored: docs/math.md says why
        e = tl.load(e_ptr + at_row, mask=owner, other=0.0)
        tl.store(e_ptr + at_row, e + tl.sum(v.to(tl.float32) * u, 1), mask=owner)

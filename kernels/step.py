"""One step: sums of neighbours' rows with an epilogue, the aggregation behind propagate, ada_propagate and solve."""

import triton
import triton.language as tl
from ugnn_fast.kernels._rows import coefficient, hub_row, hub_sum, live_entries, of_all_slots, program_rows


@triton.jit
def entry_weight(at, live, c_i, j, r, c_ptr, c_row, c_replica, edge_ptr, reverse_ptr):
    """W_ij of the entries `at`, [SLOTS, 1]: 1, c_i + c_j, or e_ij (e_ji with reverse); 0 where not live."""
    w = tl.where(live, 1.0, 0.0)
    if c_ptr is not None:
        w *= c_i + tl.load(c_ptr + j * c_row + r * c_replica, mask=live, other=0.0)
    if edge_ptr is not None:
        if reverse_ptr is not None:
            at = tl.load(reverse_ptr + at, mask=live, other=0)
        w *= tl.load(edge_ptr + at, mask=live, other=0.0)
    return w


@triton.jit
def step_kernel(
    rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, num_pieces,
    col_ptr, weight_ptr, drop_seed, keep_from,
    table_ptr,                                      # u, [N, width]
    c_ptr, c_row, c_replica, edge_ptr, reverse_ptr,
    partial_ptr,                                    # [1 or 2, pieces, width]
    left_ptr, right_ptr,                            # [N]
    agg_ptr, agg_row, agg_replica, agg_scale,
    skip_ptr, skip_row, skip_replica, skip_scale,
    keep_ptr, keep_row, keep_replica, keep_scale,
    prev_ptr, prev_row, prev_replica, prev_scale,
    x_ptr, h_ptr, before_ptr,                       # X, H_k, H_{k-1}, [N, width]
    lo, hi, gamma_ptr,
    out_ptr, next_ptr, s_ptr, total_ptr,            # H_{k+1}, right H_{k+1}, sum a_ij u_j, sum gamma H
    D: tl.constexpr, width: tl.constexpr,
    DROP: tl.constexpr, CLAMP: tl.constexpr,
    SLOTS: tl.constexpr, BLOCK_D: tl.constexpr, HUBS: tl.constexpr,
):  # fmt: skip
    """H_{k+1} = clamp(keep H_k + agg left sum_j a_ij W_ij u_j + skip X + prev H_{k-1}), u = right H_k.

    Program (p, q) has the rows of program_rows and the columns of block q: of replica r = q // blocks, if W or a
    coefficient has replicas, else of all R D columns. A pointer that is None stands for what is not there. Sums are
    float32, and float64 for a float64 table: the residuals of solve.
    """
    ACC: tl.constexpr = tl.float64 if table_ptr.dtype.element_ty == tl.float64 else tl.float32
    blocks = tl.cdiv(D, BLOCK_D)
    r = tl.program_id(1) // blocks
    offs_d = tl.program_id(1) % blocks * BLOCK_D + tl.arange(0, BLOCK_D)
    mask_d = offs_d < D
    offs = r * D + offs_d
    partial_size = num_pieces.to(tl.int64) * width
    acc = tl.zeros((SLOTS, BLOCK_D), ACC)
    plain = tl.zeros((SLOTS, BLOCK_D), ACC)
    if HUBS:
        i, first_piece, end_piece, owner = hub_row(plan_ptr, num_rows, num_middle, SLOTS)
        acc = hub_sum(partial_ptr, first_piece, end_piece, width, offs, mask_d, SLOTS, BLOCK_D)
        if s_ptr is not None:
            plain = hub_sum(partial_ptr + partial_size, first_piece, end_piece, width, offs, mask_d, SLOTS, BLOCK_D)
    else:
        i, first, end, stride, trips, owner, piece = program_rows(
            rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, SLOTS
        )
        row, first, end = i[:, None], first[:, None], end[:, None]  # see live_entries
        c_i = 0.0
        if c_ptr is not None:
            c_i = tl.load(c_ptr + row * c_row + r * c_replica)
        for k in range(trips):
            at = first + k * stride
            live, j, a = live_entries(at, end, row, col_ptr, weight_ptr, drop_seed, keep_from, DROP)
            u = tl.load(table_ptr + j * width + offs[None, :], mask=live & mask_d[None, :], other=0.0).to(ACC)
            if weight_ptr is not None:
                u *= a
            acc += entry_weight(at, live, c_i, j, r, c_ptr, c_row, c_replica, edge_ptr, reverse_ptr) * u
            if s_ptr is not None:
                plain += u
        if stride > 1:
            acc = of_all_slots(acc, SLOTS, BLOCK_D)
            if s_ptr is not None:
                plain = of_all_slots(plain, SLOTS, BLOCK_D)
        if piece >= 0:
            at_piece = piece.to(tl.int64) * width + offs[None, :] + tl.zeros((SLOTS, 1), tl.int64)
            mask_piece = owner[:, None] & mask_d[None, :]
            tl.store(partial_ptr + at_piece, acc, mask=mask_piece)
            if s_ptr is not None:
                tl.store(partial_ptr + partial_size + at_piece, plain, mask=mask_piece)
            owner = owner & False

    mask = owner[:, None] & mask_d[None, :]
    at = i[:, None] * width + offs[None, :]
    if left_ptr is not None:
        acc *= tl.load(left_ptr + i, mask=owner, other=0.0)[:, None]
    h = coefficient(agg_ptr, agg_scale, i, r, agg_row, agg_replica, owner) * acc
    if x_ptr is not None:
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(ACC)
        h += coefficient(skip_ptr, skip_scale, i, r, skip_row, skip_replica, owner) * x
    if h_ptr is not None:
        now = tl.load(h_ptr + at, mask=mask, other=0.0).to(ACC)
        h += coefficient(keep_ptr, keep_scale, i, r, keep_row, keep_replica, owner) * now
    if before_ptr is not None:
        before = tl.load(before_ptr + at, mask=mask, other=0.0).to(ACC)
        h += coefficient(prev_ptr, prev_scale, i, r, prev_row, prev_replica, owner) * before
    if CLAMP:
        # comparisons, so that NaN stays
        h = tl.where(h < lo, lo, tl.where(h > hi, hi, h))
    if s_ptr is not None:
        tl.store(s_ptr + at, plain.to(s_ptr.dtype.element_ty), mask=mask)
    if out_ptr is not None:
        tl.store(out_ptr + at, h.to(out_ptr.dtype.element_ty), mask=mask)
    if total_ptr is not None:
        total = tl.load(total_ptr + at, mask=mask, other=0.0)
        tl.store(total_ptr + at, total + tl.load(gamma_ptr) * h, mask=mask)
    if next_ptr is not None:
        h *= tl.load(right_ptr + i, mask=owner, other=0.0)[:, None]
        tl.store(next_ptr + at, h.to(next_ptr.dtype.element_ty), mask=mask)

"""The degrees of a graph, or of what DropEdge leaves of it."""

import triton
import triton.language as tl
from ugnn_fast.kernels._rows import hub_row, hub_sum, kept_edge, of_all_slots, program_rows


@triton.jit
def kept_degree_kernel(
    rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, num_pieces,
    col_ptr, weight_ptr, drop_seed, keep_from,
    partial_ptr,  # [pieces]
    degree_ptr,   # [N]
    DROP: tl.constexpr, SLOTS: tl.constexpr, BLOCK_D: tl.constexpr, HUBS: tl.constexpr,
):  # fmt: skip
    """d_i = sum_j a_ij over the kept entries, added in float64; rows as program_rows has them, BLOCK_D is 1."""
    column = tl.arange(0, BLOCK_D)
    if HUBS:
        i, first_piece, end_piece, owner = hub_row(plan_ptr, num_rows, num_middle, SLOTS)
        acc = hub_sum(partial_ptr, first_piece, end_piece, 1, column, column < 1, SLOTS, BLOCK_D)
    else:
        i, first, end, stride, trips, owner, piece = program_rows(
            rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, SLOTS
        )
        acc = tl.zeros((SLOTS, BLOCK_D), tl.float64)
        for k in range(trips):
            at = first + k * stride
            live = at < end
            if DROP:
                live &= kept_edge(i, tl.load(col_ptr + at, mask=live, other=0), drop_seed, keep_from)
            a = tl.where(live, 1.0, 0.0)
            if weight_ptr is not None:
                a = tl.load(weight_ptr + at, mask=live, other=0.0)
            acc += a.to(tl.float64)[:, None]
        if stride > 1:
            acc = of_all_slots(acc, SLOTS, BLOCK_D)
        if piece >= 0:
            tl.store(partial_ptr + piece + tl.zeros((SLOTS, BLOCK_D), tl.int32), acc, mask=owner[:, None])
            owner = owner & False
    tl.store(degree_ptr + i[:, None] + column[None, :], acc.to(degree_ptr.dtype.element_ty), mask=owner[:, None])

"""The share of a node's labelled neighbours that carry its label."""

import triton
import triton.language as tl
from ugnn_fast.kernels._rows import hub_row, hub_sum, kept_edge, of_all_slots, program_rows


@triton.jit
def local_smoothness_kernel(
    rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, num_pieces,
    col_ptr, drop_seed, keep_from,
    labels_ptr,   # [N]
    partial_ptr,  # [2, pieces]
    out_ptr,      # [N]
    DROP: tl.constexpr, SLOTS: tl.constexpr, BLOCK_D: tl.constexpr, HUBS: tl.constexpr,
):  # fmt: skip
    """out_i = #{j != i: label_j = label_i} / #{j != i: label_j >= 0}, nan if that is 0 or label_i < 0.

    Rows as program_rows has them, BLOCK_D is 1.
    """
    column = tl.arange(0, BLOCK_D)
    if HUBS:
        i, first_piece, end_piece, owner = hub_row(plan_ptr, num_rows, num_middle, SLOTS)
        same = hub_sum(partial_ptr, first_piece, end_piece, 1, column, column < 1, SLOTS, BLOCK_D)
        known = hub_sum(partial_ptr + num_pieces, first_piece, end_piece, 1, column, column < 1, SLOTS, BLOCK_D)
    else:
        i, first, end, stride, trips, owner, piece = program_rows(
            rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, SLOTS
        )
        same = tl.zeros((SLOTS, BLOCK_D), tl.int32)
        known = tl.zeros((SLOTS, BLOCK_D), tl.int32)
        label_i = tl.load(labels_ptr + i)
        for k in range(trips):
            at = first + k * stride
            live = at < end
            j = tl.load(col_ptr + at, mask=live, other=0).to(tl.int64)
            live &= i != j
            if DROP:
                live &= kept_edge(i, j, drop_seed, keep_from)
            label_j = tl.load(labels_ptr + j, mask=live, other=-1)
            known += (label_j >= 0).to(tl.int32)[:, None]
            same += ((label_j >= 0) & (label_j == label_i)).to(tl.int32)[:, None]
        if stride > 1:
            same = of_all_slots(same, SLOTS, BLOCK_D)
            known = of_all_slots(known, SLOTS, BLOCK_D)
        if piece >= 0:
            at_piece = piece + tl.zeros((SLOTS, BLOCK_D), tl.int32)
            tl.store(partial_ptr + at_piece, same, mask=owner[:, None])
            tl.store(partial_ptr + num_pieces + at_piece, known, mask=owner[:, None])
            owner = owner & False
    # in float64, as a quotient of float32 is not rounded right on every device
    share = (same.to(tl.float64) / tl.maximum(known, 1).to(tl.float64)).to(tl.float32)
    labelled = tl.load(labels_ptr + i, mask=owner, other=-1) >= 0
    share = tl.where(labelled[:, None] & (known > 0), share, float("nan"))
    tl.store(out_ptr + i[:, None] + column[None, :], share, mask=owner[:, None])

"""dropout(x) @ weight + bias for sparse x, and its backward, which is its transpose."""

import triton
import triton.language as tl
from ugnn_fast.kernels._rows import FEATURES, hub_row, hub_sum, of_all_slots, program_rows


@triton.jit
def kept_feature(row, column, seed, keep_from):
    """Which places of x dropout leaves."""
    row, column = row.to(tl.uint32), column.to(tl.uint32)
    zero = row * 0
    word, _, _, _ = tl.philox(seed, row, column, zero, zero + FEATURES)
    return word.to(tl.int64) >= keep_from


@triton.jit
def sparse_linear_kernel(
    rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, num_pieces,
    col_ptr, value_ptr,                     # [E]
    seed_ptr, keep_from, scale,             # [R], 1 / (1 - q); None: no dropout
    table_ptr, table_replica,               # [M, D] of each replica
    bias_ptr,                               # [R, D]
    partial_ptr,                            # [1, pieces, R D]
    out_ptr, out_replica,                   # [rows, D] of each replica
    table_row: tl.constexpr, out_row: tl.constexpr, D: tl.constexpr, width: tl.constexpr,
    TRANSPOSED: tl.constexpr, SLOTS: tl.constexpr, BLOCK_D: tl.constexpr, HUBS: tl.constexpr,
):  # fmt: skip
    """out_ir = bias_r + sum_j m_r(i, j) x_ij table_jr, with m_r(j, i) if these are the rows of the transpose of x.

    Program (p, q) has the rows of program_rows and, of replica r = q // blocks, the columns of block q mod blocks.
    """
    blocks = tl.cdiv(D, BLOCK_D)
    r = (tl.program_id(1) // blocks).to(tl.int64)
    offs_d = tl.program_id(1) % blocks * BLOCK_D + tl.arange(0, BLOCK_D)
    mask_d = offs_d < D
    offs = r * D + offs_d
    acc = tl.zeros((SLOTS, BLOCK_D), tl.float32)
    if HUBS:
        i, first_piece, end_piece, owner = hub_row(plan_ptr, num_rows, num_middle, SLOTS)
        i, owner = i[:, None], owner[:, None]
        acc = hub_sum(partial_ptr, first_piece, end_piece, width, offs, mask_d, SLOTS, BLOCK_D)
    else:
        i, first, end, stride, trips, owner, piece = program_rows(
            rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, SLOTS
        )
        # see live_entries
        i, first, end, owner = i[:, None], first[:, None], end[:, None], owner[:, None]
        table_ptr += r * table_replica
        if seed_ptr is not None:
            seed = tl.load(seed_ptr + r)
        for k in range(trips):
            at = first + k * stride
            live = at < end
            j = tl.load(col_ptr + at, mask=live, other=0).to(tl.int64)
            if seed_ptr is not None:
                if TRANSPOSED:
                    live &= kept_feature(j, i, seed, keep_from)
                else:
                    live &= kept_feature(i, j, seed, keep_from)
            # what is dropped is not read: 0 times infinity would be NaN
            x = tl.load(value_ptr + at, mask=live, other=0.0).to(tl.float32)
            w = tl.load(table_ptr + j * table_row + offs_d[None, :], mask=live & mask_d[None, :], other=0.0)
            acc += x * w.to(tl.float32)
        if stride > 1:
            acc = of_all_slots(acc, SLOTS, BLOCK_D)
        if piece >= 0:
            at_piece = piece.to(tl.int64) * width + offs[None, :] + tl.zeros((SLOTS, 1), tl.int64)
            tl.store(partial_ptr + at_piece, acc, mask=owner & mask_d[None, :])
            owner = owner & False
    if seed_ptr is not None:
        acc *= scale
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + offs, mask=mask_d, other=0.0).to(tl.float32)[None, :]
    at_out = i * out_row + (r * out_replica + offs_d)[None, :]
    tl.store(out_ptr + at_out, acc.to(out_ptr.dtype.element_ty), mask=owner & mask_d[None, :])

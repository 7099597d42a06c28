"""The graph part of the denoising energy, for every node."""

import triton
import triton.language as tl
from ugnn_fast.kernels._rows import hub_row, hub_sum, live_entries, of_all_slots, program_rows


@triton.jit
def edge_energy_kernel(
    rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, num_pieces,
    col_ptr, weight_ptr, drop_seed, keep_from,
    f_ptr,        # [N, width]
    rho_ptr,      # [N]
    partial_ptr,  # [pieces, width]
    out_ptr,      # [N, programs of a row]
    D, width,
    DROP: tl.constexpr, SLOTS: tl.constexpr, BLOCK_D: tl.constexpr, HUBS: tl.constexpr,
):  # fmt: skip
    """sum_j a_ij |rho_i f_i - rho_j f_j|^2 over a block of columns of one replica; programs as in step_kernel."""
    blocks = tl.cdiv(D, BLOCK_D)
    offs_d = tl.program_id(1) % blocks * BLOCK_D + tl.arange(0, BLOCK_D)
    mask_d = offs_d < D
    offs = tl.program_id(1) // blocks * D + offs_d
    if HUBS:
        i, first_piece, end_piece, owner = hub_row(plan_ptr, num_rows, num_middle, SLOTS)
        acc = hub_sum(partial_ptr, first_piece, end_piece, width, offs, mask_d, SLOTS, BLOCK_D)
    else:
        i, first, end, stride, trips, owner, piece = program_rows(
            rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, SLOTS
        )
        acc = tl.zeros((SLOTS, BLOCK_D), tl.float32)
        row, first, end = i[:, None], first[:, None], end[:, None]  # see live_entries
        f_i = tl.load(f_ptr + row * width + offs[None, :], mask=mask_d[None, :], other=0.0).to(tl.float32)
        u_i = tl.load(rho_ptr + row) * f_i
        for k in range(trips):
            live, j, a = live_entries(first + k * stride, end, row, col_ptr, weight_ptr, drop_seed, keep_from, DROP)
            rho_j = tl.load(rho_ptr + j, mask=live, other=0.0)
            f_j = tl.load(f_ptr + j * width + offs[None, :], mask=live & mask_d[None, :], other=0.0).to(tl.float32)
            off = tl.where(live, u_i - rho_j * f_j, 0.0)
            acc += a * off * off
        if stride > 1:
            acc = of_all_slots(acc, SLOTS, BLOCK_D)
        if piece >= 0:
            at_piece = piece.to(tl.int64) * width + offs[None, :] + tl.zeros((SLOTS, 1), tl.int64)
            tl.store(partial_ptr + at_piece, acc, mask=owner[:, None] & mask_d[None, :])
            owner = owner & False
    tl.store(out_ptr + i * tl.num_programs(1) + tl.program_id(1), tl.sum(acc, 1), mask=owner)

"""<v_i, u_j> for every stored entry (i, j)."""

import triton
import triton.language as tl
from ugnn_fast.kernels._rows import kept_edge, program_rows


@triton.jit
def edge_dot_kernel(
    rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, num_pieces,
    col_ptr, weight_ptr, drop_seed, keep_from,
    v_ptr, u_ptr,  # [N, width]
    out_ptr,       # [E]
    D: tl.constexpr, width: tl.constexpr,
    DROP: tl.constexpr, SLOTS: tl.constexpr, BLOCK_D: tl.constexpr, HUBS: tl.constexpr,
):  # fmt: skip
    """out_ij = sum_d v_id u_jd, 0 for a dropped edge; one program for all columns of the entries of program_rows."""
    if not HUBS:
        i, first, end, stride, trips, _, _ = program_rows(rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, SLOTS)
        offs_d = tl.arange(0, BLOCK_D)
        at_v = i[:, None] * width + offs_d[None, :]
        if D <= BLOCK_D:
            # v_i is read once
            v = tl.load(v_ptr + at_v, mask=(first < end)[:, None] & (offs_d < D)[None, :], other=0.0).to(tl.float32)
        for k in range(trips):
            at = first + k * stride
            stored = at < end
            j = tl.load(col_ptr + at, mask=stored, other=0)
            live = stored
            if DROP:
                live = stored & kept_edge(i, j, drop_seed, keep_from)
            dot = tl.zeros((SLOTS,), tl.float32)
            for start in range(0, D, BLOCK_D):
                mask = live[:, None] & (start + offs_d < D)[None, :]
                if D > BLOCK_D:
                    v = tl.load(v_ptr + at_v + start, mask=mask, other=0.0).to(tl.float32)
                at_u = j.to(tl.int64)[:, None] * width + start + offs_d[None, :]
                dot += tl.sum(v * tl.load(u_ptr + at_u, mask=mask, other=0.0).to(tl.float32), 1)
            tl.store(out_ptr + at, dot.to(out_ptr.dtype.element_ty), mask=stored)

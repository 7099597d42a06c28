"""dropout(x) as a dense matrix, for sparse x."""

import triton
import triton.language as tl
from ugnn_fast.kernels.sparse_linear import kept_feature


@triton.jit
def sparse_dense_kernel(
    rowptr_ptr, col_ptr, value_ptr,  # [N + 1], [E], [E]
    seed_ptr, keep_from, scale,      # [1], 1 / (1 - q); None: no dropout
    out_ptr, columns,                # [N, columns]
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out_ij = m(i, j) x_ij for the stored entries of row i, a program for each; out holds zeros elsewhere."""
    i = tl.program_id(0).to(tl.int64)
    first = tl.load(rowptr_ptr + i)
    end = tl.load(rowptr_ptr + i + 1)
    if seed_ptr is not None:
        seed = tl.load(seed_ptr)
    for k in range(tl.cdiv((end - first).to(tl.int32), BLOCK)):
        at = first + k * BLOCK + tl.arange(0, BLOCK)
        live = at < end
        j = tl.load(col_ptr + at, mask=live, other=0).to(tl.int64)
        x = tl.load(value_ptr + at, mask=live, other=0.0).to(tl.float32)
        if seed_ptr is not None:
            live &= kept_feature(i + 0 * j, j, seed, keep_from)
            x *= scale
        tl.store(out_ptr + i * columns + j, x.to(out_ptr.dtype.element_ty), mask=live)

"""Mean and variance over neighbours, also as the adaptive weight that is made of them, and the variance's backward."""

import triton
import triton.language as tl
from ugnn_fast.kernels._rows import hub_row, hub_sum, live_entries, of_all_slots, program_rows


@triton.jit
def positive(weight):
    """A divisor for sums of this weight: 0, that of no neighbours, becomes 1."""
    return tl.where(weight > 0, weight, 1.0)


@triton.jit
def neighbor_values(
    at, end, i, col_ptr, weight_ptr, drop_seed, keep_from, x_ptr, width, offs, mask_d, DROP: tl.constexpr
):  # fmt: skip
    """(a_ij, x_j) of the entries `at`, [SLOTS, 1] and [SLOTS, BLOCK_D]; 0 where there is none."""
    live, j, a = live_entries(at, end, i, col_ptr, weight_ptr, drop_seed, keep_from, DROP)
    x = tl.load(x_ptr + j * width + offs[None, :], mask=live & mask_d[None, :], other=0.0)
    return a, x.to(tl.float32)


@triton.jit
def hub_stat(
    partial_ptr, partial_size, first, end, stride, offs, mask_d,
    VAR: tl.constexpr, SLOTS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """(mean, variance) of a hub from the tables centre, weight, residual and squares of its pieces [first, end)."""
    total = tl.zeros((SLOTS, BLOCK_D), tl.float32)
    weight = tl.zeros((SLOTS, BLOCK_D), tl.float32)
    var = tl.zeros((SLOTS, BLOCK_D), tl.float32)
    trips = tl.cdiv(end - first, SLOTS)
    for k in range(trips):
        piece = first + k * SLOTS + tl.arange(0, SLOTS)
        at = partial_ptr + piece.to(tl.int64)[:, None] * stride + offs[None, :]
        mask = (piece < end)[:, None] & mask_d[None, :]
        w = tl.load(at + partial_size, mask=mask, other=0.0)
        total += w * tl.load(at, mask=mask, other=0.0)
        weight += w
    weight = positive(of_all_slots(weight, SLOTS, BLOCK_D))
    mean = of_all_slots(total, SLOTS, BLOCK_D) / weight
    if VAR:
        for k in range(trips):
            piece = first + k * SLOTS + tl.arange(0, SLOTS)
            at = partial_ptr + piece.to(tl.int64)[:, None] * stride + offs[None, :]
            mask = (piece < end)[:, None] & mask_d[None, :]
            off = tl.load(at, mask=mask, other=0.0) - mean
            w = tl.load(at + partial_size, mask=mask, other=0.0)
            residual = tl.load(at + 2 * partial_size, mask=mask, other=0.0)
            squares = tl.load(at + 3 * partial_size, mask=mask, other=0.0)
            var += squares + (2 * residual + w * off) * off
        var = of_all_slots(var, SLOTS, BLOCK_D) / weight
    return mean, var


@triton.jit
def neighbor_stat_kernel(
    rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, num_pieces,
    col_ptr, weight_ptr, drop_seed, keep_from,
    x_ptr,              # [N, width]
    partial_ptr,        # [4, pieces, width]
    var_ptr, mean_ptr,  # [N, width]
    w_ptr, bias_ptr,    # of ada_c: [width], [programs of a row]
    s, c_ptr,           # [N, programs of a row]
    D: tl.constexpr, width: tl.constexpr,
    VAR: tl.constexpr, DROP: tl.constexpr, SLOTS: tl.constexpr, BLOCK_D: tl.constexpr, HUBS: tl.constexpr,
):  # fmt: skip
    """mean_i = sum_j a_ij x_j / d_i,   var_i = sum_j a_ij (x_j - mean_i)^2 / d_i,   c_i = s sigmoid(<stat_i, w> + bias)

    Program (p, q) has the rows of program_rows and the D columns from q D on, block by block: those of a replica, if
    there is a c to be made of them. d_i is summed beside the mean. A piece of a hub does not know the mean m of its
    row. It takes squares about a centre of its own, the rounded mean z of the piece, and leaves z, its weight w, the
    residual e = sum a (x - z) and q = sum a (x - z)^2, so that sum a (x - m)^2 = q + (2 e + w (z - m)) (z - m).
    """
    first_d = tl.program_id(1) * D
    end_d = tl.minimum(first_d + D, width)
    partial_size = num_pieces.to(tl.int64) * width
    if HUBS:
        i, first_piece, end_piece, owner = hub_row(plan_ptr, num_rows, num_middle, SLOTS)
        whole = owner[:, None]
    else:
        i, first, end, stride, trips, owner, piece = program_rows(
            rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, SLOTS
        )
        first, end, owner = first[:, None], end[:, None], owner[:, None]
        whole = owner & (piece < 0)
    i = i[:, None]
    dot = tl.zeros((SLOTS, 1), tl.float32)
    for start in range(first_d, end_d, BLOCK_D):
        offs = start + tl.arange(0, BLOCK_D)
        mask_d = offs < end_d
        if HUBS:
            mean, var = hub_stat(
                partial_ptr, partial_size, first_piece, end_piece, width, offs, mask_d, VAR, SLOTS, BLOCK_D
            )
        else:
            mean = tl.zeros((SLOTS, BLOCK_D), tl.float32)
            weight = tl.zeros((SLOTS, 1), tl.float32)
            for k in range(trips):
                at = first + k * stride
                a, x = neighbor_values(
                    at, end, i, col_ptr, weight_ptr, drop_seed, keep_from, x_ptr, width, offs, mask_d, DROP
                )
                mean += a * x
                weight += a
            if stride > 1:
                mean = of_all_slots(mean, SLOTS, BLOCK_D)
                weight = of_all_slots(weight, SLOTS, 1)
            mean /= positive(weight)
            residual = tl.zeros((SLOTS, BLOCK_D), tl.float32)
            var = tl.zeros((SLOTS, BLOCK_D), tl.float32)
            if VAR:
                for k in range(trips):
                    at = first + k * stride
                    a, x = neighbor_values(
                        at, end, i, col_ptr, weight_ptr, drop_seed, keep_from, x_ptr, width, offs, mask_d, DROP
                    )
                    off = x - mean
                    residual += a * off
                    var += a * off * off
                if stride > 1:
                    var = of_all_slots(var, SLOTS, BLOCK_D)
            if piece >= 0:
                at_piece = partial_ptr + piece.to(tl.int64) * width + offs[None, :] + tl.zeros((SLOTS, 1), tl.int64)
                mask_piece = owner & mask_d[None, :]
                tl.store(at_piece, mean, mask=mask_piece)
                tl.store(at_piece + partial_size, tl.broadcast_to(weight, (SLOTS, BLOCK_D)), mask=mask_piece)
                if VAR:
                    residual = of_all_slots(residual, SLOTS, BLOCK_D)
                    tl.store(at_piece + 2 * partial_size, residual, mask=mask_piece)
                    tl.store(at_piece + 3 * partial_size, var, mask=mask_piece)
            var /= positive(weight)
        at_i = i * width + offs[None, :]
        mask = whole & mask_d[None, :]
        if mean_ptr is not None:
            tl.store(mean_ptr + at_i, mean, mask=mask)
        if var_ptr is not None:
            tl.store(var_ptr + at_i, var.to(var_ptr.dtype.element_ty), mask=mask)
        if c_ptr is not None:
            w = tl.load(w_ptr + offs, mask=mask_d, other=0.0)[None, :]
            if VAR:
                dot += tl.sum(var * w, 1, keep_dims=True)
            else:
                dot += tl.sum(mean * w, 1, keep_dims=True)
    if c_ptr is not None:
        if bias_ptr is not None:
            dot += tl.load(bias_ptr + tl.program_id(1))
        # by one lane of the block of columns: a store [SLOTS, 1] would want rows and sums in a layout of its own
        at_c = i * tl.num_programs(1) + tl.program_id(1) + tl.zeros((1, BLOCK_D), tl.int64)
        c = tl.broadcast_to(s * tl.sigmoid(dot), (SLOTS, BLOCK_D))
        tl.store(c_ptr + at_c, c, mask=whole & (tl.arange(0, BLOCK_D) == 0)[None, :])


@triton.jit
def neighbor_var_bwd_kernel(
    rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, num_pieces,
    col_ptr, weight_ptr, drop_seed, keep_from,
    degree_ptr,                     # [N]
    x_ptr, mean_ptr, grad_ptr,      # [N, width]
    partial_ptr,                    # [1, pieces, width]
    grad_x_ptr,                     # [N, width]
    D: tl.constexpr, width: tl.constexpr,
    DROP: tl.constexpr, SLOTS: tl.constexpr, BLOCK_D: tl.constexpr, HUBS: tl.constexpr,
):  # fmt: skip
    """dx_i = 2 sum_j a_ij / d_j g_j (x_i - mean_j), the sum over the row of i as the matrix is its own transpose.

    Program (p, q) has the rows of program_rows and the columns of block q.
    """
    offs = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    mask_d = offs < D
    acc = tl.zeros((SLOTS, BLOCK_D), tl.float32)
    if HUBS:
        i, first_piece, end_piece, owner = hub_row(plan_ptr, num_rows, num_middle, SLOTS)
        i, owner = i[:, None], owner[:, None]
        acc = hub_sum(partial_ptr, first_piece, end_piece, width, offs, mask_d, SLOTS, BLOCK_D)
    else:
        i, first, end, stride, trips, owner, piece = program_rows(
            rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, SLOTS
        )
        i, first, end, owner = i[:, None], first[:, None], end[:, None], owner[:, None]
        x = tl.load(x_ptr + i * width + offs[None, :], mask=mask_d[None, :], other=0.0).to(tl.float32)
        for k in range(trips):
            live, j, a = live_entries(first + k * stride, end, i, col_ptr, weight_ptr, drop_seed, keep_from, DROP)
            a /= tl.load(degree_ptr + j, mask=live, other=1.0)
            at_j = j * width + offs[None, :]
            mask_j = live & mask_d[None, :]
            grad = tl.load(grad_ptr + at_j, mask=mask_j, other=0.0).to(tl.float32)
            mean = tl.load(mean_ptr + at_j, mask=mask_j, other=0.0)
            acc += a * grad * (x - mean)
        if stride > 1:
            acc = of_all_slots(acc, SLOTS, BLOCK_D)
        if piece >= 0:
            at_piece = piece.to(tl.int64) * width + offs[None, :] + tl.zeros((SLOTS, 1), tl.int64)
            tl.store(partial_ptr + at_piece, acc, mask=owner & mask_d[None, :])
            owner = owner & False
    tl.store(
        grad_x_ptr + i * width + offs[None, :], (2 * acc).to(grad_x_ptr.dtype.element_ty), mask=owner & mask_d[None, :]
    )

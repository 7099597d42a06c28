"""GAT's aggregation, docs/math.md (A1)-(A3): one pass over the rows forward, two backward, nothing kept per entry.

Program (p, q) has the rows of program_rows and, by q, one, two or four heads of one replica that share their random
words, or a part of one wide head. Tiles are [SLOTS, HEADS] for scores and [SLOTS, HEADS, BLOCK_D] for rows. D comes as
a number of vectors of VEC values, so that the compiler knows what divides it: it loads whole vectors, and fewer threads
compute the same weights, as each one does that has columns of a head.
"""

import triton
import triton.language as tl
from ugnn_fast.kernels._rows import ATTENTION, hub_row, hub_sum, kept_edge, of_all_slots, program_rows

LOWEST: tl.constexpr = tl.constexpr(-3.4028234e38)  # of float32


@triton.jit
def program_heads(replica_heads, D, HEADS: tl.constexpr, BLOCK_D: tl.constexpr):
    """(part, r, first, h, mask_h, first_h, offs, mask_c) of a program.

    part: which part of its heads, 0 unless D > BLOCK_D. r: replica. first: number of its first head within
    the replica. h: its heads, [HEADS]. first_h: mask_h where part is 0. offs: its columns of [H * D], [HEADS, BLOCK_D].
    """
    parts = tl.cdiv(D, BLOCK_D)
    blocks = tl.cdiv(replica_heads, HEADS)
    part = tl.program_id(1) % parts
    first = tl.program_id(1) // parts % blocks * HEADS
    r = tl.program_id(1) // parts // blocks
    own = first + tl.arange(0, HEADS)
    h = r * replica_heads + own
    offs_d = part * BLOCK_D + tl.arange(0, BLOCK_D)
    offs = h[:, None] * D + offs_d[None, :]
    mask_h = own < replica_heads
    # not mask_h & (part == 0): the interpreter makes no mask of a block and a scalar
    first_h = own < tl.where(part == 0, replica_heads, 0)
    return part, r, first, h, mask_h, first_h, offs, mask_h[:, None] & (offs_d < D)[None, :]


@triton.jit
def leaky_relu(z, slope):
    return tl.where(z > 0, z, slope * z)


@triton.jit
def masked(alpha, i, j, first, r, seeds_ptr, mask_from, HEADS: tl.constexpr):
    """mask_ij alpha_ij, [SLOTS, HEADS]; alpha without seeds."""
    w = alpha
    if seeds_ptr is not None:
        zero = (i * 0).to(tl.uint32)
        seed, quad = tl.load(seeds_ptr + r), zero + (first // 4).to(tl.uint32)
        w0, w1, w2, w3 = tl.philox(seed, i.to(tl.uint32), j.to(tl.uint32), quad, zero + ATTENTION)
        number = ((first + tl.arange(0, HEADS)) % 4)[None, :]
        word = tl.where(number == 0, w0[:, None], w1[:, None])
        word = tl.where(number == 2, w2[:, None], word)
        word = tl.where(number == 3, w3[:, None], word)
        w = tl.where(word.to(tl.int64) >= mask_from, alpha, 0.0)
    return w


@triton.jit
def raised(top, e, live):
    """(new top, exp(top - new top), exp(e - new top)), for e that join a sum of exp(. - top); [SLOTS, HEADS].

    top is the largest e so far, -inf before the first one. Comparisons, not maximum: a NaN goes into the sum alone.
    """
    e_or_lowest = tl.where(live, tl.where(e > LOWEST, e, LOWEST), float("-inf"))
    new = tl.where(e_or_lowest > top, e_or_lowest, top)
    return new, tl.where(new == top, 1.0, tl.exp(top - new)), tl.where(live, tl.exp(e - new), 0.0)


@triton.jit
def rows_of_all_slots(acc, SLOTS: tl.constexpr, HEADS: tl.constexpr, BLOCK_D: tl.constexpr):
    """of_all_slots for rows."""
    return tl.broadcast_to(tl.sum(acc, 0)[None, :, :], (SLOTS, HEADS, BLOCK_D))


@triton.jit
def slots_together(top, total, acc, SLOTS: tl.constexpr, HEADS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Sums of all slots relative to the largest top, in every slot."""
    largest = tl.broadcast_to(tl.max(top, 0)[None, :], (SLOTS, HEADS))
    scale = tl.where(top > float("-inf"), tl.exp(top - largest), 0.0)
    acc *= scale[:, :, None]
    return largest, of_all_slots(total * scale, SLOTS, HEADS), rows_of_all_slots(acc, SLOTS, HEADS, BLOCK_D)


@triton.jit
def gat_aggregate_fwd_kernel(
    rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, num_pieces,
    col_ptr, drop_seed, keep_from, seeds_ptr, mask_from, mask_scale, slope, H, replica_heads, vectors,
    x_ptr, src_ptr, dst_ptr,        # [N, H, D], [N, H], [N, H]
    partial_ptr, partial_head_ptr,  # [1, pieces, H D], [2, pieces, H]: top and sum
    y_ptr, lse_ptr,                 # [N, H, D], [N, H]
    DROP: tl.constexpr, HEADS: tl.constexpr, VEC: tl.constexpr,
    SLOTS: tl.constexpr, BLOCK_D: tl.constexpr, HUBS: tl.constexpr,
):  # fmt: skip
    """y_i = sum_j w_ij x_j and lse_i, (A1), in one pass: sums are relative to the largest e so far."""
    D = vectors * VEC
    _, r, first_head, h, mask_h, first_h, offs, mask_c = program_heads(replica_heads, D, HEADS, BLOCK_D)
    width = H * D
    partial_size = num_pieces.to(tl.int64) * H
    top = tl.full((SLOTS, HEADS), float("-inf"), tl.float32)
    total = tl.zeros((SLOTS, HEADS), tl.float32)
    acc = tl.zeros((SLOTS, HEADS, BLOCK_D), tl.float32)
    if HUBS:
        i, first_piece, end_piece, owner = hub_row(plan_ptr, num_rows, num_middle, SLOTS)
        for k in range(tl.cdiv(end_piece - first_piece, SLOTS)):
            n = (first_piece + k * SLOTS + tl.arange(0, SLOTS)).to(tl.int64)
            there = n < end_piece
            mask_n = there[:, None] & mask_h[None, :]
            at_n = n[:, None] * H + h[None, :]
            e = tl.load(partial_head_ptr + at_n, mask=mask_n, other=float("-inf"))
            top, scale, power = raised(top, e, e > float("-inf"))
            total = total * scale + power * tl.load(partial_head_ptr + partial_size + at_n, mask=mask_n, other=0.0)
            at_n = n[:, None, None] * width + offs[None, :, :]
            sums = tl.load(partial_ptr + at_n, mask=there[:, None, None] & mask_c[None, :, :], other=0.0)
            acc = acc * scale[:, :, None] + power[:, :, None] * sums
        top, total, acc = slots_together(top, total, acc, SLOTS, HEADS, BLOCK_D)
    else:
        i, first, end, stride, trips, owner, piece = program_rows(
            rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, SLOTS
        )
        length = (end - first).to(tl.int32)
        mask_i = (length > 0)[:, None] & mask_h[None, :]
        dst = tl.load(dst_ptr + i[:, None] * H + h[None, :], mask=mask_i, other=0.0)
        for k in range(trips):
            j = tl.load(col_ptr + first + k * stride, mask=k * stride < length, other=-1).to(tl.int64)
            if DROP:
                j = tl.where(kept_edge(i, j, drop_seed, keep_from), j, -1)
            live = j[:, None] >= 0
            at_x, mask_x = j[:, None, None] * width + offs[None, :, :], live[:, :, None] & mask_c[None, :, :]
            x = tl.load(x_ptr + at_x, mask=mask_x, other=0.0).to(tl.float32)
            src = tl.load(src_ptr + j[:, None] * H + h[None, :], mask=live & mask_h[None, :], other=0.0)
            top, scale, power = raised(top, leaky_relu(dst + src, slope), live)
            total = total * scale + power
            w = masked(power, i, j, first_head, r, seeds_ptr, mask_from, HEADS)
            acc = acc * scale[:, :, None] + w[:, :, None] * x
        if stride > 1:
            top, total, acc = slots_together(top, total, acc, SLOTS, HEADS, BLOCK_D)
        if piece >= 0:
            n = piece.to(tl.int64) + tl.zeros((SLOTS, 1), tl.int64)
            at_n = n[:, :, None] * width + offs[None, :, :]
            tl.store(partial_ptr + at_n, acc, mask=owner[:, None, None] & mask_c[None, :, :])
            mask_n = owner[:, None] & first_h[None, :]
            tl.store(partial_head_ptr + n * H + h[None, :], top, mask=mask_n)
            tl.store(partial_head_ptr + partial_size + n * H + h[None, :], total, mask=mask_n)
            owner = owner & False

    some = top > float("-inf")  # a row without entries gives 0
    y = acc * tl.where(some, mask_scale / total, 0.0)[:, :, None]
    at = i[:, None, None] * width + offs[None, :, :]
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=owner[:, None, None] & mask_c[None, :, :])
    lse = tl.where(some, top + tl.log(total), 0.0)
    tl.store(lse_ptr + i[:, None] * H + h[None, :], lse, mask=owner[:, None] & first_h[None, :])


@triton.jit
def gat_aggregate_bwd_kernel(
    rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, num_pieces,
    col_ptr, drop_seed, keep_from, seeds_ptr, mask_from, mask_scale, slope, H, replica_heads, vectors,
    table_ptr, own_ptr,             # neighbours' rows and those of the nodes, [N, H, D]: x and g, SENDS: g and x
    src_ptr, dst_ptr, lse_ptr,      # [N, H]
    stats_ptr,                      # dst, lse, t, [N, H, 3]; for SENDS
    partial_ptr, partial_head_ptr,  # [2, pieces, H D], [1 or 2, pieces, H]
    grad_x_ptr,                     # [N, H, D], of SENDS
    t_ptr, grad_score_ptr,          # [parts, N, H], to be summed over parts; t is not of SENDS
    SENDS: tl.constexpr,
    DROP: tl.constexpr, HEADS: tl.constexpr, VEC: tl.constexpr,
    SLOTS: tl.constexpr, BLOCK_D: tl.constexpr, HUBS: tl.constexpr,
):  # fmt: skip
    """Rows as receivers: t_i = <g_i, y_i> and dL/dl_i, (A2). SENDS: rows as senders, dL/dx_j and dL/dr_j, (A3).

    Sums over entries with z > 0 and the others are kept apart, so that what cancels is not rounded first: the gradient
    of a score on which nothing depends, as of a single neighbour, is 0.
    """
    D = vectors * VEC
    part, r, first_head, h, mask_h, first_h, offs, mask_c = program_heads(replica_heads, D, HEADS, BLOCK_D)
    width = H * D
    partial_size = num_pieces.to(tl.int64) * width
    partial_head_size = num_pieces.to(tl.int64) * H
    acc = tl.zeros((SLOTS, HEADS, BLOCK_D), tl.float32)  # sum of mask alpha times the neighbour's row where z > 0
    acc_negative = tl.zeros((SLOTS, HEADS, BLOCK_D), tl.float32)  # and elsewhere
    total = tl.zeros((SLOTS, HEADS), tl.float32)  # a+; SENDS: sum e' alpha t
    total_negative = tl.zeros((SLOTS, HEADS), tl.float32)  # 1 - a+, not of SENDS
    if HUBS:
        i, first_piece, end_piece, owner = hub_row(plan_ptr, num_rows, num_middle, SLOTS)
        total = hub_sum(partial_head_ptr, first_piece, end_piece, H, h, mask_h, SLOTS, HEADS)
        if not SENDS:
            partial_head_ptr += partial_head_size
            total_negative = hub_sum(partial_head_ptr, first_piece, end_piece, H, h, mask_h, SLOTS, HEADS)
        for k in range(tl.cdiv(end_piece - first_piece, SLOTS)):
            n = (first_piece + k * SLOTS + tl.arange(0, SLOTS)).to(tl.int64)
            at_n = n[:, None, None] * width + offs[None, :, :]
            mask_n = (n < end_piece)[:, None, None] & mask_c[None, :, :]
            acc += tl.load(partial_ptr + at_n, mask=mask_n, other=0.0)
            acc_negative += tl.load(partial_ptr + partial_size + at_n, mask=mask_n, other=0.0)
        acc = rows_of_all_slots(acc, SLOTS, HEADS, BLOCK_D)
        acc_negative = rows_of_all_slots(acc_negative, SLOTS, HEADS, BLOCK_D)
    else:
        i, first, end, stride, trips, owner, piece = program_rows(
            rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, SLOTS
        )
        at_i = i[:, None] * H + h[None, :]
        length = (end - first).to(tl.int32)
        mask_i = (length > 0)[:, None] & mask_h[None, :]
        if SENDS:
            score = tl.load(src_ptr + at_i, mask=mask_i, other=0.0)
        else:
            score = tl.load(dst_ptr + at_i, mask=mask_i, other=0.0)
            lse = tl.load(lse_ptr + at_i, mask=mask_i, other=0.0)
        for k in range(trips):
            j = tl.load(col_ptr + first + k * stride, mask=k * stride < length, other=-1).to(tl.int64)
            if DROP:
                j = tl.where(kept_edge(i, j, drop_seed, keep_from), j, -1)
            live = j[:, None] >= 0
            at_row, mask_row = j[:, None, None] * width + offs[None, :, :], live[:, :, None] & mask_c[None, :, :]
            row = tl.load(table_ptr + at_row, mask=mask_row, other=0.0).to(tl.float32)
            at_j = j[:, None] * H + h[None, :]
            mask_j = live & mask_h[None, :]
            if SENDS:
                z = score + tl.load(stats_ptr + 3 * at_j, mask=mask_j, other=0.0)
                lse = tl.load(stats_ptr + 3 * at_j + 1, mask=mask_j, other=0.0)
                t = tl.load(stats_ptr + 3 * at_j + 2, mask=mask_j, other=0.0)
            else:
                z = score + tl.load(src_ptr + at_j, mask=mask_j, other=0.0)
            alpha = tl.where(live, tl.exp(leaky_relu(z, slope) - lse), 0.0)
            if SENDS:
                w = masked(alpha, j, i, first_head, r, seeds_ptr, mask_from, HEADS)
                total += tl.where(z > 0, alpha, slope * alpha) * t
            else:
                w = masked(alpha, i, j, first_head, r, seeds_ptr, mask_from, HEADS)
                total += tl.where(z > 0, alpha, 0.0)
                total_negative += tl.where(z > 0, 0.0, alpha)
            acc += tl.where(z > 0, w, 0.0)[:, :, None] * row
            acc_negative += tl.where(z > 0, 0.0, w)[:, :, None] * row
        if stride > 1:
            acc = rows_of_all_slots(acc, SLOTS, HEADS, BLOCK_D)
            acc_negative = rows_of_all_slots(acc_negative, SLOTS, HEADS, BLOCK_D)
            total = of_all_slots(total, SLOTS, HEADS)
            if not SENDS:
                total_negative = of_all_slots(total_negative, SLOTS, HEADS)
        if piece >= 0:
            n = piece.to(tl.int64) + tl.zeros((SLOTS, 1), tl.int64)
            mask_n = owner[:, None, None] & mask_c[None, :, :]
            at_n = n[:, :, None] * width + offs[None, :, :]
            tl.store(partial_ptr + at_n, acc, mask=mask_n)
            tl.store(partial_ptr + partial_size + at_n, acc_negative, mask=mask_n)
            mask_n = owner[:, None] & first_h[None, :]
            tl.store(partial_head_ptr + n * H + h[None, :], total, mask=mask_n)
            if not SENDS:
                tl.store(partial_head_ptr + partial_head_size + n * H + h[None, :], total_negative, mask=mask_n)
            owner = owner & False

    mask = owner[:, None, None] & mask_c[None, :, :]
    at = i[:, None, None] * width + offs[None, :, :]
    row = tl.load(own_ptr + at, mask=mask, other=0.0).to(tl.float32)
    dot = mask_scale * tl.sum(row * acc, 2)
    dot_negative = mask_scale * tl.sum(row * acc_negative, 2)
    at_part = (part.to(tl.int64) * num_rows + i)[:, None] * H + h[None, :]
    mask_head = owner[:, None] & mask_h[None, :]
    if SENDS:
        grad_x = mask_scale * (acc + acc_negative)
        tl.store(grad_x_ptr + at, grad_x.to(grad_x_ptr.dtype.element_ty), mask=mask)
        grad = dot + slope * dot_negative - tl.where(first_h[None, :], total, 0.0)
    else:
        # alpha as rebuilt from a rounded lse sums up to nearly 1; t, subtracted from its terms, shall be their mean
        of_all = total + total_negative
        tl.store(t_ptr + at_part, (dot + dot_negative) / tl.where(of_all == 0, 1.0, of_all), mask=mask_head)
        grad = (1 - slope) * (dot * total_negative - dot_negative * total)
    tl.store(grad_score_ptr + at_part, grad, mask=mask_head)

"""What the kernels share: which rows a program has, and which entries are kept.

A program has SLOTS slots. In one for short rows (ugnn_fast._row_plan) every slot has a row; in one for a longer row, or
a piece of a hub, the slots take its entries in turn and their sums are added at the end. The order of all additions is
fixed by the plan and by SLOTS; there are no atomics. A hub takes two launches: its pieces run beside the other rows and
leave their sums in memory, then the programs of HUBS add those up.
"""

import triton
import triton.language as tl

from ugnn_fast import _row_plan

PIECE: tl.constexpr = tl.constexpr(_row_plan.PIECE)
DROP_EDGE: tl.constexpr = tl.constexpr(0)  # streams of random numbers, see ugnn_fast._random
ATTENTION: tl.constexpr = tl.constexpr(1)
FEATURES: tl.constexpr = tl.constexpr(2)


@triton.jit
def program_rows(rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, SLOTS: tl.constexpr):
    """(i, first, end, stride, trips, owner, piece) of a program that is not one for hubs.

    Slot t sums the entries first + k stride < end of row i, k < trips; all [SLOTS] but stride and trips. owner: the
    slots that hold a result in the end. piece: the number of the piece whose sums these are, -1 for whole rows.
    """
    t = tl.arange(0, SLOTS)
    pid = tl.program_id(0)
    short_programs = tl.cdiv(num_short, SLOTS)
    piece = tl.full((), -1, tl.int32)
    if pid < short_programs:
        owner = pid * SLOTS + t < num_short
        i = tl.load(plan_ptr + pid * SLOTS + t, mask=owner, other=0).to(tl.int64)
        # the length from the plan: half the bytes of the next row pointer
        lengths = tl.load(plan_ptr + num_rows + pid * SLOTS + t, mask=owner, other=0)
        first = tl.load(rowptr_ptr + i, mask=owner, other=0)
        end = first + lengths
        stride = tl.full((), 1, tl.int32)
        trips = tl.max(lengths, 0)
    else:
        owner = t == 0
        position = num_short + pid - short_programs
        skipped = tl.full((), 0, tl.int32)
        if position >= num_middle:
            piece = position - num_middle
            hub = tl.load(plan_ptr + 2 * num_rows + (num_rows - num_middle + 1) + piece)
            position = num_middle + hub
            skipped = (piece - tl.load(plan_ptr + 2 * num_rows + hub)) * PIECE
        row = tl.load(plan_ptr + position).to(tl.int64)
        # a row that is not cut has at most PIECE entries
        length = tl.minimum(tl.load(plan_ptr + num_rows + position) - skipped, PIECE)
        start = tl.load(rowptr_ptr + row) + skipped
        i = tl.zeros((SLOTS,), tl.int64) + row
        first = start + t
        end = tl.zeros((SLOTS,), tl.int64) + start + length
        stride = tl.full((), SLOTS, tl.int32)
        trips = tl.cdiv(length, SLOTS)
    return i, first, end, stride, trips, owner, piece


@triton.jit
def hub_row(plan_ptr, num_rows, num_middle, SLOTS: tl.constexpr):
    """(i, first piece, piece behind the last, owner) of a program for a hub; i and owner are [SLOTS]."""
    hub = tl.program_id(0)
    i = tl.zeros((SLOTS,), tl.int64) + tl.load(plan_ptr + num_middle + hub)
    pieces_ptr = plan_ptr + 2 * num_rows + hub
    return i, tl.load(pieces_ptr), tl.load(pieces_ptr + 1), tl.arange(0, SLOTS) == 0


@triton.jit
def hub_sum(partial_ptr, first, end, stride, offs, mask_d, SLOTS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Sum of the rows [first, end) of a table of partial sums, one in each slot at a time; [SLOTS, BLOCK_D]."""
    acc = tl.zeros((SLOTS, BLOCK_D), partial_ptr.dtype.element_ty)
    for k in range(tl.cdiv(end - first, SLOTS)):
        piece = first + k * SLOTS + tl.arange(0, SLOTS)
        at = piece.to(tl.int64)[:, None] * stride + offs[None, :]
        acc += tl.load(partial_ptr + at, mask=(piece < end)[:, None] & mask_d[None, :], other=0)
    return of_all_slots(acc, SLOTS, BLOCK_D)


@triton.jit
def of_all_slots(acc, SLOTS: tl.constexpr, BLOCK_D: tl.constexpr):
    """The sum over slots, in every slot."""
    return tl.broadcast_to(tl.sum(acc, 0)[None, :], (SLOTS, BLOCK_D))


@triton.jit
def kept_edge(i, j, drop_seed, keep_from):
    """Which edges DropEdge leaves: loops, and a share on which both directions agree."""
    j = j.to(tl.int64)
    low, high = tl.minimum(i, j).to(tl.uint32), tl.maximum(i, j).to(tl.uint32)
    zero = low * 0
    word, _, _, _ = tl.philox(drop_seed, low, high, zero, zero + DROP_EDGE)
    return (word.to(tl.int64) >= keep_from) | (i == j)


@triton.jit
def live_entries(at, end, i, col_ptr, weight_ptr, drop_seed, keep_from, DROP: tl.constexpr):
    """(live, j, a_ij) of the entries `at` of row i: live are those before `end` that are kept, a is 0 for others.

    All are [SLOTS, 1]. Values [SLOTS] that a loop expands to [SLOTS, 1] make the layout pass of Triton 3.7 fail for
    some block sizes, so rows of program_rows are expanded once, before the loop.
    """
    live = at < end
    j = tl.load(col_ptr + at, mask=live, other=0).to(tl.int64)
    if DROP:
        live &= kept_edge(i, j, drop_seed, keep_from)
    a = tl.where(live, 1.0, 0.0)
    if weight_ptr is not None:
        a = tl.load(weight_ptr + at, mask=live, other=0.0)
    return live, j, a


@triton.jit
def coefficient(ptr, scale, i, r, row_stride, replica_stride, mask):
    """scale * values[i, r], or scale without values; [SLOTS, 1]."""
    if ptr is None:
        return scale
    else:  # code behind an if would be compiled for both
        return (scale * tl.load(ptr + i * row_stride + r * replica_stride, mask=mask, other=0.0))[:, None]

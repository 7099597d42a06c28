"""What the kernels share: which rows a program has, which entries are kept, the launch of a kernel over all rows.

A program has SLOTS slots. In one for short rows (ugnn_fast._row_plan) every slot has a row; in one for a longer row, or
a piece of a hub, the slots take its entries in turn and their sums are added at the end. The order of all additions is
fixed by the plan and by SLOTS; there are no atomics. A hub takes two launches: its pieces run beside the other rows and
leave their sums in memory, then the programs of HUBS add those up.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from ugnn_fast.kernels._launch import Config, on_device

from ugnn_fast import _row_plan
from ugnn_fast.device import _cuda

# Told a limit, NVIDIA's assembler uses what a kernel needs; by itself it sometimes spills two registers to fit one more
# block on a processor. AMD's has no such option.
REGISTERS = {} if torch.version.hip else {"maxnreg": 168}
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


class Rows:
    """The rows of a planned matrix: grids, and scratch for the sums of hub pieces."""

    def __init__(self, rowptr: Tensor, plan: Tensor, sizes: list[int], backend: str = "triton"):
        self.rowptr, self.plan, self.sizes = rowptr, plan, sizes
        self.num_rows = rowptr.shape[0] - 1
        self.num_hubs = self.num_rows - sizes[1]
        self.batch = None if backend == "triton" else _cuda.Batch(_cuda.launcher(backend))
        self.collecting = False

    def partial(self, tables: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Scratch for `tables` sums of `width` columns of every piece, [tables, pieces, width].

        A kernel needs the pointer even if there is no hub: the compiler does not know that.
        """
        return torch.empty((tables, self.sizes[2], width), dtype=dtype, device=self.rowptr.device)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Launches inside it are of one kernel, which a backend may run as one."""
        self.collecting = True
        with self.batch or contextlib.nullcontext():
            yield
        self.collecting = False

    def launch(self, kernel: Any, columns: int, config: Config | None, *args: Any, **constants: Any) -> None:
        """kernel(rowptr, plan, sizes..., *args) for all rows, `columns` programs to each group of rows.

        The CUDA kernel of this name needs no config.
        """
        if not columns:
            return
        short, middle, pieces = self.sizes
        first = (self.rowptr, self.plan, self.num_rows, short, middle, pieces)
        if self.batch is not None:
            # DROP is what keep_from says
            flags = [value for name, value in constants.items() if name != "DROP"]
            with contextlib.nullcontext() if self.collecting else self.batch:
                self.batch.add(kernel.__name__.removesuffix("_kernel"), (*first, *args, *flags))
            return
        assert config is not None
        programs = triton.cdiv(short, config.slots) + middle - short + pieces
        shape = {"SLOTS": config.slots, "BLOCK_D": config.block, "num_warps": config.warps, **REGISTERS}
        with on_device(self.rowptr.device.index):
            if programs:
                kernel[(programs, columns)](*first, *args, **constants, **shape, HUBS=False)
            if self.num_hubs:
                kernel[(self.num_hubs, columns)](*first, *args, **constants, **shape, HUBS=True)

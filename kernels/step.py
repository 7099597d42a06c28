"""One step: sums of neighbours' rows with an epilogue, the aggregation behind propagate, ada_propagate and solve."""

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from ugnn_fast.kernels._launch import Config, row_config
from ugnn_fast.kernels._rows import (
    Rows,
    coefficient,
    hub_row,
    hub_sum,
    live_entries,
    of_all_slots,
    program_rows,
)
from ugnn_fast.kernels.kept_degree import kept_degree


@triton.jit
def entry_weight(at, live, c_i, j, r, c_ptr, c_row, c_replica, edge_ptr, reverse_ptr):
    """W_ij of the entries `at`, [SLOTS, 1]: 1, c_i + c_j, or e_ij (e_ji with reverse); 0 where not live."""
    w = tl.where(live, 1.0, 0.0)
    if c_ptr is not None:
        w *= c_i + tl.load(c_ptr + j * c_row + r * c_replica, mask=live, other=0.0)
    if edge_ptr is not None:
        if reverse_ptr is not None:
            at = tl.load(reverse_ptr + at, mask=live, other=0)
        w *= tl.load(edge_ptr + at, mask=live, other=0.0)
    return w


@triton.jit
def step_kernel(
    rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, num_pieces,
    col_ptr, weight_ptr, drop_seed, keep_from,
    table_ptr,                                      # u, [N, width]
    c_ptr, c_row, c_replica, edge_ptr, reverse_ptr,
    partial_ptr,                                    # [1 or 2, pieces, width]
    left_ptr, right_ptr,                            # [N]
    agg_ptr, agg_row, agg_replica, agg_scale,
    skip_ptr, skip_row, skip_replica, skip_scale,
    keep_ptr, keep_row, keep_replica, keep_scale,
    prev_ptr, prev_row, prev_replica, prev_scale,
    x_ptr, h_ptr, before_ptr,                       # X, H_k, H_{k-1}, [N, width]
    lo, hi, gamma_ptr,
    out_ptr, next_ptr, s_ptr, total_ptr,            # H_{k+1}, right H_{k+1}, sum a_ij u_j, sum gamma H
    D: tl.constexpr, width: tl.constexpr,
    DROP: tl.constexpr, CLAMP: tl.constexpr,
    SLOTS: tl.constexpr, BLOCK_D: tl.constexpr, HUBS: tl.constexpr,
):  # fmt: skip
    """H_{k+1} = clamp(keep H_k + agg left sum_j a_ij W_ij u_j + skip X + prev H_{k-1}), u = right H_k.

    Program (p, q) has the rows of program_rows and the columns of block q: of replica r = q // blocks, if W or a
    coefficient has replicas, else of all R D columns. A pointer that is None stands for what is not there. Sums are
    float32, and float64 for a float64 table: the residuals of solve.
    """
    ACC: tl.constexpr = tl.float64 if table_ptr.dtype.element_ty == tl.float64 else tl.float32
    blocks = tl.cdiv(D, BLOCK_D)
    r = tl.program_id(1) // blocks
    offs_d = tl.program_id(1) % blocks * BLOCK_D + tl.arange(0, BLOCK_D)
    mask_d = offs_d < D
    offs = r * D + offs_d
    partial_size = num_pieces.to(tl.int64) * width
    acc = tl.zeros((SLOTS, BLOCK_D), ACC)
    plain = tl.zeros((SLOTS, BLOCK_D), ACC)
    if HUBS:
        i, first_piece, end_piece, owner = hub_row(plan_ptr, num_rows, num_middle, SLOTS)
        acc = hub_sum(partial_ptr, first_piece, end_piece, width, offs, mask_d, SLOTS, BLOCK_D)
        if s_ptr is not None:
            plain = hub_sum(partial_ptr + partial_size, first_piece, end_piece, width, offs, mask_d, SLOTS, BLOCK_D)
    else:
        i, first, end, stride, trips, owner, piece = program_rows(
            rowptr_ptr, plan_ptr, num_rows, num_short, num_middle, SLOTS
        )
        row, first, end = i[:, None], first[:, None], end[:, None]  # see live_entries
        c_i = 0.0
        if c_ptr is not None:
            c_i = tl.load(c_ptr + row * c_row + r * c_replica)
        for k in range(trips):
            at = first + k * stride
            live, j, a = live_entries(at, end, row, col_ptr, weight_ptr, drop_seed, keep_from, DROP)
            u = tl.load(table_ptr + j * width + offs[None, :], mask=live & mask_d[None, :], other=0.0).to(ACC)
            if weight_ptr is not None:
                u *= a
            acc += entry_weight(at, live, c_i, j, r, c_ptr, c_row, c_replica, edge_ptr, reverse_ptr) * u
            if s_ptr is not None:
                plain += u
        if stride > 1:
            acc = of_all_slots(acc, SLOTS, BLOCK_D)
            if s_ptr is not None:
                plain = of_all_slots(plain, SLOTS, BLOCK_D)
        if piece >= 0:
            at_piece = piece.to(tl.int64) * width + offs[None, :] + tl.zeros((SLOTS, 1), tl.int64)
            mask_piece = owner[:, None] & mask_d[None, :]
            tl.store(partial_ptr + at_piece, acc, mask=mask_piece)
            if s_ptr is not None:
                tl.store(partial_ptr + partial_size + at_piece, plain, mask=mask_piece)
            owner = owner & False

    mask = owner[:, None] & mask_d[None, :]
    at = i[:, None] * width + offs[None, :]
    if left_ptr is not None:
        acc *= tl.load(left_ptr + i, mask=owner, other=0.0)[:, None]
    h = coefficient(agg_ptr, agg_scale, i, r, agg_row, agg_replica, owner) * acc
    if x_ptr is not None:
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(ACC)
        h += coefficient(skip_ptr, skip_scale, i, r, skip_row, skip_replica, owner) * x
    if h_ptr is not None:
        now = tl.load(h_ptr + at, mask=mask, other=0.0).to(ACC)
        h += coefficient(keep_ptr, keep_scale, i, r, keep_row, keep_replica, owner) * now
    if before_ptr is not None:
        before = tl.load(before_ptr + at, mask=mask, other=0.0).to(ACC)
        h += coefficient(prev_ptr, prev_scale, i, r, prev_row, prev_replica, owner) * before
    if CLAMP:
        # comparisons, so that NaN stays
        h = tl.where(h < lo, lo, tl.where(h > hi, hi, h))
    if s_ptr is not None:
        tl.store(s_ptr + at, plain.to(s_ptr.dtype.element_ty), mask=mask)
    if out_ptr is not None:
        tl.store(out_ptr + at, h.to(out_ptr.dtype.element_ty), mask=mask)
    if total_ptr is not None:
        total = tl.load(total_ptr + at, mask=mask, other=0.0)
        tl.store(total_ptr + at, total + tl.load(gamma_ptr) * h, mask=mask)
    if next_ptr is not None:
        h *= tl.load(right_ptr + i, mask=owner, other=0.0)[:, None]
        tl.store(next_ptr + at, h.to(next_ptr.dtype.element_ty), mask=mask)


class Coef(NamedTuple):
    """scale * values; values [N] (row_stride 1), [1] (0), or [N, R] (R, with replica_stride 1); None is 1."""

    values: Tensor | None = None
    row_stride: int = 0
    replica_stride: int = 0
    scale: float = 1.0

    def step(self, k: int) -> "Coef":
        """That of step k, for values [K, 1] or [K, N]."""
        return self if self.values is None or self.values.dim() == 1 else self._replace(values=self.values[k])


ONE, ZERO = Coef(), Coef(scale=0.0)


def coef_of(values: Tensor | None, scale: float = 1.0) -> Coef:
    """A coefficient of propagate: None, [N], [K, 1] or [K, N]."""
    if values is None:
        return Coef(scale=scale)
    return Coef(values.contiguous(), 0 if values.dim() == 2 and values.shape[1] == 1 else 1, 0, scale)


def per_node(values: Tensor, scale: float = 1.0) -> Coef:
    """values [N] or [N, R] as a coefficient."""
    values = values.contiguous()
    return Coef(values, *((1, 0) if values.dim() == 1 else (values.shape[1], 1)), scale)


class Stepper:
    """Launches steps on one graph, for tables [N, D] or [N, R, D] that look alike."""

    def __init__(
        self, graph: tuple, like: Tensor, *, c: Coef = ZERO, replicas: bool = False, edge_value: Tensor | None = None,
        reverse: Tensor | None = None, sums: int = 1, family: str = "step", backend: str = "triton",
    ):  # fmt: skip
        """replicas: whether c or a coefficient differs between replicas. sums: those of a row that are kept apart.
        family: whose launch configuration it is, see _launch.
        """
        rowptr, self.col, self.weight = graph[:3]
        *_, plan, plan_sizes, self.drop_seed, self.keep_from = graph
        self.rows = Rows(rowptr, plan, plan_sizes, backend)
        self.c, self.edge_value, self.reverse = c, edge_value, reverse
        self.width = math.prod(like.shape[1:])
        self.D = like.shape[-1] if replicas else self.width
        self.columns = self.width // max(self.D, 1)
        self.config: Config | None = None
        if backend == "triton":
            # CUDA kernels share out the columns of a replica by themselves
            self.config = row_config(self.D, like.dtype, like.device, family)
            self.columns *= triton.cdiv(self.D, self.config.block)
        acc_dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        self.partial = self.rows.partial(sums, self.width, acc_dtype)
        self.together = self.rows.together

    def launch(self, kernel: Any, *args: Any, **constants: Any) -> None:
        self.rows.launch(
            kernel, self.columns, self.config, self.col, self.weight, self.drop_seed, self.keep_from, *args,
            self.D, self.width, DROP=self.keep_from > 0, **constants,
        )  # fmt: skip

    def step(
        self, table: Tensor, *, left: Tensor | None = None, right: Tensor | None = None, agg: Coef = ONE,
        skip: Coef = ZERO, keep: Coef = ZERO, prev: Coef = ZERO, x: Tensor | None = None, h: Tensor | None = None,
        before: Tensor | None = None, clamp: tuple[float, float] | None = None, gamma: Tensor | None = None,
        out: Tensor | None = None, following: Tensor | None = None, s: Tensor | None = None,
        total: Tensor | None = None,
    ) -> None:  # fmt: skip
        """See step_kernel; `following` is the table of the next step."""
        lo, hi = clamp or (0.0, 0.0)
        self.launch(
            step_kernel, table, *self.c[:3], self.edge_value, self.reverse, self.partial, left, right,
            *agg, *skip, *keep, *prev, x, h, before, lo, hi, gamma, out, following, s, total, CLAMP=clamp is not None,
        )  # fmt: skip


def rsqrt_degree(graph: tuple, dtype: torch.dtype = torch.float32, backend: str = "triton") -> Tensor:
    """rho_i, [N], float32 or float64."""
    degree = graph[3].to(dtype)
    if dtype == torch.float64 and graph[2] is not None:
        # in float32 the sum of weights is rounded
        if backend == "triton":
            kept_degree(graph, degree)
        else:
            ones = torch.ones_like(degree)[:, None]
            Stepper(graph, ones, backend=backend).step(ones, out=degree)
    return torch.where(degree > 0, degree, torch.inf).rsqrt()


def column(values: Tensor, like: Tensor) -> Tensor:
    """values [N] or [N, R] to multiply rows of `like`."""
    return values.reshape(*values.shape, *(1,) * (like.dim() - values.dim()))

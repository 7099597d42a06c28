"""Launches of step, the aggregation behind propagate, ada_propagate and solve."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ugnn_fast.device._rows import Rows
from ugnn_fast.device.kept_degree import kept_degree


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
        self, graph: tuple, like: Tensor, *, backend: str, c: Coef = ZERO, replicas: bool = False,
        edge_value: Tensor | None = None, reverse: Tensor | None = None, sums: int = 1, family: str = "step",
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
        self.config, self.blocks = self.rows.blocks(self.D, like.dtype, family)
        self.columns *= self.blocks
        acc_dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        self.partial = self.rows.partial(sums, self.width, acc_dtype)
        self.together = self.rows.together

    def launch(self, kernel: str, *args: Any, **constants: Any) -> None:
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
        """See kernels/step.py; `following` is the table of the next step."""
        lo, hi = clamp or (0.0, 0.0)
        self.launch(
            "step", table, *self.c[:3], self.edge_value, self.reverse, self.partial, left, right,
            *agg, *skip, *keep, *prev, x, h, before, lo, hi, gamma, out, following, s, total, CLAMP=clamp is not None,
        )  # fmt: skip


def degrees(graph: tuple, dtype: torch.dtype, backend: str) -> Tensor:
    """d_i, [N], float32 or float64."""
    degree = graph[3].to(dtype)
    if dtype == torch.float64 and graph[2] is not None:
        # in float32 the sum of weights is rounded
        kept_degree(graph, degree, backend)
    return degree


def rsqrt_degree(graph: tuple, dtype: torch.dtype, backend: str) -> Tensor:
    """rho_i, [N], float32 or float64."""
    degree = degrees(graph, dtype, backend)
    # every table is multiplied by it: it shall be off by its own rounding alone
    return torch.where(degree > 0, degree, torch.inf).double().rsqrt().to(dtype)


def column(values: Tensor, like: Tensor) -> Tensor:
    """values [N] or [N, R] to multiply rows of `like`."""
    return values.reshape(*values.shape, *(1,) * (like.dim() - values.dim()))

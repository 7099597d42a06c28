"""The kernels whose traffic is counted, as operators call them, and what one step of each moves by definition.

bench.traffic counts those of Triton, bench.cuda_traffic those of CUDA. For N rows, E entries, D columns of s bytes:

    compulsory   every table once:                     tables N D s + 4 E + 8 N
    no-reuse     each neighbour's row from memory:     gathers E D s + node tables N D s + 4 E for each walk

With one table to gather and two node tables (X in, H' out) these are 3 N D s + 4 E + 8 N and E D s + 4 E + 2 N D s. A
kernel that walks over its entries twice (the mean, then the variance) or gathers two tables has the bound of that. An
operator whose definition has numbers per entry beside the row (c_j, a_ij, e_ij, the scores of attention) cannot do
without those bytes, nor without the numbers of a node beside its rows (rho, b, c_i). Kernels on vectors gather nothing,
and both bounds are their tables.
"""

from __future__ import annotations

import csv
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from ugnn_fast.kernels.tune import power_law_graph

import ugnn_fast as uf
from bench.machine import Progress
from bench.registry import dtype_name

DTYPES = (torch.float32, torch.bfloat16)

# call(graph, x [N, D], c [N], steps, backend); one of a kernel that has no steps launches it steps - 1 times
Call = Callable[[uf.Graph, Tensor, Tensor, int, str], Any]


@dataclass(frozen=True)
class Case:
    """A kernel as an operator calls it, and what one step of it moves by definition.

    Tables with "f32" in their name are float32, others have the type of x; one that is gathered, or gathered twice, and
    read by row is one table. A number of a node is 4 bytes, one with "[D]" in its name a row of D of them.
    """

    kernel: str
    call: Call
    gathered: str = "table_ptr"  # a pointer by which neighbours' rows are read; "" without entries
    gathers: tuple[str, ...] = ("u",)
    node_tables: tuple[str, ...] = ("X", "H'")
    walks: int = 1  # over the entries of a row
    entry: str = ""  # numbers per entry beside its row; _j: from a table of nodes
    entry_size: int | None = 4  # None: that of x
    node: tuple[str, ...] = ()  # numbers of a node beside its rows
    column_bytes: Callable[[int], int] = lambda N: 0  # of tables that have columns, but not N rows
    propagation: bool = False
    weighted: bool = False
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)  # with Triton
    sends: bool | None = None  # of attention backward: launches that count, None for all

    @property
    def has_columns(self) -> bool:
        return bool(self.gathers or self.node_tables) or self.column_bytes(1) > 0

    def entry_bytes(self, s: int) -> int:
        return 0 if not self.entry else self.entry_size or s

    def compulsory(self, N: int, E: int, D: int, s: int) -> int:
        own = (N if self.entry.endswith("_j") else E) * self.entry_bytes(s)
        tables = N * D * _row_bytes(dict.fromkeys((*self.gathers, *self.node_tables)), s) + D * self.column_bytes(N)
        return tables + (4 * E + 8 * N + own if self.gathered else 0)

    def no_reuse(self, N: int, E: int, D: int, s: int) -> int:
        tables = N * D * _row_bytes(self.node_tables, s) + D * self.column_bytes(N)
        return tables + (E * D * _row_bytes(self.gathers, s) + 4 * E * self.walks if self.gathered else 0)

    def with_numbers(self, N: int, E: int, D: int, s: int) -> int:
        """The no-reuse bound, and the numbers of entries and of nodes."""
        of_nodes = sum(4 * D if "[D]" in name else 4 for name in self.node)
        return self.no_reuse(N, E, D, s) + E * self.entry_bytes(s) + N * of_nodes


def _row_bytes(tables: Iterable[str], s: int) -> int:
    """Bytes of one column of a row of all tables."""
    return sum(4 if "f32" in name else s for name in tables)


def _propagate(g: uf.Graph, x: Tensor, c: Tensor, steps: int, backend: str) -> None:
    uf.propagate(g, x, steps, agg=0.9, skip=0.1, backend=backend)


def _edge_value(g: uf.Graph, x: Tensor, c: Tensor, steps: int, backend: str) -> None:
    value = torch.ones(g.num_edges)
    uf.propagate(g, x, steps, agg=0.9, skip=0.1, edge_value=value, backend=backend)


def _constant(g: uf.Graph, x: Tensor, c: Tensor, steps: int, backend: str) -> None:
    uf.ada_propagate(g, x, 2.0, steps, backend=backend)


def _inference(g: uf.Graph, x: Tensor, c: Tensor, steps: int, backend: str) -> None:
    uf.ada_propagate(g, x, c, steps, backend=backend)


def _training(memory: str, backward: bool) -> Call:
    def call(g: uf.Graph, x: Tensor, c: Tensor, steps: int, backend: str) -> None:
        x, c = x.clone().requires_grad_(), c.clone().requires_grad_()
        h = uf.ada_propagate(g, x, c, steps, memory=memory, backend=backend)
        if backward:
            torch.autograd.grad(h, (x, c), torch.ones_like(h))

    return call


def _edge_dot(g: uf.Graph, x: Tensor, c: Tensor, steps: int, backend: str) -> None:
    from ugnn_fast.device.edge_dot import edge_dot

    for _ in range(steps - 1):
        edge_dot(g.tensors(backend), x, x, backend)


def _repeated(function: Callable[[uf.Graph, Tensor, Tensor, str], Tensor], backward: bool = False) -> Call:
    """A function of (graph, x, c, backend), steps - 1 times; backward: with the gradient of x and c."""

    def call(g: uf.Graph, x: Tensor, c: Tensor, steps: int, backend: str) -> None:
        for _ in range(steps - 1):
            leaves = [t.clone().requires_grad_(backward) for t in (x, c)]
            out = function(g, *leaves, backend)
            if backward:
                torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)

    return call


def _neighbor_var(g: uf.Graph, x: Tensor, c: Tensor, backend: str) -> Tensor:
    return uf.neighbor_var(g, x, backend=backend)


def _gat(g: uf.Graph, x: Tensor, c: Tensor, backend: str) -> Tensor:
    return uf.gat_aggregate(g, x[:, None], c[:, None], c[:, None], backend=backend)


def _ada_c(g: uf.Graph, x: Tensor, c: Tensor, backend: str) -> Tensor:
    return uf.ada_c(g, x, torch.ones(x.shape[1]), 9.0, backend=backend)


def _energy(g: uf.Graph, x: Tensor, c: Tensor, backend: str) -> Tensor:
    return uf.denoising_energy(g, x, x, c, backend=backend)


def _sparse_linear(g: uf.Graph, x: Tensor, c: Tensor, backend: str) -> Tensor:
    features = torch.sparse_csr_tensor(
        g.rowptr, g.col.long(), torch.ones(g.num_edges, dtype=x.dtype), (len(x),) * 2, check_invariants=False
    )
    return uf.sparse_linear(features, x, backend=backend)


def _sparse_linear_backward(g: uf.Graph, x: Tensor, c: Tensor, steps: int, backend: str) -> None:
    from ugnn_fast.device.sparse_linear import sparse_linear_backward

    # a symmetric matrix is its own transpose
    rows = g.rowptr, g.col, torch.ones(g.num_edges, dtype=x.dtype), *g.tensors(backend)[-4:-2]
    for _ in range(steps - 1):
        sparse_linear_backward((*rows, *rows), x, 0.0, None, backend)


def _iterations(g: uf.Graph, x: Tensor, c: Tensor, steps: int, backend: str) -> None:
    if steps:
        uf.solve(g, x, 5.0, c=c, tol=1e-30, max_iter=steps, return_info=True, backend=backend)


def _restart(g: uf.Graph, x: Tensor, c: Tensor, steps: int, backend: str) -> None:
    # at the start r = X, in the end r = X - M u
    _iterations(g, x, c, steps - 1, backend)


def _local_smoothness(g: uf.Graph, x: Tensor, c: Tensor, backend: str) -> Tensor:
    return uf.local_smoothness(g, c.long(), backend=backend)


def _kept_degree(g: uf.Graph, x: Tensor, c: Tensor, backend: str) -> Tensor:
    # nearly all are kept: a_ij of the others is not read
    return uf.drop_edges(g, 1e-3, seed=0, backend=backend).degree


def _both(one: Case, other: Case, entry: str) -> Case:
    """Two launches of a kernel as one case."""
    return replace(
        one, gathers=one.gathers + other.gathers, node_tables=one.node_tables + other.node_tables,
        walks=one.walks + other.walks, entry=entry, entry_size=one.entry_bytes(4) + other.entry_bytes(4),
        node=one.node + other.node, sends=None,
    )  # fmt: skip


_ADAPTIVE = ("rho", "b", "c")
_BACKWARD = ("v", "u", "dX f32 in", "dX f32 out", "v'")
_STEP = functools.partial(Case, "step_kernel", propagation=True, dtypes=DTYPES)
_STEP_BACKWARD = functools.partial(
    Case, "ada_propagate_bwd_kernel", entry="c_j", node=(*_ADAPTIVE, "dC in", "dC out", "e in", "e out"),
    propagation=True, dtypes=DTYPES,
)  # fmt: skip
_GAT_BACKWARD = functools.partial(Case, "gat_aggregate_bwd_kernel", _repeated(_gat, backward=True))
_RECEIVERS = _GAT_BACKWARD(
    gathers=("x",), node_tables=("g",), entry="score_j", node=("score", "lse", "t", "d score"), sends=False
)
_SENDERS = _GAT_BACKWARD(
    gathers=("g",), node_tables=("x", "dx"), entry="score_j, lse_j, t_j", entry_size=12, node=("score", "d score"),
    sends=True,
)  # fmt: skip
_VECTORS = functools.partial(Case, gathered="", gathers=())
CASES = {
    "propagate, sym, skip": _STEP(_propagate, node=("rho",)),
    "propagate, a_ij": _STEP(_propagate, entry="a_ij", node=("rho",), weighted=True),
    "propagate, e_ij": _STEP(_edge_value, entry="e_ij", node=("rho",)),
    "ada_propagate, one c": _STEP(_constant, node=("rho", "b")),
    "ada_propagate, c_j": _STEP(_inference, entry="c_j", node=_ADAPTIVE),
    "ada_propagate, c_j, kept for backward": _STEP(
        _training("save", False), entry="c_j", node_tables=("X", "H'", "s"), node=_ADAPTIVE
    ),
    "ada_propagate backward, save": _STEP_BACKWARD(
        _training("save", True), gathers=("v",), node_tables=(*_BACKWARD, "s")
    ),
    "ada_propagate backward, recompute": _STEP_BACKWARD(
        _training("recompute", True), gathers=("v", "u"), node_tables=_BACKWARD
    ),
    "edge_dot": Case(
        "edge_dot_kernel", _edge_dot, gathered="u_ptr", entry="out_ij", entry_size=None, node_tables=("v",)
    ),
    "neighbor_var": Case(
        "neighbor_stat_kernel", _repeated(_neighbor_var), gathered="x_ptr", gathers=("x", "x"), node_tables=("var",),
        walks=2,
    ),
    "neighbor_var backward": Case(
        "neighbor_var_bwd_kernel", _repeated(_neighbor_var, backward=True), gathered="grad_ptr",
        gathers=("g f32", "mean f32"), node_tables=("x", "dx"), entry="d_j",
    ),
    "ada_c": Case(
        "neighbor_stat_kernel", _repeated(_ada_c), gathered="x_ptr", gathers=("x", "x"), node_tables=(), walks=2,
        node=("c", "w [D]"),
    ),
    "denoising_energy": Case(
        "edge_energy_kernel", _repeated(_energy), gathered="f_ptr", gathers=("f",), node_tables=("f",), entry="rho_j",
        node=("rho", "energy"),
    ),
    "gat_aggregate": Case(
        "gat_aggregate_fwd_kernel", _repeated(_gat), gathered="x_ptr", gathers=("x",), node_tables=("y",),
        entry="score_j", node=("score", "lse"),
    ),
    "gat_aggregate backward": _both(_RECEIVERS, _SENDERS, "scores_j"),
    "sparse_linear": Case(
        "sparse_linear_kernel", _repeated(_sparse_linear), gathers=("weight",), node_tables=("y",), entry="x_ij",
        entry_size=None,
    ),
    "sparse_linear backward": Case(
        "sparse_linear_kernel", _sparse_linear_backward, gathers=("g",), node_tables=("d weight",), entry="x_ij",
        entry_size=None,
    ),
    "solve, two residuals": _VECTORS(
        "residual_kernel", _restart, node_tables=("x", "r", "p", "x", "q", "r", "p"), node=("1/N", "1/D", "N^2") * 2
    ),
    "solve, products": _VECTORS("products_kernel", _iterations, node_tables=("p", "q"), node=("1/D",)),
    "solve, update": _VECTORS(
        "update_kernel", _iterations, node_tables=("u", "r", "p", "q", "u'", "r'", "p'"), node=("1/D", "N^2")
    ),
    # four sums of each block of 256 rows, the limit, state and count read and written, alpha and beta
    "solve, lengths": _VECTORS(
        "lengths_kernel", _iterations, node_tables=(), column_bytes=lambda N: 32 * -(-N // 256) + 32
    ),
}  # fmt: skip
# what only the CUDA kernels are counted for: the two launches apart, and kernels without columns
CUDA_CASES = {
    **{name: case for name, case in CASES.items() if name != "gat_aggregate backward"},
    "gat_aggregate backward, receivers": _RECEIVERS,
    "gat_aggregate backward, senders": _SENDERS,
    "local_smoothness": Case(
        "local_smoothness_kernel", _repeated(_local_smoothness), gathers=(), node_tables=(), entry="label_j",
        entry_size=8, node=("label", "label", "share"),
    ),
    "kept_degree": Case(
        "kept_degree_kernel", _repeated(_kept_degree), gathers=(), node_tables=(), entry="a_ij", node=("degree",),
        weighted=True,
    ),
}  # fmt: skip


def toy_graph(weighted: bool = False) -> uf.Graph:
    """Power law with a hub that is cut, 16 entries a row."""
    g = power_law_graph(280, 20)
    hub = torch.stack([torch.zeros(280, dtype=torch.int64), torch.arange(280)])
    g = uf.Graph.from_edge_index(torch.cat([g.edge_index, hub], dim=1), 280, symmetrize=True)
    return with_weights(g) if weighted else g


def with_weights(g: uf.Graph) -> uf.Graph:
    """The same graph with a weight, 1, for every entry."""
    return uf.Graph.from_edge_index(g.edge_index, g.num_nodes, torch.ones(g.num_edges), self_loops=False)


def rows_of_all(todo: Sequence[tuple[str, torch.dtype, int]], row_of: Callable[..., dict]) -> list[dict]:
    """row_of(case, dtype, D) of each, with progress."""
    progress, rows, start = Progress(), [], time.monotonic()
    for at, (name, dtype, D) in enumerate(todo):
        left = (time.monotonic() - start) / at * (len(todo) - at) if at else 60
        progress.stage(f"{name}, {dtype_name(dtype)}, D {D} ({at + 1}/{len(todo)})", left)
        rows.append(row_of(name, dtype, D))
    return rows


def write(path: Path, columns: Sequence[str], rows: list[dict], text: str) -> None:
    """path, a CSV, and the text beside it as Markdown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    path.with_suffix(".md").write_text(text)
    print(text)

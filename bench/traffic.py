"""`python -m bench.traffic`: bytes that each Triton kernel requests, against what its step has to move.

Counted in the checked interpreter, which this module starts itself, on a seeded power-law graph: what a call with one
step more requests more. Every active lane counts, and once where all lanes of an access have one address; there is no
cache. For N rows, E entries, D columns of s bytes:

    compulsory   every table once:                     tables N D s + 4 E + 8 N
    no-reuse     each neighbour's row from memory:     gathers E D s + node tables N D s + 4 E for each walk

With one table to gather and two node tables (X in, H' out) these are 3 N D s + 4 E + 8 N and E D s + 4 E + 2 N D s. A
kernel that walks over its entries twice (the mean, then the variance) or gathers two tables has the bound of that. An
operator whose definition has numbers per entry beside the row (c_j, a_ij, e_ij, the scores of attention) cannot do
without those bytes: the no-reuse bound stands in the table without and with them. Kernels on vectors gather nothing,
and both bounds are their tables. Row pointers, the plan and coefficients of nodes are in the count and in no bound.
Kernels without columns (local_smoothness, kept_degree, sparse_dense) are not here.
"""

from __future__ import annotations

import argparse
import csv
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from ugnn_fast.kernels import _launch
from ugnn_fast.kernels.tune import power_law_graph

import ugnn_fast as uf
from bench.machine import Progress
from bench.registry import dtype_name
from ugnn_fast._backend import _interpreting

CSV_NAME, TABLE_NAME = "traffic.csv", "traffic.md"
WIDTHS = (8, 16, 40, 64, 128)
DTYPES = (torch.float32, torch.bfloat16)  # of the propagation kernels; others in float32
# of the propagation kernels, at most, times the no-reuse bound with the numbers of entries
LIMIT = 1.10
COLUMNS = [
    "kernel", "case", "dtype", "D", "N", "E", "requested", "compulsory", "no_reuse", "entry_operand", "operand_bytes",
    "over_compulsory", "over_no_reuse", "over_no_reuse_with_operand", "sector_bytes", "idle_lanes",
]  # fmt: skip


# call(graph, x [N, D], c [N], steps); one of a kernel that has no steps launches it steps - 1 times
Call = Callable[[uf.Graph, Tensor, Tensor, int], Any]


@dataclass(frozen=True)
class Case:
    """A kernel as an operator calls it, and what one step of it moves by definition.

    Tables with "f32" in their name are float32, others have the type of x; one that is gathered, or gathered twice, and
    read by row is one table.
    """

    kernel: str
    call: Call
    gathered: str = "table_ptr"  # a pointer by which neighbours' rows are read; "" without entries
    gathers: tuple[str, ...] = ("u",)
    node_tables: tuple[str, ...] = ("X", "H'")
    walks: int = 1  # over the entries of a row
    entry: str = ""  # numbers per entry beside its row; _j: from a table of nodes
    entry_size: int | None = 4  # None: that of x
    column_bytes: Callable[[int], int] = lambda N: 0  # of tables that have columns, but not N rows
    propagation: bool = False
    weighted: bool = False
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)

    def entry_bytes(self, s: int) -> int:
        return 0 if not self.entry else self.entry_size or s

    def compulsory(self, N: int, E: int, D: int, s: int) -> int:
        own = (N if self.entry.endswith("_j") else E) * self.entry_bytes(s)
        tables = N * D * _row_bytes(dict.fromkeys((*self.gathers, *self.node_tables)), s) + D * self.column_bytes(N)
        return tables + (4 * E + 8 * N + own if self.gathered else 0)

    def no_reuse(self, N: int, E: int, D: int, s: int) -> int:
        tables = N * D * _row_bytes(self.node_tables, s) + D * self.column_bytes(N)
        return tables + (E * D * _row_bytes(self.gathers, s) + 4 * E * self.walks if self.gathered else 0)


def _row_bytes(tables: Iterable[str], s: int) -> int:
    """Bytes of one column of a row of all tables."""
    return sum(4 if "f32" in name else s for name in tables)


def _propagate(g: uf.Graph, x: Tensor, c: Tensor, steps: int) -> None:
    uf.propagate(g, x, steps, agg=0.9, skip=0.1, backend="triton")


def _edge_value(g: uf.Graph, x: Tensor, c: Tensor, steps: int) -> None:
    value = torch.ones(g.num_edges)
    uf.propagate(g, x, steps, agg=0.9, skip=0.1, edge_value=value, backend="triton")


def _constant(g: uf.Graph, x: Tensor, c: Tensor, steps: int) -> None:
    uf.ada_propagate(g, x, 2.0, steps, backend="triton")


def _inference(g: uf.Graph, x: Tensor, c: Tensor, steps: int) -> None:
    uf.ada_propagate(g, x, c, steps, backend="triton")


def _training(memory: str, backward: bool) -> Call:
    def call(g: uf.Graph, x: Tensor, c: Tensor, steps: int) -> None:
        x, c = x.clone().requires_grad_(), c.clone().requires_grad_()
        h = uf.ada_propagate(g, x, c, steps, memory=memory, backend="triton")
        if backward:
            torch.autograd.grad(h, (x, c), torch.ones_like(h))

    return call


def _edge_dot(g: uf.Graph, x: Tensor, c: Tensor, steps: int) -> None:
    from ugnn_fast.device.edge_dot import edge_dot

    for _ in range(steps - 1):
        edge_dot(g.tensors("triton"), x, x, "triton")


def _repeated(function: Callable[[uf.Graph, Tensor, Tensor], Tensor], backward: bool = False) -> Call:
    """A function of (graph, x, c), steps - 1 times; backward: with the gradient of x and c."""

    def call(g: uf.Graph, x: Tensor, c: Tensor, steps: int) -> None:
        for _ in range(steps - 1):
            leaves = [t.clone().requires_grad_(backward) for t in (x, c)]
            out = function(g, *leaves)
            if backward:
                torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)

    return call


def _gat(g: uf.Graph, x: Tensor, c: Tensor) -> Tensor:
    return uf.gat_aggregate(g, x[:, None], c[:, None], c[:, None], backend="triton")


def _ada_c(g: uf.Graph, x: Tensor, c: Tensor) -> Tensor:
    return uf.ada_c(g, x, torch.ones(x.shape[1]), 9.0, backend="triton")


def _energy(g: uf.Graph, x: Tensor, c: Tensor) -> Tensor:
    return uf.denoising_energy(g, x, x, c, backend="triton")


def _sparse_linear(g: uf.Graph, x: Tensor, c: Tensor) -> Tensor:
    features = torch.sparse_csr_tensor(
        g.rowptr, g.col.long(), torch.ones(g.num_edges, dtype=x.dtype), (len(x),) * 2, check_invariants=False
    )
    return uf.sparse_linear(features, x, backend="triton")


def _sparse_linear_backward(g: uf.Graph, x: Tensor, c: Tensor, steps: int) -> None:
    from ugnn_fast.device.sparse_linear import sparse_linear_backward

    # a symmetric matrix is its own transpose
    rows = g.rowptr, g.col, torch.ones(g.num_edges, dtype=x.dtype), *g.tensors("triton")[-4:-2]
    for _ in range(steps - 1):
        sparse_linear_backward((*rows, *rows), x, 0.0, None, "triton")


def _iterations(g: uf.Graph, x: Tensor, c: Tensor, steps: int) -> None:
    if steps:
        uf.solve(g, x, 5.0, c=c, tol=1e-30, max_iter=steps, return_info=True, backend="triton")


def _restart(g: uf.Graph, x: Tensor, c: Tensor, steps: int) -> None:
    # at the start r = X, in the end r = X - M u
    _iterations(g, x, c, steps - 1)


_BACKWARD = ("v", "u", "dX f32 in", "dX f32 out", "v'")
_STEP = functools.partial(Case, "step_kernel", propagation=True, dtypes=DTYPES)
_STEP_BACKWARD = functools.partial(Case, "ada_propagate_bwd_kernel", entry="c_j", propagation=True, dtypes=DTYPES)
_VECTORS = functools.partial(Case, gathered="", gathers=())
CASES = {
    "propagate, sym, skip": _STEP(_propagate),
    "propagate, a_ij": _STEP(_propagate, entry="a_ij", weighted=True),
    "propagate, e_ij": _STEP(_edge_value, entry="e_ij"),
    "ada_propagate, one c": _STEP(_constant),
    "ada_propagate, c_j": _STEP(_inference, entry="c_j"),
    "ada_propagate, c_j, kept for backward": _STEP(
        _training("save", False), entry="c_j", node_tables=("X", "H'", "s")
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
        "neighbor_stat_kernel", _repeated(lambda g, x, c: uf.neighbor_var(g, x, backend="triton")), gathered="x_ptr",
        gathers=("x", "x"), node_tables=("var",), walks=2,
    ),
    "neighbor_var backward": Case(
        "neighbor_var_bwd_kernel", _repeated(lambda g, x, c: uf.neighbor_var(g, x, backend="triton"), backward=True),
        gathered="grad_ptr", gathers=("g", "mean f32"), node_tables=("x", "dx"), entry="d_j",
    ),
    "ada_c": Case(
        "neighbor_stat_kernel", _repeated(_ada_c), gathered="x_ptr", gathers=("x", "x"), node_tables=(), walks=2
    ),
    "denoising_energy": Case(
        "edge_energy_kernel", _repeated(_energy), gathered="f_ptr", gathers=("f",), node_tables=("f",), entry="rho_j"
    ),
    "gat_aggregate": Case(
        "gat_aggregate_fwd_kernel", _repeated(_gat), gathered="x_ptr", gathers=("x",), node_tables=("y",),
        entry="score_j",
    ),
    # the rows as receivers, then as senders: a launch each
    "gat_aggregate backward": Case(
        "gat_aggregate_bwd_kernel", _repeated(_gat, backward=True), gathers=("x", "g"), node_tables=("x", "g", "dx"),
        walks=2, entry="scores_j", entry_size=16,
    ),
    "sparse_linear": Case(
        "sparse_linear_kernel", _repeated(_sparse_linear), gathers=("weight",), node_tables=("y",), entry="x_ij",
        entry_size=None,
    ),
    "sparse_linear backward": Case(
        "sparse_linear_kernel", _sparse_linear_backward, gathers=("g",), node_tables=("d weight",), entry="x_ij",
        entry_size=None,
    ),
    "solve, two residuals": _VECTORS("residual_kernel", _restart, node_tables=("x", "r", "p", "x", "q", "r", "p")),
    "solve, products": _VECTORS("products_kernel", _iterations, node_tables=("p", "q")),
    "solve, update": _VECTORS("update_kernel", _iterations, node_tables=("u", "r", "p", "q", "u'", "r'", "p'")),
    # four sums of each block of 256 rows, the limit, state and count read and written, alpha and beta
    "solve, lengths": _VECTORS(
        "lengths_kernel", _iterations, node_tables=(), column_bytes=lambda N: 32 * -(-N // 256) + 32
    ),
}  # fmt: skip
ALL = [(name, dtype, D) for name, case in CASES.items() for dtype in case.dtypes for D in WIDTHS]


def toy_graph(weighted: bool = False) -> uf.Graph:
    """Power law with a hub that is cut, 16 entries a row."""
    g = power_law_graph(280, 20)
    hub = torch.stack([torch.zeros(280, dtype=torch.int64), torch.arange(280)])
    g = uf.Graph.from_edge_index(torch.cat([g.edge_index, hub], dim=1), 280, symmetrize=True)
    if weighted:
        g = uf.Graph.from_edge_index(g.edge_index, g.num_nodes, torch.ones(g.num_edges), self_loops=False)
    return g


def count(case: Case, g: uf.Graph, D: int, dtype: torch.dtype) -> dict[str, float]:
    """requested, sectors, lanes and active lanes of one step."""
    from ugnn_fast._checked_interpreter import KernelReport, PointerReport, checked

    x, c = torch.ones(g.num_nodes, D, dtype=dtype), torch.ones(g.num_nodes)
    found = []
    for steps in (1, 2):
        with np.errstate(all="ignore"), checked() as report:
            case.call(g, x, c, steps)
        kernel = report.get(case.kernel, KernelReport())
        gathered = kernel.pointers.get(case.gathered, PointerReport())
        found.append((kernel.lane_bytes, 32 * kernel.sectors, gathered.lanes, gathered.active_lanes))
    names = ("requested", "sectors", "lanes", "active_lanes")
    return {name: two - one for name, one, two in zip(names, *found, strict=True)}


def row_of(name: str, g: uf.Graph, D: int, dtype: torch.dtype) -> dict[str, object]:
    """A row of the CSV."""
    case, s = CASES[name], dtype.itemsize
    N, E = g.num_nodes, g.num_edges
    found = count(case, g, D, dtype)
    compulsory, no_reuse = case.compulsory(N, E, D, s), case.no_reuse(N, E, D, s)
    operands = E * case.entry_bytes(s)
    requested = found["requested"]
    return {
        **{"kernel": case.kernel, "case": name, "dtype": dtype_name(dtype), "D": D, "N": N, "E": E},
        "requested": requested,
        "compulsory": compulsory,
        "no_reuse": no_reuse,
        "entry_operand": case.entry,
        "operand_bytes": operands,
        "over_compulsory": f"{requested / compulsory:.3f}",
        "over_no_reuse": f"{requested / no_reuse:.3f}",
        "over_no_reuse_with_operand": f"{requested / (no_reuse + operands):.3f}",
        "sector_bytes": found["sectors"],
        "idle_lanes": f"{1 - found['active_lanes'] / found['lanes']:.3f}" if case.gathered else "",
    }


def idle_lanes(length: Tensor, D: int, config: _launch.Config) -> float:
    """Share of the lanes without work in programs for short rows of these lengths, which the plan has put in order."""
    slots = config.slots
    programs = torch.nn.functional.pad(length, (0, -len(length) % slots)).view(-1, slots)
    lanes = programs.amax(1).sum().item() * slots * -(-D // config.block) * config.block
    return 1 - length.sum().item() * D / lanes


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown of the CSV's rows."""
    N, E = rows[0]["N"], rows[0]["E"]
    lines = [
        f"Bytes that one step requests, counted in the checked interpreter; power-law graph, N {N}, E {E}. The",
        "no-reuse bound counts each neighbour's row once per entry, its column id and the tables of nodes (see",
        "bench/traffic.py); `with` has also the numbers per entry that the operator is defined with. Sectors: pieces",
        "of 32 bytes, lanes of an access that meet in one counted once. Idle: lanes of the gather without work.",
        f"Propagation kernels must stay below {LIMIT:.2f} times the bound with those numbers.",
        "",
        "| kernel | case | type | D | KB | / compulsory | / no-reuse | with | sectors, KB | idle |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        wide = f"{row['over_no_reuse_with_operand']} ({row['entry_operand']})" if row["entry_operand"] else "same"
        idle = f"{100 * float(row['idle_lanes']):.0f} %" if row["idle_lanes"] else "-"
        lines.append(
            f"| {row['kernel']} | {row['case']} | {row['dtype']} | {row['D']} | {int(row['requested']) / 1e3:.1f} |"
            f" {row['over_compulsory']} | {row['over_no_reuse']} | {wide} | {int(row['sector_bytes']) / 1e3:.1f} |"
            f" {idle} |"
        )
    return "\n".join(lines) + "\n"


def too_much(rows: list[dict[str, Any]]) -> list[str]:
    """Propagation kernels over the limit."""
    return [
        f"{row['case']}, {row['dtype']}, D {row['D']}: {row['over_no_reuse_with_operand']}"
        for row in rows
        if CASES[row["case"]].propagation and float(row["over_no_reuse_with_operand"]) > LIMIT
    ]


def in_interpreter(module: str, argv: list[str]) -> int:
    """Runs a module in a child process with Triton's interpreter, which must be chosen before triton is imported."""
    child = subprocess.run(
        [sys.executable, "-m", module, *argv],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )
    return child.returncode


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.traffic", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--widths", nargs="+", type=int, default=list(WIDTHS), metavar="D", help=f"default: {WIDTHS}")
    add("--cases", nargs="+", choices=list(CASES), default=list(CASES), metavar="CASE", help=f"of {', '.join(CASES)}")
    add("--out", type=Path, default=Path(__file__).parent / "results", help="folder (default: bench/results)")
    args = parser.parse_args(argv)
    if not _interpreting():
        return in_interpreter("bench.traffic", sys.argv[1:] if argv is None else argv)
    progress = Progress()
    graphs = {weighted: toy_graph(weighted) for weighted in (False, True)}
    todo = [(name, dtype, D) for name in args.cases for dtype in CASES[name].dtypes for D in args.widths]
    rows, start = [], time.monotonic()
    for at, (name, dtype, D) in enumerate(todo):
        left = (time.monotonic() - start) / at * (len(todo) - at) if at else 60
        progress.stage(f"{name}, {dtype_name(dtype)}, D {D} ({at + 1}/{len(todo)})", left)
        rows.append(row_of(name, graphs[CASES[name].weighted], D, dtype))
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / CSV_NAME).open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    text = table(rows)
    (args.out / TABLE_NAME).write_text(text)
    print(text)
    over = too_much(rows)
    for line in over:
        print(f"over {LIMIT:.2f}: {line}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m bench.traffic`: bytes that each Triton kernel requests, against what its step has to move.

Counted in the checked interpreter, which this module starts itself, on a seeded power-law graph: what a call with one
step more requests more. Every active lane counts, and once where all lanes of an access have one address; there is no
cache. For N rows, E entries, D columns of s bytes:

    compulsory   every table once:                     gathers N D s + node tables + 4 E + 8 N
    no-reuse     each neighbour's row from memory:     gathers E D s + node tables + 4 E

With one table to gather and two node tables (X in, H' out) these are 3 N D s + 4 E + 8 N and E D s + 4 E + 2 N D s. An
operator whose definition has a number per entry beside the row (c_j, a_ij, e_ij) cannot do without those bytes: the
no-reuse bound stands in the table without and with them. Row pointers, the plan and coefficients of nodes are in the
count and in no bound.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from ugnn_fast.kernels import _launch
from ugnn_fast.kernels.tune import power_law_graph

import ugnn_fast as uf
from bench.contenders import dtype_name
from bench.run import Progress
from ugnn_fast._backend import _interpreting

CSV_NAME, TABLE_NAME = "traffic.csv", "traffic.md"
WIDTHS = (8, 16, 40, 64, 128)
DTYPES = (torch.float32, torch.bfloat16)
# of the propagation kernels, at most, times the no-reuse bound with the numbers of entries
LIMIT = 1.10
COLUMNS = [
    "kernel", "case", "dtype", "D", "N", "E", "requested", "compulsory", "no_reuse", "entry_operand", "operand_bytes",
    "over_compulsory", "over_no_reuse", "over_no_reuse_with_operand", "sector_bytes", "idle_lanes",
]  # fmt: skip


# call(graph, x [N, D], c [N], steps)
Call = Callable[[uf.Graph, Tensor, Tensor, int], Any]


@dataclass(frozen=True)
class Case:
    """A kernel as an operator calls it, and what one step of it moves by definition."""

    kernel: str
    call: Call
    gathered: str = "table_ptr"  # the pointer by which neighbours' rows are read
    gathers: int = 1
    node_tables: tuple[str, ...] = ("X", "H'")  # "f32" in the name: float32, else in the type of x
    entry: str = ""  # a number per entry beside its row
    entry_as_x: bool = False  # that number has the type of x, else float32
    propagation: bool = True
    weighted: bool = False

    def entry_bytes(self, s: int) -> int:
        return 0 if not self.entry else s if self.entry_as_x else 4

    def node_bytes(self, s: int) -> int:
        return sum(4 if "f32" in name else s for name in self.node_tables)

    def compulsory(self, N: int, E: int, D: int, s: int) -> int:
        """c_j is a table of its own, 4 N; the other numbers are stored per entry."""
        own = 4 * N if self.entry == "c_j" else E * self.entry_bytes(s)
        return self.gathers * N * D * s + N * D * self.node_bytes(s) + 4 * E + 8 * N + own

    def no_reuse(self, N: int, E: int, D: int, s: int) -> int:
        return self.gathers * E * D * s + N * D * self.node_bytes(s) + 4 * E


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

    for _ in range(steps):
        edge_dot(g.tensors("triton"), x, x, "triton")


_BACKWARD = ("v", "u", "dX f32 in", "dX f32 out", "v'")
CASES = {
    "propagate, sym, skip": Case("step_kernel", _propagate),
    "propagate, a_ij": Case("step_kernel", _propagate, entry="a_ij", weighted=True),
    "propagate, e_ij": Case("step_kernel", _edge_value, entry="e_ij"),
    "ada_propagate, one c": Case("step_kernel", _constant),
    "ada_propagate, c_j": Case("step_kernel", _inference, entry="c_j"),
    "ada_propagate, c_j, kept for backward": Case(
        "step_kernel", _training("save", False), entry="c_j", node_tables=("X", "H'", "s")
    ),
    "ada_propagate backward, save": Case(
        "ada_propagate_bwd_kernel", _training("save", True), entry="c_j", node_tables=(*_BACKWARD, "s")
    ),
    "ada_propagate backward, recompute": Case(
        "ada_propagate_bwd_kernel", _training("recompute", True), entry="c_j", gathers=2, node_tables=_BACKWARD
    ),
    "edge_dot": Case(
        "edge_dot_kernel", _edge_dot, gathered="u_ptr", entry="out_ij", entry_as_x=True, node_tables=("v",),
        propagation=False,
    ),
}  # fmt: skip


def toy_graph(weighted: bool = False) -> uf.Graph:
    """Power law with a hub that is cut, 15 entries a row."""
    g = power_law_graph(500, 19, exponent=0.8)
    if weighted:
        g = uf.Graph.from_edge_index(g.edge_index, g.num_nodes, torch.ones(g.num_edges), self_loops=False)
    return g


def count(case: Case, g: uf.Graph, D: int, dtype: torch.dtype) -> dict[str, float]:
    """requested, sectors, lanes and active lanes of one step."""
    from ugnn_fast._checked_interpreter import checked

    x, c = torch.ones(g.num_nodes, D, dtype=dtype), torch.ones(g.num_nodes)
    found = []
    for steps in (1, 2):
        with checked() as report:
            case.call(g, x, c, steps)
        kernel = report[case.kernel]
        gathered = kernel.pointers[case.gathered]
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
        "idle_lanes": f"{1 - found['active_lanes'] / found['lanes']:.3f}",
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
        "bench/traffic.py); `with` has also the number per entry that the operator is defined with. Sectors: pieces of",
        "32 bytes, lanes of an access that meet in one counted once. Idle: lanes of the gather without work.",
        f"Propagation kernels must stay below {LIMIT:.2f} times the bound with that number.",
        "",
        "| kernel | case | type | D | KB | / compulsory | / no-reuse | with | sectors, KB | idle |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        wide = f"{row['over_no_reuse_with_operand']} ({row['entry_operand']})" if row["entry_operand"] else "same"
        lines.append(
            f"| {row['kernel']} | {row['case']} | {row['dtype']} | {row['D']} | {int(row['requested']) / 1e3:.1f} |"
            f" {row['over_compulsory']} | {row['over_no_reuse']} | {wide} | {int(row['sector_bytes']) / 1e3:.1f} |"
            f" {100 * float(row['idle_lanes']):.0f} % |"
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
    todo = [(name, dtype, D) for name in args.cases for dtype in DTYPES for D in args.widths]
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

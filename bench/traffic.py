"""`python -m bench.traffic`: bytes that each Triton kernel requests, against what its step has to move.

Counted in the checked interpreter, which this module starts itself, on a seeded power-law graph: what a call with one
step more requests more. Every active lane counts, and once where all lanes of an access have one address; there is no
cache. Cases and bounds are those of bench/traffic_cases.py: the no-reuse bound stands in the table without and with the
numbers of entries (c_j, a_ij, e_ij, the scores of attention). Row pointers, the plan and numbers of nodes are in the
count and in no bound. Kernels without columns (local_smoothness, kept_degree, sparse_dense) are not here.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from ugnn_fast.kernels import _launch

import ugnn_fast as uf
from bench.machine import RESULTS
from bench.registry import dtype_name
from bench.traffic_cases import CASES, Case, rows_of_all, toy_graph, write
from ugnn_fast._backend import _interpreting

CSV_NAME = "traffic.csv"
WIDTHS = (8, 16, 40, 64, 128)
# of the propagation kernels, at most, times the no-reuse bound with the numbers of entries
LIMIT = 1.10
COLUMNS = [
    "kernel", "case", "dtype", "D", "N", "E", "requested", "compulsory", "no_reuse", "entry_operand", "operand_bytes",
    "over_compulsory", "over_no_reuse", "over_no_reuse_with_operand", "sector_bytes", "idle_lanes",
]  # fmt: skip
ALL = [(name, dtype, D) for name, case in CASES.items() for dtype in case.dtypes for D in WIDTHS]


def count(case: Case, g: uf.Graph, D: int, dtype: torch.dtype) -> dict[str, float]:
    """requested, sectors, lanes and active lanes of one step."""
    from ugnn_fast._checked_interpreter import KernelReport, PointerReport, checked

    x, c = torch.ones(g.num_nodes, D, dtype=dtype), torch.ones(g.num_nodes)
    found = []
    for steps in (1, 2):
        with np.errstate(all="ignore"), checked() as report:
            case.call(g, x, c, steps, "triton")
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
        "bench/traffic_cases.py); `with` has also the numbers per entry that the operator is defined with. Sectors:",
        "pieces of 32 bytes, lanes of an access that meet in one counted once. Idle: lanes of the gather without work.",
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
    add("--out", type=Path, default=RESULTS, help="folder (default: bench/results)")
    args = parser.parse_args(argv)
    if not _interpreting():
        return in_interpreter("bench.traffic", sys.argv[1:] if argv is None else argv)
    graphs = {weighted: toy_graph(weighted) for weighted in (False, True)}
    todo = [(name, dtype, D) for name in args.cases for dtype in CASES[name].dtypes for D in args.widths]
    rows = rows_of_all(todo, lambda name, dtype, D: row_of(name, graphs[CASES[name].weighted], D, dtype))
    write(args.out / CSV_NAME, COLUMNS, rows, table(rows))
    over = too_much(rows)
    for line in over:
        print(f"over {LIMIT:.2f}: {line}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())

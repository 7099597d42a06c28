"""`python -m bench.cuda_traffic`: bytes that each CUDA kernel asks for, against what its step has to move.

A model, not a measurement: loads and stores are counted in the traced emulator (tests/cuda), on a seeded power-law
graph, as what a call with one step more asks for. An instruction of a warp requests each byte once that any of its
lanes wants, and fetches the 32-byte sectors that hold them; there is no cache. Instructions are those of g++.

Cases and bounds are those of bench/traffic_cases.py. `with` is the no-reuse bound with the numbers of entries (c_j,
a_ij, e_ij) and of nodes (rho, b, c_i) that the operator is defined with. Row pointers, the plan and the sums of hubs'
pieces are in the count and in no bound.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from ugnn_fast.kernels.tune import power_law_graph

import ugnn_fast as uf
from bench.machine import RESULTS
from bench.registry import dtype_name
from bench.traffic import WIDTHS as WHOLE
from bench.traffic_cases import CUDA_CASES, DTYPES, Case, rows_of_all, with_weights, write
from tests.cuda.emulated import Emulated, build, install, load
from ugnn_fast import _backend

CSV_NAME = "cuda_traffic.csv"
WIDTHS = (*WHOLE, 33)  # the last one is no multiple of any vector
SECTOR = 32
LIMIT, USEFUL = 1.05, 0.95  # goals: requested bytes over the bound, useful share of the sectors of rows
COLUMNS = [
    "kernel", "case", "dtype", "D", "N", "E", "sectors", "sectors_per_entry", "useful_rows", "useful", "requested",
    "no_reuse", "with_numbers", "over_no_reuse", "over_with_numbers",
]  # fmt: skip


class Counting(Emulated):
    """Counts what each launch asks for."""

    def __init__(self, module: Any):
        super().__init__(module)
        # kernel, last argument -> rows or numbers -> sectors, bytes
        self.counts: dict[tuple[str, Any], dict[str, list[int]]] = defaultdict(lambda: {"rows": [0, 0], "rest": [0, 0]})
        self.D = 0

    def launch(self, name: str, calls: list[tuple], together: bool = False) -> None:
        super().launch(name, calls, together)
        tables = {argument for argument, t in self._tensors(name, calls) if t.dim() > 1 and t.shape[-1] == self.D}
        counts = self.counts[name, calls[0][-1]]
        for argument, _, _, sectors, wanted in self.module.traffic():
            part = counts["rows" if argument in tables else "rest"]
            part[0] += sectors
            part[1] += wanted


def todo(cases: dict[str, Case], widths: Sequence[int]) -> list[tuple[str, torch.dtype, int]]:
    """Case, type and width of each row of the report.

    Vectors of solve are float32 whatever x is, and kernels without columns have one row.
    """
    return [
        (name, dtype, D)
        for name, case in cases.items()
        for dtype in (DTYPES if case.gathers else DTYPES[:1])
        for D in (widths if case.has_columns else widths[:1])
    ]


def count(emulated: Counting, case: Case, g: uf.Graph, D: int, dtype: torch.dtype) -> dict[str, list[int]]:
    """Sectors and bytes of one step, of tables of rows and of the rest."""
    x, c = torch.ones(g.num_nodes, D, dtype=dtype), torch.ones(g.num_nodes)
    found = []
    emulated.D = D
    for steps in (1, 2):
        emulated.counts.clear()
        case.call(g, x, c, steps, _backend.EMULATED)
        sums = {"rows": [0, 0], "rest": [0, 0]}
        for (name, last), counts in emulated.counts.items():
            if name == case.kernel.removesuffix("_kernel") and case.sends in (None, last):
                for kind, (sectors, wanted) in counts.items():
                    sums[kind][0] += sectors
                    sums[kind][1] += wanted
        found.append(sums)
    return {kind: [two - one for two, one in zip(found[1][kind], found[0][kind], strict=True)] for kind in found[0]}


def row_of(emulated: Counting, name: str, g: uf.Graph, D: int, dtype: torch.dtype) -> dict[str, object]:
    """A row of the CSV."""
    case = CUDA_CASES[name]
    sizes = g.num_nodes, g.num_edges, D if case.has_columns else 0, dtype.itemsize
    counts = count(emulated, case, g, D, dtype)
    sectors, requested = (sum(part[k] for part in counts.values()) for k in (0, 1))
    no_reuse, with_numbers = case.no_reuse(*sizes), case.with_numbers(*sizes)
    rows, wanted = counts["rows"]
    return {
        **{"kernel": case.kernel.removesuffix("_kernel"), "case": name, "dtype": dtype_name(dtype), "D": sizes[2]},
        **{"N": sizes[0], "E": sizes[1], "sectors": sectors},
        "sectors_per_entry": f"{sectors / sizes[1]:.2f}" if case.gathered else "",
        "useful_rows": f"{wanted / (SECTOR * rows):.3f}" if rows else "",
        "useful": f"{requested / (SECTOR * sectors):.3f}",
        **{"requested": requested, "no_reuse": no_reuse, "with_numbers": with_numbers},
        "over_no_reuse": f"{requested / no_reuse:.3f}",
        "over_with_numbers": f"{requested / with_numbers:.3f}",
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown of the CSV's rows."""
    N, E = rows[0]["N"], rows[0]["E"]
    lines = [
        "A model, counted in the traced emulator, not a measurement: what the CUDA kernels ask for in one step, with",
        f"no cache; power-law graph, N {N}, E {E}. Useful: share of the bytes of the 32-byte sectors that warps ask",
        "for, of tables of rows, and of everything. Requested: bytes that lanes want, each once for an instruction of",
        "a warp, over the no-reuse bound (bench/traffic_cases.py), and over the same with the numbers of entries and",
        "nodes that the operator is defined with. It can be below 1: slots of a warp may want the same row at once.",
        f"Goals: at most {LIMIT:.2f} times the latter, and {USEFUL:.2f} of the sectors of float32 rows if D is a",
        "multiple of 8.",
        "",
        "| kernel | case | type | D | sectors per entry | useful, rows | useful, all | KB | / no-reuse | with |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        cells = (row["sectors_per_entry"] or "-", row["useful_rows"] or "-", row["useful"])
        lines.append(
            f"| {row['kernel']} | {row['case']} | {row['dtype']} | {int(row['D']) or '-'} | {' | '.join(cells)} |"
            f" {int(row['requested']) / 1e3:.1f} | {row['over_no_reuse']} | {row['over_with_numbers']} |"
        )
    return "\n".join(lines) + "\n"


def misses(rows: list[dict[str, Any]]) -> list[str]:
    """What is over the limit, or has too few useful bytes."""
    found = []
    for row in rows:
        name, whole = f"{row['case']}, {row['dtype']}, D {row['D']}", int(row["D"]) % 8 == 0
        if float(row["over_with_numbers"]) > LIMIT:
            found.append(f"{name}: requested {row['over_with_numbers']}")
        if whole and row["dtype"] == "float32" and row["useful_rows"] and float(row["useful_rows"]) < USEFUL:
            found.append(f"{name}: useful {row['useful_rows']}")
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.cuda_traffic", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--widths", nargs="+", type=int, default=list(WIDTHS), metavar="D", help=f"default: {WIDTHS}")
    add("--cases", nargs="+", choices=list(CUDA_CASES), default=list(CUDA_CASES), metavar="CASE",
        help=f"of {', '.join(CUDA_CASES)}")  # fmt: skip
    add("--out", type=Path, default=RESULTS, help="folder (default: bench/results)")
    args = parser.parse_args(argv)
    emulated = Counting(load(build("traced")))
    install(emulated)
    g = power_law_graph(1000, 18)  # with a hub that is cut
    graphs = {False: g, True: with_weights(g)}
    wanted = todo({name: CUDA_CASES[name] for name in args.cases}, args.widths)
    rows = rows_of_all(
        wanted, lambda name, dtype, D: row_of(emulated, name, graphs[CUDA_CASES[name].weighted], D, dtype)
    )
    write(args.out / CSV_NAME, COLUMNS, rows, table(rows))
    for line in misses(rows):
        print(f"misses a goal: {line}", file=sys.stderr)


if __name__ == "__main__":
    main()

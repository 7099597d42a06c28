"""`python -m bench.solve`: uf.ada_solve against steps of propagation, in time and in distance from the solution.

Two problems on each graph: one c for all nodes (PPNP and APPNP with alpha = 0.1), and c = 9 sigmoid(normal) per node.
The solution is compared with K = 10 steps, and with as many bare steps as conjugate gradients had iterations: what
those cost beyond their products with the matrix. Contenders take turns; samples count as in bench.run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import torch
from torch import Tensor

import ugnn_fast as uf
from bench import report
from bench.graphs import Problem, Shape, make_problem, parse_shape
from bench.run import Progress, machine
from bench.timing import MEMORY_ENVIRONMENT, MIN_SAMPLES, Call, fix_threads, measure, peak_extra_bytes

CSV_NAME, TABLE_NAME = "solve.csv", "solve.md"
SHAPES = {shape.graph: shape for shape in map(parse_shape, ("pubmed", "large_ogbn_arxiv", "large_cnr2000"))}
KINDS = ("constant", "node")
CONSTANT = 9.0  # alpha = 0.1

# fmt: off
COLUMNS = [
    "date", "graph", "N", "E", "D", "c", "tol", "iterations", "residual",
    "solve_ms", "gradient_ms", "steps_ms", "ratio", "K", "k_steps_ms", "distance",
    "peak_mb", "samples", "rejected_share",
    "machine", "cores", "threads", "torch", "ugnn_fast", "isa", "commit",
]
# fmt: on


def calls_of(problem: Problem, kind: str, tol: float) -> tuple[dict[str, Call], uf.SolveInfo, float]:
    """What is timed, how the solve ended, and how far K steps are from the solution."""
    g, x = problem.g, problem.x
    c = CONSTANT if kind == "constant" else problem.c
    f, info = uf.ada_solve(g, x, c, tol=tol, return_info=True)
    h = uf.ada_propagate(g, x, c, problem.K)
    distance = ((h - f).norm() / f.norm()).item()
    agg, skip = _step_coefficients(g, x, c)
    weights = None if kind == "constant" else c
    leaf = x.clone().requires_grad_()

    def gradient() -> tuple[Tensor, ...]:
        # both solves: F, and then lambda for the gradient of x
        return torch.autograd.grad(uf.ada_solve(g, leaf, c, tol=tol), leaf, problem.grad)

    calls: dict[str, Call] = {
        "solve": lambda: uf.ada_solve(g, x, c, tol=tol),
        "gradient": gradient,
        "steps": lambda: uf.propagate(g, x, info.iterations, agg=agg, skip=skip, c=weights),
        "k_steps": lambda: uf.propagate(g, x, problem.K, agg=agg, skip=skip, c=weights),
    }
    return calls, info, distance


def _step_coefficients(g: uf.Graph, x: Tensor, c: Tensor | float) -> tuple[Tensor | float, Tensor | float]:
    """(agg, skip) with which propagate takes the steps of ada_propagate."""
    if isinstance(c, float):
        return c / (1 + c), 1 / (1 + c)
    b = 1 / (2 + c + uf.neighbor_mean(g, c[:, None])[:, 0])
    return b, 2 * b


def peak_mb(shape: Shape, threads: int) -> float | None:
    """Peak extra MB of one solve with c per node, measured in a new process; None if that fails."""
    child = subprocess.run(
        [sys.executable, "-m", "bench.solve", "--peak-memory", str(shape), "--threads", str(threads)],
        cwd=Path(__file__).parents[1],
        env=os.environ | MEMORY_ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    return json.loads(child.stdout) if child.returncode == 0 else None


def print_peak(shape: Shape) -> None:
    """What the process of peak_mb does."""
    small = make_problem(uf.Graph.from_edge_index(torch.arange(64).repeat(2, 1)), shape.D, 1)
    uf.ada_solve(small.g, small.x, small.c)  # loads the code
    problem = make_problem(uf.datasets.load(shape.graph).graph, shape.D, 1)
    print(json.dumps(peak_extra_bytes(lambda: uf.ada_solve(problem.g, problem.x, problem.c)) / 1e6))


def run_shape(shape: Shape, args: argparse.Namespace, progress: Progress, common: dict) -> list[dict[str, object]]:
    try:
        g = uf.datasets.load(shape.graph).graph
    except (ValueError, OSError) as missing:
        progress.say(f"{shape} is left out: {missing}")
        return []
    problem = make_problem(g, shape.D, shape.K)
    peak = peak_mb(shape, args.threads)
    rows = []
    for kind in KINDS:
        calls, info, distance = calls_of(problem, kind, args.tol)

        def show(samples: int, left: float, kind: str = kind) -> None:
            progress.stage(f"{shape} {kind}: {samples}/{args.repeats} samples", left)

        samples = measure(calls, args.repeats, args.seconds, show)
        ms = {name: taken.quantiles()[1] for name, taken in samples.items()}
        rows.append(
            {
                **common,
                **{"graph": shape.graph, "N": g.num_nodes, "E": g.num_edges, "D": shape.D, "c": kind},
                **{"tol": f"{args.tol:g}", "iterations": info.iterations, "residual": f"{info.residual:.2e}"},
                **{f"{name}_ms": f"{value:.4g}" for name, value in ms.items()},
                "ratio": f"{ms['solve'] / ms['steps']:.3g}",
                **{"K": shape.K, "distance": f"{distance:.3g}"},
                "peak_mb": "" if peak is None or kind != "node" else f"{peak:.1f}",
                "samples": min(len(taken.counted) for taken in samples.values()),
                "rejected_share": f"{max(taken.rejected_share for taken in samples.values()):.2f}",
            }
        )
        progress.say(f"  {shape} {kind}: {ms['solve']:.4g} ms, {rows[-1]['ratio']}x as many steps")
    return rows


def table(rows: list[dict[str, str]]) -> str:
    lines = [
        "| graph (N / E), D | c | iterations | solve ms (peak extra MB) | solve and gradient ms | as many steps ms "
        "| ratio | 10 steps ms | distance of 10 steps |",
        f"| --- | --- |{' ---: |' * 7}",
    ]
    for row in rows:
        size = f"{row['graph']} ({int(row['N']):,} / {int(row['E']):,}), {row['D']}"
        solve = row["solve_ms"] + (f" ({row['peak_mb']})" if row["peak_mb"] else "")
        cells = (size, row["c"], row["iterations"], solve, row["gradient_ms"], row["steps_ms"], row["ratio"])
        lines.append(f"| {' | '.join(cells)} | {row['k_steps_ms']} | {row['distance']} |")
    row = rows[0]
    noise = max(float(row["rejected_share"]) for row in rows)
    about = (
        f"ada_solve to a relative residual of {row['tol']} in float32, median ms of a call, and |H - F| / |F| of"
        f" 10 steps H from the solution F. {row['machine']}, {row['threads']} of {row['cores']} cores, {row['isa']},"
        f" torch {row['torch']}, ugnn_fast {row['ugnn_fast']}, commit {row['commit']}, {row['date'][:10]}; at most"
        f" {100 * noise:.0f} % of a contender's samples were rejected as disturbed."
    )
    return f"{about}\n\n" + "\n".join(lines) + "\n"


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.solve", description=__doc__)
    add = parser.add_argument
    add("--shapes", nargs="+", metavar="SHAPE", help=f"of {', '.join(SHAPES)}, or GRAPH:D:K (default: all)")
    add("--tol", type=float, default=1e-6)
    add("--repeats", type=int, default=15, help=f"samples of each call, at least {MIN_SAMPLES} (default: 15)")
    add("--seconds", type=float, default=30, help="time per shape and kind (default: 30)")
    add("--threads", type=int, default=2)
    add("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the CSV and the table")
    add("--peak-memory", metavar="SHAPE", help="instead: peak extra MB of one solve, as JSON")
    args = parser.parse_args(argv)
    try:
        args.shapes = [parse_shape(text) for text in args.shapes or SHAPES]
        args.peak_memory = args.peak_memory and parse_shape(args.peak_memory)
    except ValueError as error:
        parser.error(str(error))
    if args.repeats < MIN_SAMPLES:
        parser.error(f"--repeats must be at least {MIN_SAMPLES}, got {args.repeats}")
    if args.threads < 1:
        parser.error(f"--threads must be at least 1, got {args.threads}")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    fix_threads(args.threads)
    if args.peak_memory:
        print_peak(args.peak_memory)
        return 0
    common = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), **machine(args.threads)}
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / CSV_NAME
    report.check_columns(path, COLUMNS)
    progress = Progress()
    rows = []
    for shape in args.shapes:
        found = run_shape(shape, args, progress, common)
        report.append(path, COLUMNS, found)  # at once: an interrupted run keeps what it has
        rows += found
    if not rows:
        return 1
    text = table(report.read_latest(path))
    (args.out / TABLE_NAME).write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

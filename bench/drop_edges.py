"""`python -m bench.drop_edges`: propagation with dropped edges against the same steps on the whole graph.

Forward steps of APPNP (alpha = 0.1), K of them in one call. Making the view (a seed and degrees) is timed apart: a
training epoch does it once. Contenders take turns; samples count as in bench.run.
"""

from __future__ import annotations

import argparse
import sys
from datetime import datetime, timezone
from pathlib import Path

import ugnn_fast as uf
from bench import report
from bench.graphs import Shape, make_problem, parse_shape
from bench.run import Progress, machine
from bench.timing import MIN_SAMPLES, Call, fix_threads, measure

CSV_NAME, TABLE_NAME = "drop_edges.csv", "drop_edges.md"
SHAPES = (
    "large_ogbn_arxiv:40:1",
    "large_ogbn_arxiv:40:10",
    "large_ogbn_arxiv:7:1",
    "large_ogbn_arxiv:7:10",
    "cora:7:10",
)
DROPS = (0.1, 0.5)

# fmt: off
COLUMNS = [
    "date", "graph", "N", "E", "D", "K", "q", "whole_ms", "dropped_ms", "ratio", "view_ms", "samples", "rejected_share",
    "machine", "cores", "threads", "torch", "ugnn_fast", "isa", "commit",
]
# fmt: on


def run_shape(shape: Shape, args: argparse.Namespace, progress: Progress, common: dict) -> list[dict[str, object]]:
    try:
        g = uf.datasets.load(shape.graph).graph
    except (ValueError, OSError) as missing:
        progress.say(f"{shape} is left out: {missing}")
        return []
    problem = make_problem(g, shape.D, shape.K)

    def steps(graph: uf.Graph) -> Call:
        return lambda: uf.propagate(graph, problem.x, shape.K, agg=0.9, skip=0.1)

    calls = {"whole": steps(g)}
    for q in DROPS:
        calls[f"dropped {q}"] = steps(uf.drop_edges(g, q, seed=1))
        calls[f"view {q}"] = lambda q=q: uf.drop_edges(g, q, seed=1)
    samples = measure(
        calls,
        args.repeats,
        args.seconds,
        lambda taken, left: progress.stage(f"{shape}: {taken}/{args.repeats} samples", left),
    )
    ms = {name: taken.quantiles()[1] for name, taken in samples.items()}
    rows = []
    for q in DROPS:
        rows.append(
            {
                **common,
                **{"graph": shape.graph, "N": g.num_nodes, "E": g.num_edges, "D": shape.D, "K": shape.K, "q": q},
                **{"whole_ms": f"{ms['whole']:.4g}", "dropped_ms": f"{ms[f'dropped {q}']:.4g}"},
                **{"ratio": f"{ms[f'dropped {q}'] / ms['whole']:.3g}", "view_ms": f"{ms[f'view {q}']:.4g}"},
                "samples": min(len(taken.counted) for taken in samples.values()),
                "rejected_share": f"{max(taken.rejected_share for taken in samples.values()):.2f}",
            }
        )
        progress.say(f"  {shape}, q = {q}: {rows[-1]['ratio']}x the whole graph")
    return rows


def table(rows: list[dict[str, str]]) -> str:
    lines = [
        "| graph, D, K | q | whole graph ms | dropped ms | ratio | making the view ms |",
        f"| --- |{' ---: |' * 5}",
    ]
    for row in rows:
        cells = (row["q"], row["whole_ms"], row["dropped_ms"], row["ratio"], row["view_ms"])
        lines.append(f"| {row['graph']}, {row['D']}, {row['K']} | {' | '.join(cells)} |")
    row = rows[0]
    about = (
        f"Forward, medians. {row['machine']}, {row['threads']} of {row['cores']} cores, {row['isa']},"
        f" torch {row['torch']}, ugnn_fast {row['ugnn_fast']}, commit {row['commit']}, {row['date'][:10]}."
    )
    return f"{about}\n\n" + "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.drop_edges", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--shapes", nargs="+", default=SHAPES, metavar="GRAPH:D:K", help=f"default: {' '.join(SHAPES)}")
    add("--repeats", type=int, default=15, help=f"samples of each, at least {MIN_SAMPLES} (default: 15)")
    add("--seconds", type=float, default=20, help="time per shape (default: 20)")
    add("--threads", type=int, default=2, help="threads of torch and our kernels (default: 2)")
    add(
        "--out", type=Path, default=Path(__file__).parent / "results", help="folder of the CSV (default: bench/results)"
    )
    args = parser.parse_args(argv)
    try:
        shapes = [parse_shape(text) for text in args.shapes]
    except ValueError as error:
        parser.error(str(error))
    if args.repeats < MIN_SAMPLES:
        parser.error(f"--repeats must be at least {MIN_SAMPLES}, got {args.repeats}")
    fix_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / CSV_NAME
    report.check_columns(path, COLUMNS)
    common = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), **machine(args.threads)}
    progress = Progress()
    rows = [row for shape in shapes for row in run_shape(shape, args, progress, common)]
    if not rows:
        return 1
    report.append(path, COLUMNS, rows)
    text = table(report.read_latest(path))
    (args.out / TABLE_NAME).write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

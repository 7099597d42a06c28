"""`python -m bench.gat`: GAT against torch_geometric's GATConv on the CPU, in one process.

layer: linear map, scores and aggregation, uf.nn.GATLayer against GATConv with the same parameters; aggregate: what is
left when rows and scores are given, uf.gat_aggregate against GATConv's softmax and message passing. fwdbwd: with
gradients of the parameters (layer), or of rows and scores (aggregate). Both are checked against each other without
dropout first; then they take turns, with attention dropout. Peak memory is measured in other processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import torch

import ugnn_fast as uf
from bench import report
from bench.run import machine
from bench.timing import MEMORY_ENVIRONMENT, MIN_SAMPLES, fix_threads, measure, peak_extra_bytes

PARTS, MODES = ("layer", "aggregate"), ("fwd", "fwdbwd")
OURS, THEIRS = "ugnn_fast", "torch_geometric"
# both are float32 sums of the same terms
_TOLERANCE = 1e-4
# fmt: off
COLUMNS = [
    "date", "op", "contender", "part", "mode", "graph", "N", "E", "in_features", "heads", "columns", "dropout",
    "p20_ms", "p50_ms", "p80_ms", "samples", "rejected_share", "peak_mb", "speedup", "memory_ratio", "max_error",
    "machine", "cores", "threads", "torch", "ugnn_fast", "isa", "commit", "torch_geometric",
]
# fmt: on


def gatconv():
    """torch_geometric's module, or a clear word that it is not there."""
    try:
        import torch_geometric
        from torch_geometric.nn import GATConv
    except ImportError as error:
        raise SystemExit(f"bench.gat compares with torch_geometric, which cannot be imported: {error}") from None
    return GATConv, torch_geometric.__version__


class Problem:
    """Inputs and both layers with the same parameters; always the same numbers."""

    def __init__(self, graph: uf.Graph, args: argparse.Namespace):
        GATConv, _ = gatconv()
        torch.manual_seed(0)
        N, F, H, D = graph.num_nodes, args.in_features, args.heads, args.columns
        self.graph, self.edge_index = graph, graph.edge_index.flip(0)  # torch_geometric: from, to
        self.x, self.grad = torch.randn(N, F), torch.randn(N, H * D)
        self.rows = torch.randn(N, H, D).requires_grad_()
        self.scores = [torch.randn(N, H).requires_grad_() for _ in range(2)]
        self.ours = uf.nn.GATLayer(F, D, heads=H)
        self.theirs = GATConv(F, D, heads=H, add_self_loops=False)  # the graph has them
        with torch.no_grad():
            self.theirs.lin.weight.copy_(self.ours.linear.weight.t())
            self.theirs.att_src.copy_(self.ours.att_src[None])
            self.theirs.att_dst.copy_(self.ours.att_dst[None])

    def set_dropout(self, q: float) -> None:
        self.ours.attention_dropout = self.theirs.dropout = q

    def forward(self, contender: str, part: str) -> torch.Tensor:
        if part == "layer":
            ours = contender == OURS
            return self.ours(self.x, self.graph) if ours else self.theirs(self.x, self.edge_index)
        if contender == OURS:
            q = self.ours.attention_dropout
            return uf.gat_aggregate(self.graph, self.rows, *self.scores, dropout=q).flatten(1)
        alpha = self.theirs.edge_updater(self.edge_index, alpha=tuple(self.scores), edge_attr=None, size=None)
        return self.theirs.propagate(self.edge_index, x=(self.rows, self.rows), alpha=alpha, size=None).flatten(1)

    def call(self, contender: str, part: str, mode: str) -> Callable[[], object]:
        if mode == "fwd":
            return torch.no_grad()(lambda: self.forward(contender, part))
        leaves = [self.rows, *self.scores]
        if part == "layer":
            module = self.ours if contender == OURS else self.theirs
            leaves = list(module.parameters())
        return lambda: torch.autograd.grad(self.forward(contender, part), leaves, self.grad)

    def gradients(self, contender: str, part: str) -> list[torch.Tensor]:
        """Result and gradients of what both have, in one order and shape."""
        y = self.forward(contender, part)
        if part == "aggregate":
            return [y.detach(), *torch.autograd.grad(y, [self.rows, *self.scores], self.grad)]
        module = self.ours if contender == OURS else self.theirs
        weight = module.linear.weight if contender == OURS else module.lin.weight
        grads = torch.autograd.grad(y, [weight, module.att_src, module.att_dst, module.bias], self.grad)
        H, D = self.ours.heads, self.ours.out_features
        weight = grads[0] if contender == OURS else grads[0].t()
        return [y.detach(), weight, *(grad.reshape(H, D) for grad in grads[1:3]), grads[3]]

    def difference(self, part: str) -> float:
        """Largest difference of results and gradients, each relative to its largest value."""
        pairs = zip(self.gradients(OURS, part), self.gradients(THEIRS, part), strict=True)
        return max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)


def measure_peak(args: argparse.Namespace, contender: str, part: str, mode: str) -> float | None:
    """Peak extra MB of one call, measured in a new process; None if that fails."""
    sizes = {"in-features": args.in_features, "heads": args.heads, "columns": args.columns, "threads": args.threads}
    command = [sys.executable, "-m", "bench.gat", "--peak-memory", contender, part, mode, "--graph", args.graph]
    command += [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
    child = subprocess.run(
        [*command, "--dropout", str(args.dropout)],
        cwd=Path(__file__).parents[1],
        env=os.environ | MEMORY_ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    return json.loads(child.stdout) if child.returncode == 0 else None


def print_peak(args: argparse.Namespace) -> None:
    """What the process of measure_peak does."""
    small = Problem(uf.Graph.from_edge_index(torch.arange(64).repeat(2, 1)), args)
    problem = Problem(uf.datasets.load(args.graph).graph, args)
    for made in (small, problem):
        made.set_dropout(args.dropout)
    small.call(*args.peak_memory)()  # loads the code
    print(json.dumps(peak_extra_bytes(problem.call(*args.peak_memory)) / 1e6))


def rows_of(args: argparse.Namespace, problem: Problem, part: str, mode: str, common: dict, error: float) -> list[dict]:
    """Measures one part and mode, prints it, and returns the rows of the CSV."""
    names = (OURS, THEIRS)
    peaks = {name: None if args.no_memory else measure_peak(args, name, part, mode) for name in names}
    samples = measure({name: problem.call(name, part, mode) for name in names}, args.repeats, args.seconds)
    p50 = {name: samples[name].quantiles()[1] for name in names}
    speedup = p50[THEIRS] / p50[OURS]
    ours, theirs = peaks[OURS], peaks[THEIRS]
    ratio = theirs / ours if ours and theirs else None
    rows = []
    for name in names:
        p20, median, p80 = samples[name].quantiles()
        peak = "" if peaks[name] is None else f"{peaks[name]:.1f}"
        gain = f"{speedup:>7.1f}x {f'{ratio:.1f}x' if ratio else '':>7}" if name == OURS else ""
        print(f"{part:10}{mode:8}{name:17}{median:>10.1f} {peak:>10}{gain}", flush=True)
        rows.append(
            {
                **common,
                **{"op": "gat_aggregate", "contender": name, "part": part, "mode": mode, "graph": args.graph},
                **{"N": problem.graph.num_nodes, "E": problem.graph.num_edges, "in_features": args.in_features},
                **{"heads": args.heads, "columns": args.columns, "dropout": args.dropout},
                **{"p20_ms": f"{p20:.4g}", "p50_ms": f"{median:.4g}", "p80_ms": f"{p80:.4g}"},
                "samples": len(samples[name].counted),
                "rejected_share": f"{samples[name].rejected_share:.2f}",
                "peak_mb": peak,
                "speedup": f"{speedup:.3g}" if name == OURS else "",
                "memory_ratio": f"{ratio:.3g}" if name == OURS and ratio else "",
                "max_error": f"{error:.1e}",
            }
        )
    return rows


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gat", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--graph", default="large_ogbn_arxiv", help="of uf.datasets.load (default: large_ogbn_arxiv, in $UGNN_DATA)")
    add("--in-features", type=int, default=128)
    add("--heads", type=int, default=8)
    add("--columns", type=int, default=8, help="of each head (default: 8)")
    add("--dropout", type=float, default=0.6, help="of the attention (default: 0.6)")
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    add("--modes", nargs="+", choices=MODES, default=list(MODES))
    add("--repeats", type=int, default=MIN_SAMPLES, help=f"samples, at least {MIN_SAMPLES} (default)")
    add("--seconds", type=float, default=60, help="time per part and mode; may be exceeded (default: 60)")
    add("--threads", type=int, default=2)
    add("--no-memory", action="store_true", help="do not measure peak memory")
    add("--out", type=Path, default=Path(__file__).parent / "results", help="folder of gat_aggregate.csv")
    add("--peak-memory", nargs=3, metavar=("CONTENDER", "PART", "MODE"), help="instead: peak extra MB of one call")
    args = parser.parse_args(argv)
    if args.repeats < MIN_SAMPLES:
        parser.error(f"--repeats must be at least {MIN_SAMPLES}, got {args.repeats}")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    _, version = gatconv()
    fix_threads(args.threads)
    if args.peak_memory:
        print_peak(args)
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "gat_aggregate.csv"
    report.check_columns(path, COLUMNS)
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    common = {"date": date, **machine(args.threads), "torch_geometric": version}
    problem = Problem(uf.datasets.load(args.graph).graph, args)
    size = f"N {problem.graph.num_nodes:,}, E {problem.graph.num_edges:,}"
    print(f"{args.graph}: {size}; {args.heads} heads x {args.columns}, attention dropout {args.dropout:g}")
    print(
        f"{'part':10}{'mode':8}{'contender':17}{'median ms':>10} {'peak MB':>10}{'faster':>8} {'memory':>7}", flush=True
    )
    all_right = True
    for part in args.parts:
        problem.set_dropout(0.0)
        error = problem.difference(part)
        if not error < _TOLERANCE:
            print(f"{part}: results differ by {error:.1e}, more than {_TOLERANCE:.0e}, and are not timed")
            all_right = False
            continue
        problem.set_dropout(args.dropout)
        for mode in args.modes:
            report.append(path, COLUMNS, rows_of(args, problem, part, mode, common, error))
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())

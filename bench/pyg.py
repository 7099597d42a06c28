"""`python -m bench.pyg`: the layers of ugnn_fast.pyg against torch_geometric's own, forward + backward, in one process.

Every contender is compared with the first one before it is timed, result and gradients. Then they take turns, as in
bench.run. Results are appended to results/pyg.csv, and results/pyg.md is the table of the run.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import torch
import torch_geometric
from torch import Tensor

import ugnn_fast as uf
from bench.run import Progress, machine
from bench.timing import MEMORY_ENVIRONMENT, Samples, fix_threads, measure, peak_extra_bytes

OURS, THEIRS = "ugnn_fast", "torch_geometric"
# theirs with cached=True, and with a torch.sparse CSR matrix in place of edge_index
CONTENDERS = (THEIRS, f"{THEIRS} cached", f"{THEIRS} csr", OURS)
# arguments of each layer beside its widths
LAYERS: dict[str, dict] = {
    "APPNP": {"K": 10, "alpha": 0.1},
    "GCN2Conv": {"alpha": 0.1, "theta": 0.5, "layer": 1},
    "SGConv": {"K": 2},
    "SSGConv": {"alpha": 0.05, "K": 4},
    "LabelPropagation": {"num_layers": 10, "alpha": 0.9},
}
# what SGConv and SSGConv keep with cached=True leaves no propagation to time
CAN_CACHE = ("APPNP", "GCN2Conv")
COLUMNS = [
    "date", "layer", "arguments", "contender", "graph", "N", "E", "D", "p20_ms", "p50_ms", "p80_ms", "samples",
    "rejected_share", "peak_mb", "speedup", "machine", "cores", "threads", "torch", "torch_geometric", "ugnn_fast",
    "isa", "commit",
]  # fmt: skip

Call = Callable[[], list[Tensor]]


def contenders_of(layer: str) -> list[str]:
    return [name for name in CONTENDERS if "cached" not in name or layer in CAN_CACHE]


def arguments_of(layer: str, steps: int | None) -> dict:
    """LAYERS[layer], with another number of steps if that is given and the layer has one."""
    own = LAYERS[layer]
    return {name: steps if steps and name in ("K", "num_layers") else value for name, value in own.items()}


def make_call(layer: str, contender: str, g: uf.Graph, D: int, steps: int | None = None) -> Call:
    """Forward + backward (LabelPropagation has no backward): [result, gradients of x and of the parameters]."""
    package = uf.pyg if contender == OURS else torch_geometric.nn
    widths = {"GCN2Conv": {"channels": D}, "SGConv": {"in_channels": D, "out_channels": D}}
    widths["SSGConv"] = widths["SGConv"]
    options = {"cached": True} if "cached" in contender else {}
    torch.manual_seed(0)
    module = getattr(package, layer)(**widths.get(layer, {}), **arguments_of(layer, steps), **options)
    edges: Tensor = g.edge_index[:, g.edge_index[0] != g.edge_index[1]].contiguous()
    if "csr" in contender:
        ones = torch.ones(edges.shape[1])
        size = (g.num_nodes, g.num_nodes)
        edges = torch.sparse_coo_tensor(edges.flip(0), ones, size, check_invariants=False).coalesce().to_sparse_csr()
    random = torch.Generator().manual_seed(1)
    x, grad = torch.randn(2, g.num_nodes, D, generator=random)
    if layer == "LabelPropagation":
        return lambda: [module(x, edges)]
    features = [x.requires_grad_()] * (2 if layer == "GCN2Conv" else 1)
    wanted = [x, *module.parameters()]

    def call() -> list[Tensor]:
        out = module(*features, edges)
        return [out.detach(), *torch.autograd.grad(out, wanted, grad)]

    return call


def why_wrong(found: list[Tensor], expected: list[Tensor]) -> str | None:
    for name, f, e in zip(("result", "gradient of x", *["gradient of a parameter"] * 9), found, expected, strict=False):
        error = ((f - e).abs().max() / e.abs().max().clamp(min=1)).item()
        if not error < 1e-4:
            return f"{name} is off by {error:.1e}"
    return None


def peak_mb(layer: str, contender: str, args: argparse.Namespace) -> float | None:
    """Peak extra MB of one call, measured in a new process; None if that fails."""
    command = [sys.executable, "-m", "bench.pyg", "--peak-memory", layer, contender, "--graph", args.graph]
    numbers = {"--width": args.width, "--steps": args.steps or 0, "--threads": args.threads}
    child = subprocess.run(
        [*command, *(str(word) for pair in numbers.items() for word in pair)],
        cwd=Path(__file__).parents[1],
        env=os.environ | MEMORY_ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    return json.loads(child.stdout) if child.returncode == 0 else None


def print_peak(layer: str, contender: str, args: argparse.Namespace) -> None:
    call = make_call(layer, contender, uf.datasets.load(args.graph).graph, args.width, args.steps)
    call()  # loads the code, and builds what is kept between calls
    print(json.dumps(peak_extra_bytes(call) / 1e6))


def measure_layer(layer: str, g: uf.Graph, args: argparse.Namespace, progress: Progress) -> list[dict]:
    """A row for each contender that is right."""
    calls: dict[str, Call] = {}
    expected = None
    for name in contenders_of(layer):
        calls[name] = make_call(layer, name, g, args.width, args.steps)
        found = calls[name]()
        expected = expected or found
        if wrong := why_wrong(found, expected):
            progress.say(f"  {layer}, {name} is WRONG and not timed: {wrong}")
            del calls[name]
    samples: dict[str, Samples] = measure(
        calls, args.repeats, args.seconds, lambda count, left: progress.stage(f"{layer}: {count} samples", left)
    )
    rows = []
    for name, taken in samples.items():
        p20, p50, p80 = taken.quantiles()
        peak = None if args.no_memory else peak_mb(layer, name, args)
        ours = samples[OURS].quantiles()[1] if OURS in samples else float("nan")
        rows.append(
            {
                "layer": layer,
                "arguments": " ".join(f"{key}={value}" for key, value in arguments_of(layer, args.steps).items()),
                "contender": name,
                **{"graph": args.graph, "N": g.num_nodes, "E": g.num_edges, "D": args.width},
                **{"p20_ms": f"{p20:.4g}", "p50_ms": f"{p50:.4g}", "p80_ms": f"{p80:.4g}"},
                "samples": len(taken.counted),
                "rejected_share": f"{taken.rejected_share:.2f}",
                "peak_mb": "" if peak is None else f"{peak:.1f}",
                "speedup": f"{p50 / ours:.3g}",
            }
        )
        progress.say(f"  {layer}, {name}: {p50:.4g} ms, {p50 / ours:.3g} times ours")
    return rows


def table(rows: list[dict]) -> str:
    """Markdown: a line per layer, median ms (peak extra MB; times ours) of each contender."""
    first = rows[0]
    rejected = 100 * max(float(row["rejected_share"]) for row in rows)
    lines = [
        f"Forward + backward (LabelPropagation: forward), {first['graph']} (N = {first['N']:,}, E = {first['E']:,} with"
        f" loops), D = {first['D']}, float32: median ms (peak extra MB), and how many times ours. {first['machine']},"
        f" {first['threads']} threads, {first['isa']}, torch {first['torch']}, torch_geometric"
        f" {first['torch_geometric']}, commit {first['commit']}, {first['date'][:10]}; at most {rejected:.0f} % of a"
        " contender's samples were rejected as disturbed.",
        "",
        f"| layer | {' | '.join(CONTENDERS)} |",
        f"| --- |{' ---: |' * len(CONTENDERS)}",
    ]
    for layer in dict.fromkeys(row["layer"] for row in rows):
        found = {row["contender"]: row for row in rows if row["layer"] == layer}
        cells = []
        for name in CONTENDERS:
            if name not in found:
                cells.append("")
                continue
            row = found[name]
            times = "" if name == OURS else f", {row['speedup']}x"
            cells.append(f"{row['p50_ms']} ({row['peak_mb'] or '?'}){times}")
        lines.append(f"| {layer} {found[OURS]['arguments']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=list(LAYERS))
    parser.add_argument("--graph", default="large_ogbn_arxiv")
    parser.add_argument("--width", type=int, default=40)
    parser.add_argument("--steps", type=int, help="of layers that have several, in place of the usual number")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=60, help="for one layer, if the machine is not disturbed")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--peak-memory", nargs=2, metavar=("LAYER", "CONTENDER"), help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    fix_threads(args.threads)
    if args.peak_memory:
        print_peak(*args.peak_memory, args)
        return 0
    progress = Progress()
    g = uf.datasets.load(args.graph).graph
    rows = [row for layer in args.layers for row in measure_layer(layer, g, args, progress)]
    common = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **machine(args.threads),
        "torch_geometric": torch_geometric.__version__,
    }
    rows = [{**common, **row} for row in rows]
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "pyg.csv"
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerows(rows)
    text = table(rows)
    (args.out / "pyg.md").write_text(text)
    print(text)
    complete = all(len(contenders_of(layer)) == sum(row["layer"] == layer for row in rows) for layer in args.layers)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())

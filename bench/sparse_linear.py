"""Times dropout(x) @ weight + bias for sparse features, forward and backward in weight and bias, against torch.

    UGNN_DATA=... python -m bench.sparse_linear            # coauthor_physics, 64 columns, dropout 0.5
    python -m bench.sparse_linear --density                # from which share of entries on a dense product is faster

Contenders take turns; medians of undisturbed samples; peak extra memory from a process of its own. Results are appended
to sparse_linear.csv in bench/results, of which sparse_linear.md shows the latest run.
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
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import ugnn_fast as uf
from bench import report
from bench.run import machine
from bench.timing import MEMORY_ENVIRONMENT, MIN_SAMPLES, Samples, fix_threads, measure, peak_extra_bytes
from ugnn_fast import ops
from ugnn_fast._sparse import sparse_features

OURS = "ugnn_fast"
TOLERANCE = 1e-5
# fmt: off
COLUMNS = [
    "date", "op", "contender", "data", "N", "F", "E", "D", "dropout", "p20_ms", "p50_ms", "p80_ms", "samples",
    "rejected_share", "peak_mb", "ratio", "max_error", "machine", "cores", "threads", "torch", "ugnn_fast", "isa",
    "commit",
]
# fmt: on

# layer(weight, bias) -> result, for a given x and share of dropout
Layer = Callable[[Tensor, Tensor], Tensor]


def _keep(values: Tensor, p: float) -> Tensor:
    """Dropout in the fastest way torch has."""
    return values * torch.rand(values.shape).ge_(p).mul_(1 / (1 - p)) if p else values


def _csr(crow: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    return torch.sparse_csr_tensor(crow, col, values, shape, check_invariants=False)


def ours(x: Tensor, p: float) -> Layer:
    return lambda weight, bias: uf.sparse_linear(x, weight, bias, dropout=p)


def torch_csr(x: Tensor, p: float) -> Layer:
    """The sparse product as a user writes it, differentiated by torch."""

    def layer(weight: Tensor, bias: Tensor) -> Tensor:
        values = F.dropout(x.values(), p)
        return _csr(x.crow_indices(), x.col_indices(), values, tuple(x.shape)) @ weight + bias

    return layer


def torch_csr_transposed(x: Tensor, p: float) -> Layer:
    """The same with a backward by hand, on a transpose that is made once, and the faster dropout."""
    N, columns = x.shape
    crow, col = x.crow_indices(), x.col_indices()
    order = col.argsort(stable=True)
    t_col = torch.arange(N).repeat_interleave(crow.diff())[order]
    t_crow = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(col, minlength=columns).cumsum(0)])

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weight: Tensor, bias: Tensor) -> Tensor:
            values = _keep(x.values(), p)
            ctx.save_for_backward(values)
            return torch.addmm(bias, _csr(crow, col, values, (N, columns)), weight)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            (values,) = ctx.saved_tensors
            return _csr(t_crow, t_col, values.index_select(0, order), (columns, N)) @ grad, grad.sum(0)

    return Product.apply


def torch_dense(x: Tensor, p: float) -> Layer:
    dense = x.to_dense()
    return lambda weight, bias: F.linear(F.dropout(dense, p), weight.t(), bias)


CONTENDERS = {
    OURS: ours,
    "torch_csr_transposed": torch_csr_transposed,
    "torch_csr": torch_csr,
    "torch_dense": torch_dense,
}


def parameters(x: Tensor, D: int) -> tuple[Tensor, Tensor, Tensor]:
    """weight, bias and the gradient of the result."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(x.shape[1], D, generator=generator) / x.shape[1] ** 0.5
    bias = torch.randn(D, generator=generator)
    return weight.requires_grad_(), bias.requires_grad_(), torch.randn(x.shape[0], D, generator=generator)


def call_of(layer: Layer, x: Tensor, D: int) -> Callable[[], tuple[Tensor, ...]]:
    weight, bias, grad = parameters(x, D)

    def call() -> tuple[Tensor, ...]:
        out = layer(weight, bias)
        return out.detach(), *torch.autograd.grad(out, (weight, bias), grad)

    return call


def max_error(name: str, x: Tensor, D: int) -> float:
    """Largest relative error of result and gradients without dropout, where all contenders compute the same."""
    weight, bias, grad = (t.detach().double() for t in parameters(x, D))
    exact_x = _csr(x.crow_indices(), x.col_indices(), x.values().double(), tuple(x.shape)).to_sparse_coo()
    exact = exact_x @ weight + bias, exact_x.t() @ grad, grad.sum(0)
    got = call_of(CONTENDERS[name](x, 0.0), x, D)()
    return max(((g - e).norm() / e.norm()).item() for g, e in zip(got, exact, strict=True))


def features(name: str) -> Tensor:
    return uf.datasets.row_normalize(uf.datasets.load(name).x)


def peak_mb(name: str, args: argparse.Namespace) -> float | None:
    """Peak extra MB of one call, measured in a new process; None if that fails."""
    command = [sys.executable, "-m", "bench.sparse_linear", "--peak-memory", name, "--data", args.data]
    options = ["-D", str(args.columns), "--dropout", str(args.dropout), "--threads", str(args.threads)]
    here, environment = Path(__file__).parents[1], os.environ | MEMORY_ENVIRONMENT
    child = subprocess.run([*command, *options], cwd=here, env=environment, capture_output=True, text=True)
    return json.loads(child.stdout) if child.returncode == 0 else None


def print_peak(args: argparse.Namespace) -> None:
    """What the process of peak_mb does."""
    small = torch.eye(8).to_sparse_csr()
    call_of(CONTENDERS[args.peak_memory](small, args.dropout), small, args.columns)()  # loads the code
    x = features(args.data)
    layer = CONTENDERS[args.peak_memory](x, args.dropout)
    if args.peak_memory == OURS:
        sparse_features(x)  # once per x, as the structures of the others
    print(json.dumps(peak_extra_bytes(call_of(layer, x, args.columns)) / 1e6))


def run(args: argparse.Namespace) -> bool:
    """Measures all contenders; whether they were right."""
    path = args.out / "sparse_linear.csv"
    report.check_columns(path, COLUMNS)
    common = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), **machine(args.threads)}
    x, D = features(args.data), args.columns
    N, columns = x.shape
    print(f"{args.data}: {N:,} x {columns:,}, {x._nnz():,} entries, D {D}, dropout {args.dropout:g}", flush=True)
    errors = {name: max_error(name, x, D) for name in args.contenders}
    right = {name: error < TOLERANCE for name, error in errors.items()}
    peaks = {} if args.no_memory else {name: peak_mb(name, args) for name in args.contenders}
    calls = {name: call_of(CONTENDERS[name](x, args.dropout), x, D) for name in args.contenders if right[name]}
    samples = measure(calls, args.repeats, args.seconds)
    p50 = {name: taken.quantiles()[1] for name, taken in samples.items()}
    rows = []
    for name, taken in samples.items():
        times = [f"{ms:.4g}" for ms in taken.quantiles()]
        peak = peaks.get(name)
        rows.append(
            {
                **common,
                **{"op": "sparse_linear", "contender": name, "data": args.data},
                **{"N": N, "F": columns, "E": x._nnz(), "D": D, "dropout": args.dropout},
                **dict(zip(("p20_ms", "p50_ms", "p80_ms"), times, strict=True)),
                **{"samples": len(taken.counted), "rejected_share": f"{taken.rejected_share:.2f}"},
                "peak_mb": "" if peak is None else f"{peak:.1f}",
                "ratio": f"{p50[name] / p50[OURS]:.3g}" if OURS in p50 else "",
                "max_error": f"{errors[name]:.1e}",
            }
        )
    report.append(path, COLUMNS, rows)
    text = table(rows, samples)
    print(text)
    (args.out / "sparse_linear.md").write_text(text)
    for name in args.contenders:
        if not right[name]:
            print(f"{name} is wrong: relative error {errors[name]:.1e}")
    return all(right.values())


def table(rows: list[dict[str, Any]], samples: dict[str, Samples]) -> str:
    row = rows[0]
    worst = max(taken.rejected_share for taken in samples.values())
    lines = [
        f"dropout({row['dropout']:g}) @ weight + bias, forward and backward in weight and bias: {row['data']}, "
        f"{row['N']:,} x {row['F']:,}, {row['E']:,} entries, {row['D']} columns. {row['machine']}, {row['threads']} "
        f"threads, {row['isa']}, torch {row['torch']}, commit {row['commit']}, {row['date'][:10]}; at most "
        f"{100 * worst:.0f} % of a contender's samples were rejected as disturbed.",
        "",
        "| contender | p20 ms | median ms | p80 ms | peak extra MB | / ugnn_fast |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    keys = ("contender", "p20_ms", "p50_ms", "p80_ms", "peak_mb", "ratio")
    return "\n".join([*lines, *("| " + " | ".join(str(r[key]) for key in keys) + " |" for r in rows), ""])


def run_density(args: argparse.Namespace) -> None:
    """Sparse kernel against x made dense in every call: what DENSE_FROM of ugnn_fast/nn/sparse_linear.py rests on."""
    N, columns = 4000, 1000
    print("share of entries: time of the sparse kernel / time of the dense product, forward and backward")
    for D in (16, 64, 256):
        for p in (0.0, 0.5):
            ratios = []
            for share in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0):
                x = (torch.randn(N, columns) * (torch.rand(N, columns) < share)).to_sparse_csr()
                entries, seed = sparse_features(x)[:3], torch.arange(1) if p else None

                def dense(weight: Tensor, bias: Tensor, entries=entries, seed=seed, p=p) -> Tensor:
                    made = ops.sparse_dense((), *entries, columns, p, seed, "cpu")
                    return torch.addmm(bias, made, weight)

                calls = {OURS: call_of(ours(x, p), x, D), "dense": call_of(dense, x, D)}
                taken = measure(calls, args.repeats, args.seconds)
                ratios.append(f"{share:g}: {taken[OURS].quantiles()[1] / taken['dense'].quantiles()[1]:.2f}")
            print(f"D {D:3}, dropout {p:g}   {'   '.join(ratios)}", flush=True)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.sparse_linear",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", default="coauthor_physics", help="data set whose features are taken (default: coauthor_physics)")
    add("-D", "--columns", type=int, default=64, help="columns of the weight (default: 64)")
    add("--dropout", type=float, default=0.5, help="share of lost entries (default: 0.5)")
    add("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS), help="only these")
    add("--repeats", type=int, default=15, help="samples of each contender (default: 15)")
    add("--seconds", type=float, default=60, help="time for all of them (default: 60)")
    add("--threads", type=int, default=2, help="threads of torch, MKL and our kernels (default: 2)")
    add("--no-memory", action="store_true", help="do not measure peak memory")
    add("--density", action="store_true", help="instead: sparse kernel against dense product over densities")
    add("--peak-memory", choices=list(CONTENDERS), help="instead: peak extra MB of one contender, as JSON")
    results = Path(__file__).parent / "results"
    add("--out", type=Path, default=results, help="folder of the CSV (default: bench/results)")
    args = parser.parse_args(argv)
    if args.repeats < MIN_SAMPLES:
        parser.error(f"--repeats must be at least {MIN_SAMPLES}, got {args.repeats}")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    fix_threads(args.threads)
    if args.peak_memory:
        print_peak(args)
        return 0
    if args.density:
        run_density(args)
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    return 0 if run(args) else 1


if __name__ == "__main__":
    sys.exit(main())

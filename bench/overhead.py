"""`python -m bench.overhead`: what one call of ada_propagate costs beyond its kernel, on 3 nodes, D = 1, K = 1."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

import ugnn_fast as uf
from bench import report
from bench.machine import RESULTS, machine, now
from bench.timing import MIN_SAMPLES, fix_threads, kernel_microseconds, measure

CSV_NAME = "overhead.csv"
# Cost of a call beyond its kernel that we promise not to exceed, microseconds.
LIMITS = {"forward, no gradient": 30, "forward, autograd on": 30, "forward + backward": 80}
# fmt: off
COLUMNS = [
    "date", "machine", "cores", "threads", "torch", "ugnn_fast", "isa", "commit",
    "call", "p20_us", "p50_us", "p80_us", "kernel_us", "limit_us", "rejected_share",
]
# fmt: on


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__)
    add = parser.add_argument
    add("--repeats", type=int, default=15, help=f"samples of each call, at least {MIN_SAMPLES} (default: 15)")
    add("--seconds", type=float, default=60, help="time for all of them (default: 60)")
    add("--threads", type=int, default=2, help="threads of torch and our kernels (default: 2)")
    add("--out", type=Path, default=RESULTS, help=f"folder of {CSV_NAME} (default: bench/results)")
    args = parser.parse_args(argv)
    if args.repeats < MIN_SAMPLES:
        parser.error(f"--repeats must be at least {MIN_SAMPLES}, got {args.repeats}")
    fix_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / CSV_NAME
    report.check_columns(path, COLUMNS)
    common = {"date": now(), **machine(), "threads": args.threads}
    g = uf.Graph.from_edge_index([[0, 1, 1, 2], [1, 0, 2, 1]])
    x, c, grad = torch.randn(3, 1), torch.rand(3), torch.randn(3, 1)
    xg, cg = x.clone().requires_grad_(), c.clone().requires_grad_()

    def with_autograd() -> torch.Tensor:
        return uf.ada_propagate(g, xg, cg, 1, backend="cpu", memory="save")

    calls = {
        "forward, no gradient": lambda: uf.ada_propagate(g, x, c, 1, backend="cpu"),
        "forward, autograd on": with_autograd,
        "forward + backward": lambda: torch.autograd.grad(with_autograd(), (xg, cg), grad),
        "x.clone()": x.clone,
        "x.clone(), forward + backward": lambda: torch.autograd.grad(xg.clone(), xg, grad),
    }
    samples = measure(calls, args.repeats, args.seconds)
    print(f"One call on 3 nodes, D = 1, K = 1, {args.threads} threads, microseconds; beyond: p50 less kernel\n")
    print(f"{'call':32}{'p20':>8}{'p50':>8}{'p80':>8}{'kernel':>8}{'beyond':>8}{'limit':>8}")
    for name, taken in samples.items():
        times = [1000 * ms for ms in taken.quantiles()]
        kernel = kernel_microseconds(calls[name])
        limit = LIMITS.get(name, "")
        print(f"{name:32}{''.join(f'{us:8.1f}' for us in (*times, kernel, times[1] - kernel))}{limit:>8}")
        numbers = (*(f"{us:.1f}" for us in (*times, kernel)), limit, f"{taken.rejected_share:.2f}")
        row = {**common, "call": name, **dict(zip(COLUMNS[-6:], numbers, strict=True))}
        report.append(path, COLUMNS, [row])
    return 0


if __name__ == "__main__":
    sys.exit(main())

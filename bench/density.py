"""`python -m bench.density`: from which share of stored entries on a dense product is faster than sparse_linear.

x is made dense in every call, with its mask; forward and backward. DENSE_FROM of ugnn_fast/nn/sparse_linear.py rests
on it.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import Tensor

from bench.ops.sparse_linear import ours
from bench.registry import OURS, Problem, with_autograd
from bench.timing import MIN_SAMPLES, fix_threads, measure
from ugnn_fast import Graph, ops
from ugnn_fast._sparse import sparse_features

N, COLUMNS = 4000, 1000
SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)


def ratio(D: int, p: float, share: float, repeats: int, seconds: float, rows: int = N) -> float:
    """Time of the sparse kernel / time of the dense product."""
    x = (torch.randn(rows, COLUMNS) * (torch.rand(rows, COLUMNS) < share)).to_sparse_csr()
    weight, bias, grad = torch.randn(COLUMNS, D), torch.randn(D), torch.randn(rows, D)
    no_graph = Graph.from_edge_index([[], []], rows)
    problem = Problem(no_graph, (weight, bias), grad, dropout=p, features=x)
    entries, seed = sparse_features(x)[:3], torch.arange(1) if p else None

    def dense(weight: Tensor, bias: Tensor) -> Tensor:
        return torch.addmm(bias, ops.sparse_dense((), *entries, COLUMNS, p, seed, "cpu"), weight)

    calls = {OURS: ours(problem)["fwdbwd"], "dense": with_autograd(problem, dense)["fwdbwd"]}
    taken = measure(calls, repeats, seconds)
    return taken[OURS].quantiles()[1] / taken["dense"].quantiles()[1]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.density", description=__doc__)
    parser.add_argument("--repeats", type=int, default=15, help="samples of each (default: 15)")
    parser.add_argument("--seconds", type=float, default=10, help="time for each share (default: 10)")
    parser.add_argument("--threads", type=int, default=1, help="default: 1")
    args = parser.parse_args(argv)
    if args.repeats < MIN_SAMPLES:
        parser.error(f"--repeats must be at least {MIN_SAMPLES}, got {args.repeats}")
    fix_threads(args.threads)
    print("share of entries: time of the sparse kernel / time of the dense product, forward and backward")
    for D in (16, 64, 256):
        for p in (0.0, 0.5):
            found = [f"{share:g}: {ratio(D, p, share, args.repeats, args.seconds):.2f}" for share in SHARES]
            print(f"D {D:3}, dropout {p:g}   {'   '.join(found)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`ugnn-fast bench`: arguments in, a call of the harness out, which is the folder bench of the source tree."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType


def add_bench(commands) -> None:
    parser = commands.add_parser(
        "bench",
        help="time operators and training epochs against other libraries",
        description="Times operators and whole training epochs against the same computation with other libraries, "
        "contenders interleaved, each checked against float64 before; and against a bare gather, the bound. Appends "
        "to bench.csv in the folder as it goes, and writes bench.md and pictures. Peers that cannot be imported are "
        "named. The harness is part of the source tree: install with pip install -e, or make bench.",
    )
    add = parser.add_argument
    add("--list", action="store_true", help="show operators, their cases and contenders, and stop")
    add("--op", nargs="+", metavar="NAME", help="only these (default: all)")
    add(
        "--graph",
        nargs="+",
        metavar="NAME",
        help="data sets, toy, or power_law-N-E such as power_law-1e6-2e7; NAME@ORDER: in an order of Graph.reorder",
    )
    add("--dim", nargs="+", type=int, metavar="D", help="widths (default: those of the operator's cases)")
    add("--steps", nargs="+", type=int, metavar="K", help="numbers of steps (default: those of the cases)")
    add("--mode", nargs="+", metavar="MODE", help="fwd, fwdbwd (with gradients), epoch (default: all)")
    add("--dtype", nargs="+", default=["float32", "bfloat16"], help="of our tables; peers have float32 (default: both)")
    add("--contenders", nargs="+", metavar="NAME", help="only these (default: all)")
    add("--threads", nargs="+", type=int, default=[2], metavar="N", help="one run for each (default: 2)")
    add("--repeats", type=int, default=15, metavar="N", help="samples of each contender, at least 7 (default: 15)")
    add("--seconds", type=float, default=60.0, metavar="S", help="for each case, mode and N; may be exceeded to get 7")
    add("--limit", type=float, default=30.0, metavar="S", help="leave out who takes longer for a call (default: 30)")
    add("--growth", action="store_true", help="generated graphs, 10^4 to 2x10^7 entries, D 3 to 128, K 2 to 10")
    add("--against", metavar="COMMIT", help="compare with that commit instead, by time and by instructions (valgrind)")
    add("--no-memory", action="store_true", help="do not measure peak memory")
    add("--quick", action="store_true", help="a toy graph, 7 samples, nothing compiled: does it work?")
    add("--out", metavar="DIR", help="folder for the results (default: bench/results of the source tree)")
    parser.set_defaults(run=_bench)


def _bench(args: argparse.Namespace) -> int:
    harness = _harness()
    if args.list:
        print(harness.listing())
        return 0
    options = harness.Options(
        ops=args.op,
        graphs=args.graph,
        dims=args.dim,
        steps=args.steps,
        modes=args.mode,
        dtypes=args.dtype,
        contenders=args.contenders,
        threads=args.threads,
        repeats=args.repeats,
        seconds=args.seconds,
        limit=args.limit,
        memory=not args.no_memory,
        quick=args.quick,
        growth=args.growth,
        against=args.against,
        out=None if args.out is None else Path(args.out),
    )
    return harness.run(options)


def _harness() -> ModuleType:
    """bench.run of the source tree that this package was installed from."""
    root = Path(__file__).resolve().parents[1]
    if not (root / "bench" / "run.py").is_file():
        raise ValueError(
            f"bench must lie beside the package, got none in {root}: it is part of the source tree and not installed; "
            "in a clone, run pip install --no-build-isolation -e . or make bench"
        )
    sys.path.insert(0, str(root))
    return import_module("bench.run")

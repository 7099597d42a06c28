"""`python -m bench.run`: uf.ada_propagate against the same computation with other libraries, in one process.

Every contender is checked against float64 first, forward and both gradients; a wrong one is named and not
timed. Then the contenders take turns, so that a change of the machine's speed meets all of them. A sample
counts only if our threads waited under 2 % of it for a core. Peak memory is measured in other processes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import torch

import ugnn_fast as uf
from bench import report
from bench.contenders import CONTENDERS, MODES, Calls, Contender, errors, why_wrong
from bench.graphs import BFLOAT16, QUICK, SHAPES, Problem, Shape, make_problem, parse_shape, reference_results
from bench.timing import (
    MEMORY_ENVIRONMENT,
    MIN_SAMPLES,
    fix_threads,
    kernel_microseconds,
    measure,
    peak_extra_bytes,
    stream_bandwidth,
)
from ugnn_fast._native import native

# Cost of a call beyond its kernel that we promise not to exceed, microseconds.
OVERHEAD_LIMITS = {"forward, no gradient": 30, "forward, autograd on": 30, "forward + backward": 80}


class Progress:
    """One line on stderr: what runs, how far it is, how long the rest may take."""

    def __init__(self) -> None:
        self.later = 0.0  # seconds that the stages after this one may take
        self.shown = 0.0
        self.terminal = sys.stderr.isatty()

    def say(self, text: str) -> None:
        print(f"\r\x1b[K{text}" if self.terminal else text, file=sys.stderr, flush=True)

    def stage(self, text: str, left: float) -> None:
        now = time.monotonic()
        if now - self.shown < (0.2 if self.terminal else 10):
            return
        self.shown = now
        line = f"{text}, about {math.ceil(left + self.later)} s left"
        print(
            f"\r\x1b[K{line}" if self.terminal else line,
            end="" if self.terminal else "\n",
            file=sys.stderr,
            flush=True,
        )


def machine(threads: int) -> dict[str, object]:
    """What every row says of the machine and the versions."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "machine": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": threads,
        "torch": torch.__version__,
        "ugnn_fast": uf.__version__,
        "isa": native.isa() if native is not None else "none",
        "commit": commit(),
    }


def commit() -> str:
    """Short hash, with + if files differ from it."""

    def git(*args: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(["git", *args], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "none"


def contenders_for(shape: Shape, names: list[str] | None) -> list[Contender]:
    """float32 ones, and our bfloat16 where BFLOAT16 says; or exactly those named."""
    if names:
        return [CONTENDERS[name] for name in names]
    return [c for c in CONTENDERS.values() if c.dtype == torch.float32 or shape.graph in BFLOAT16]


def checked_calls(
    problem: Problem, contenders: list[Contender], say
) -> tuple[dict[str, Calls], dict[str, float], bool]:
    """Calls and largest error of every contender that is right, and whether all were."""
    expected = reference_results(problem)
    calls, found, all_right = {}, {}, True
    for contender in contenders:
        if reason := contender.refuse(problem):
            say(f"  {contender.label} is left out: {reason}")
            continue
        try:
            made = contender.make(problem.to(contender.dtype))
            error = errors(contender, made, expected)
            wrong = why_wrong(contender, error)
        except Exception as failure:  # a contender that fails shall not end the run of the others
            wrong = f"{type(failure).__name__}: {failure}"
        if wrong:
            say(f"  {contender.label} is WRONG and not timed: {wrong}")
            all_right = False
        else:
            calls[contender.label], found[contender.label] = made, max(error.values())
    return calls, found, all_right


def measure_peaks(shape: Shape, label: str, modes: list[str], threads: int) -> dict[str, float]:
    """Peak extra MB of one call of each mode, measured in a new process; empty if that fails."""
    command = [sys.executable, "-m", "bench.run", "--peak-memory", str(shape), label, "--modes", *modes]
    child = subprocess.run(
        [*command, "--threads", str(threads)],
        cwd=Path(__file__).parents[1],
        env=os.environ | MEMORY_ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    return json.loads(child.stdout) if child.returncode == 0 else {}


def print_peaks(shape: Shape, label: str, modes: list[str]) -> None:
    """What the process of measure_peaks does: {mode: peak extra MB} on stdout."""
    contender = CONTENDERS[label]
    small = uf.Graph.from_edge_index(torch.arange(64).repeat(2, 1))
    for mode in modes:  # loads the code
        contender.make(make_problem(small, shape.D, shape.K).to(contender.dtype))[mode]()
    problem = make_problem(uf.datasets.load(shape.graph).graph, shape.D, shape.K).to(contender.dtype)
    # new calls for each mode, so that each pays for its own scratch
    print(json.dumps({mode: peak_extra_bytes(contender.make(problem)[mode]) / 1e6 for mode in modes}))


def run_shape(shape: Shape, args: argparse.Namespace, progress: Progress, bandwidth, common) -> tuple[list, bool]:
    """Rows of one shape, and whether every contender was right."""
    try:
        graph = uf.datasets.load(shape.graph).graph
    except (ValueError, OSError) as missing:
        progress.say(f"{shape} is left out: {missing}")
        return [], True
    problem = make_problem(graph, shape.D, shape.K)
    progress.say(f"{shape}: N {graph.num_nodes:,}, E {graph.num_edges:,}; checking against float64")
    contenders = contenders_for(shape, args.contenders)
    calls, max_error, all_right = checked_calls(problem, contenders, progress.say)
    peaks: dict[str, dict[str, float]] = {}
    if not args.no_memory:
        for at, label in enumerate(calls):
            progress.stage(f"{shape} peak memory of {label} ({at + 1}/{len(calls)})", args.seconds)
            peaks[label] = measure_peaks(shape, label, args.modes, args.threads)
            if not peaks[label]:
                progress.say(f"  {label}: peak memory could not be measured")
    rows = []
    for at, mode in enumerate(args.modes):
        budget = args.seconds / len(args.modes)
        waiting = budget * (len(args.modes) - at - 1)

        def show(samples: int, left: float, mode: str = mode, waiting: float = waiting) -> None:
            progress.stage(f"{shape} {mode}: {samples}/{args.repeats} samples", left + waiting)

        if not calls:
            break
        samples = measure({label: made[mode] for label, made in calls.items()}, args.repeats, budget, show)
        done = report.rows_of(shape, problem, mode, samples, max_error, peaks, bandwidth, common)
        for row, (label, taken) in zip(done, samples.items(), strict=True):
            gain = f"  {row['speedup']}x {row['best_other']}" if row["speedup"] else ""
            noisy = "  (machine busy: least disturbed samples)" if taken.clean < MIN_SAMPLES else ""
            progress.say(f"  {mode:7}{label:22}{row['p50_ms']:>9} ms  {row['peak_mb']:>8} MB{gain}{noisy}")
        rows += done
    return rows, all_right


def run_overhead(args: argparse.Namespace, common: dict[str, object]) -> None:
    """Prints and records what one call costs on 3 nodes, D = 1, K = 1, where the kernel has nothing to do."""
    path = args.out / "overhead.csv"
    columns = [*common, "call", "p20_us", "p50_us", "p80_us", "kernel_us", "limit_us", "rejected_share"]
    report.check_columns(path, columns)
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
        limit = OVERHEAD_LIMITS.get(name, "")
        print(f"{name:32}{''.join(f'{us:8.1f}' for us in (*times, kernel, times[1] - kernel))}{limit:>8}")
        numbers = (*(f"{us:.1f}" for us in (*times, kernel)), limit, f"{taken.rejected_share:.2f}")
        row = {**common, "call": name, **dict(zip(columns[-6:], numbers, strict=True))}
        report.append(path, columns, [row])


def parse(argv: list[str] | None) -> argparse.Namespace:
    contenders = "\n".join(f"  {label:22}{c.what}" for label, c in CONTENDERS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"Contenders:\n{contenders}\n\nData other than cora is taken from $UGNN_DATA, if there.",
    )
    add = parser.add_argument
    add("--shapes", nargs="+", metavar="SHAPE", help=f"of {', '.join(SHAPES)}, or GRAPH:D:K (default: all)")
    add(
        "--modes",
        nargs="+",
        choices=MODES,
        default=list(MODES),
        help="fwd: H; fwdbwd: H, dX and dC (default: both)",
    )
    add("--contenders", nargs="+", choices=list(CONTENDERS), metavar="NAME", help="only these (default: all)")
    add(
        "--repeats",
        type=int,
        default=15,
        help=f"samples of each contender, at least {MIN_SAMPLES} (default: 15)",
    )
    add(
        "--seconds",
        type=float,
        default=60,
        help="time per shape; may be exceeded to get 7 samples (default: 60)",
    )
    add("--threads", type=int, default=2, help="threads of torch, MKL and our kernels (default: 2)")
    add("--quick", action="store_true", help=f"only {' and '.join(QUICK)}, 7 samples, 8 seconds each")
    add("--no-memory", action="store_true", help="do not measure peak memory")
    add("--overhead", action="store_true", help="instead: the cost of one call beyond its kernel, on 3 nodes")
    add(
        "--out",
        type=Path,
        default=Path(__file__).parent / "results",
        help="folder of the CSV (default: bench/results)",
    )
    add(
        "--peak-memory",
        nargs=2,
        metavar=("SHAPE", "NAME"),
        help="instead: peak extra MB of one contender, as JSON",
    )
    args = parser.parse_args(argv)
    if args.quick:
        args.shapes, args.repeats, args.seconds = args.shapes or list(QUICK), MIN_SAMPLES, 8.0
    try:
        args.shapes = [parse_shape(text) for text in args.shapes or SHAPES]
        if args.peak_memory:
            args.peak_memory[0] = parse_shape(args.peak_memory[0])
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
        print_peaks(*args.peak_memory, args.modes)
        return 0
    common = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), **machine(args.threads)}
    args.out.mkdir(parents=True, exist_ok=True)
    if args.overhead:
        run_overhead(args, common)
        return 0
    path = args.out / report.CSV_NAME
    report.check_columns(path, report.COLUMNS)
    progress = Progress()
    bandwidth = stream_bandwidth()
    progress.say(f"{common['machine']}, copy {bandwidth['copy']:.1f} GB/s, triad {bandwidth['triad']:.1f} GB/s")
    all_right, measured = True, False
    for at, shape in enumerate(args.shapes):
        progress.later = args.seconds * (len(args.shapes) - at - 1)
        rows, right = run_shape(shape, args, progress, bandwidth, common)
        report.append(path, report.COLUMNS, rows)  # at once: an interrupted run keeps what it has
        all_right, measured = all_right and right, measured or bool(rows)
    if measured:
        report.main(["--out", str(args.out)])
    return 0 if all_right and measured else 1


if __name__ == "__main__":
    sys.exit(main())

"""`python -m bench.gpu`: uf.ada_propagate on a GPU against the same computation with other libraries.

Every contender is checked against float64 first, forward and both gradients; a wrong one is named and not timed. Then
they take turns. A sample is one call between two events, after a write that fills the second-level cache, so that no
contender finds its tables there. The bandwidth of the roofline is that of a copy, measured here. Results are appended
to results/gpu_NAME.csv, and results/gpu_NAME.md is the table of the run.

Without a GPU the same code runs in Triton's interpreter on a toy graph, to show that it works; no speed is printed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from ugnn_fast.kernels import _launch

import ugnn_fast as uf
from bench import graphs, report
from bench.baselines.products import PRODUCTS
from bench.baselines.torch_csr import TorchCsr
from bench.baselines.torch_csr_factored import TorchCsrFactored
from bench.baselines.torch_csr_plain import TorchCsrPlain
from bench.machine import RESULTS, Progress, commit, now
from bench.ops.ada_propagate import OP, ours, torch_csr, torch_scatter, with_product
from bench.registry import (
    MODES,
    OURS,
    Case,
    Contender,
    Problem,
    dtype_name,
    node_problem,
    parse_case,
    refuse_messages,
)
from bench.run import checked_calls
from bench.timing import MIN_SAMPLES, Call, Samples
from bench.traffic import in_interpreter
from ugnn_fast._backend import _interpreting

SHAPES = (
    "cora:7:10", "large_ogbn_arxiv:40:10",
    *(f"power_law-2e5-3e6:{D}:10" for D in (8, 16, 40, 64, 128)),
)  # fmt: skip
TOY = Case(OP.name, graphs.TOY, 8, 2)
COLUMNS = [
    "date", "op", "contender", "mode", "graph", "N", "E", "D", "K", "dtype", "p20_ms", "p50_ms", "p80_ms", "samples",
    "peak_mb", "no_reuse_mb", "gb_per_s", "copy_share", "compulsory_ms", "no_reuse_ms", "speedup", "best_other",
    "max_error", "copy_gb_per_s", "gpu", "driver", "torch", "triton", "ugnn_fast", "launch_table", "commit",
]  # fmt: skip


def contenders() -> dict[str, Contender]:
    """Ours by every backend for GPUs that runs here, and the others."""
    of_us = [name for name in ("triton", "cuda") if uf.backends()[name].runs]
    found = [
        *(Contender(f"{OURS} {name}", ours(name), f'backend="{name}", memory="save"') for name in of_us),
        Contender("torch_scatter", torch_scatter, "gather and index_add", refuse=refuse_messages),
        Contender("torch_csr_plain", torch_csr(TorchCsrPlain), "stored edge weights, cuSPARSE, backward by hand"),
        Contender("torch_csr", torch_csr(TorchCsr), "the same, tuned: memory reused, sampled product"),
        Contender("torch_csr_factored", torch_csr(TorchCsrFactored), "our factorisation with cuSPARSE"),
        *(
            Contender(name, with_product(PRODUCTS[name][0]), PRODUCTS[name][3], needs=PRODUCTS[name][1])
            for name in ("pyg", "dgl")
        ),
        *(Contender(f"{OURS} {name}", ours(name), "16-bit tables", dtype=torch.bfloat16) for name in of_us),
    ]
    return {contender.label: contender for contender in found}


class Device:
    """A GPU, or the CPU in its place: clock, cold cache, bandwidth, memory."""

    def __init__(self) -> None:
        self.cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", torch.cuda.current_device()) if self.cuda else torch.device("cpu")
        cache = torch.cuda.get_device_properties(self.device).L2_cache_size if self.cuda else 1
        self._flush = torch.empty(2 * cache, dtype=torch.int8, device=self.device)

    def milliseconds(self, call: Call) -> float:
        """Of one call that finds nothing in the second-level cache."""
        self._flush.zero_()
        if not self.cuda:
            start = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - start)
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(self.device)
        before.record()
        call()
        after.record()
        torch.cuda.synchronize(self.device)
        return before.elapsed_time(after)

    def copy_bandwidth(self) -> float:
        """GB/s of a copy, read and written, best of 20."""
        a, b = torch.zeros(2, (1 << 28) if self.cuda else 1 << 10, device=self.device)
        a.copy_(b)
        return 2 * a.numel() * 4 / min(self.milliseconds(lambda: a.copy_(b)) for _ in range(20)) / 1e6

    def peak_mb(self, call: Call) -> float | None:
        """Memory of the allocator that a call takes, at most."""
        if not self.cuda:
            return None
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        call()
        return (torch.cuda.max_memory_allocated(self.device) - before) / 1e6

    def machine(self) -> dict[str, object]:
        """What every row says of the machine and the versions."""
        name = torch.cuda.get_device_name(self.device) if self.cuda else "none"
        tuned = any(device == name for device, *_ in _launch.user_table())
        return {
            "gpu": name,
            "driver": _driver(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "ugnn_fast": uf.__version__,
            "launch_table": "tuned" if tuned else "shipped",
            "commit": commit(),
        }


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return torch.version.hip or "unknown"


def measure(calls: dict[str, Call], repeats: int, device: Device) -> dict[str, Samples]:
    """A sample of each call per round, each round beginning with another one."""
    names = list(calls)
    result = {name: Samples(calls=1) for name in names}
    for call in calls.values():
        call()  # compiles
        call()
    for turn in range(repeats):
        for at in range(len(names)):
            name = names[(turn + at) % len(names)]
            result[name].taken.append((0.0, device.milliseconds(calls[name])))
    return result


def rows_of(
    shape: Case, problem: Problem, mode: str, samples: dict[str, Samples], errors: dict[str, float],
    peaks: dict[str, float | None], bandwidth: float, common: dict[str, object],
) -> list[dict[str, object]]:  # fmt: skip
    """The CSV rows of one shape and mode."""
    N, E, D, K = problem.g.num_nodes, problem.g.num_edges, shape.D, shape.K
    every = contenders()
    p50 = {label: taken.quantiles()[1] for label, taken in samples.items()}
    others = {label: ms for label, ms in p50.items() if not label.startswith(OURS)}
    best = min(others, key=others.__getitem__, default=None)
    rows = []
    for label, taken in samples.items():
        p20, median, p80 = taken.quantiles()
        s = every[label].dtype.itemsize
        moved = OP.work(problem, mode, s).bytes(s)
        # rows of neighbours once each in place of once per entry, in one pass or in two
        least = moved - (1 if mode == "fwd" else 2) * K * (E - N) * D * s
        peak = peaks[label]
        rows.append(
            {
                **common,
                **{"op": "ada_propagate", "contender": label, "mode": mode, "graph": shape.graph},
                **{"N": N, "E": E, "D": D, "K": K, "dtype": dtype_name(every[label].dtype)},
                **{"p20_ms": f"{p20:.4g}", "p50_ms": f"{median:.4g}", "p80_ms": f"{p80:.4g}"},
                "samples": taken.count,
                "peak_mb": "" if peak is None else f"{peak:.1f}",
                "no_reuse_mb": f"{moved / 1e6:.4g}",
                "gb_per_s": f"{moved / median / 1e6:.4g}",
                "copy_share": f"{moved / median / 1e6 / bandwidth:.3g}",
                "compulsory_ms": f"{least / bandwidth / 1e6:.4g}",
                "no_reuse_ms": f"{moved / bandwidth / 1e6:.4g}",
                "speedup": f"{p50[best] / median:.3g}" if best and label.startswith(OURS) else "",
                "best_other": best if best and label.startswith(OURS) else "",
                "max_error": f"{errors[label]:.1e}",
                "copy_gb_per_s": f"{bandwidth:.4g}",
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown of a run."""
    row = rows[0]
    lines = [
        f"ada_propagate on {row['gpu']}, driver {row['driver']}, torch {row['torch']}, triton {row['triton']},"
        f" ugnn_fast {row['ugnn_fast']}, {row['launch_table']} launch table, commit {row['commit']},"
        f" {row['date'][:10]}. Median of calls with a cold second-level cache; fwdbwd: with gradients of x and C."
        f" Roofline: time of the bytes at {row['copy_gb_per_s']} GB/s, the copy measured here, if each row of a"
        " neighbour is read once, or once per entry. Of copy: the latter's share. Speed-up: best other / ours.",
        "",
        "| graph (N / E), D, K | mode | contender | ms (p20 - p80) | peak MB | roofline, ms | of copy | speed-up |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        size = f"{int(row['N']):,} / {int(row['E']):,}"
        gain = f"{row['speedup']}x {row['best_other']}" if row["speedup"] else ""
        lines.append(
            f"| {row['graph']} ({size}), {row['D']}, {row['K']} | {row['mode']} | {row['contender']} |"
            f" {row['p50_ms']} ({row['p20_ms']} - {row['p80_ms']}) | {row['peak_mb']} |"
            f" {row['compulsory_ms']} - {row['no_reuse_ms']} | {float(row['copy_share']):.0%} | {gain} |"
        )
    return "\n".join(lines) + "\n"


def run_shape(
    shape: Case, graph: uf.Graph, device: Device, args: argparse.Namespace, bandwidth: float,
    common: dict[str, object], say: Callable[[str], None],
) -> tuple[list[dict[str, object]], bool]:  # fmt: skip
    """Rows of one shape, and whether every contender was right."""
    problem = node_problem(graph, shape.D, shape.K).on(device.device)
    every = contenders()
    chosen = [every[name] for name in args.contenders or every]
    checked = checked_calls(OP, problem, chosen, say)
    calls = checked.calls
    rows = []
    for mode in args.modes if calls else ():
        of_mode = {label: made[mode] for label, made in calls.items()}
        samples = measure(of_mode, args.repeats, device)
        peaks = {label: device.peak_mb(call) for label, call in of_mode.items()}
        rows += rows_of(shape, problem, mode, samples, checked.max_error, peaks, bandwidth, common)
    return rows, checked.all_right


def run_toy(args: argparse.Namespace) -> int:
    """What a GPU would run, on a graph that the interpreter can stand."""
    device, progress = Device(), Progress()
    common = {"date": now(), **device.machine()}
    graph, bandwidth = graphs.toy().graph, device.copy_bandwidth()
    rows, all_right = run_shape(TOY, graph, device, args, bandwidth, common, progress.say)
    table(rows)
    for label in dict.fromkeys(str(row["contender"]) for row in rows):
        print(f"{label}: right")
    print("works: no GPU was found, so this was Triton's interpreter on a toy graph, and no speed is shown")
    return 0 if all_right and rows else 1


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--shapes", nargs="+", default=list(SHAPES), metavar="GRAPH:D:K", help=f"default: {' '.join(SHAPES)}")
    add("--modes", nargs="+", choices=MODES, default=list(MODES), help="fwd: H; fwdbwd: H, dX and dC (default: both)")
    add("--contenders", nargs="+", metavar="NAME", help="only these (default: all that can run)")
    add("--repeats", type=int, default=30, help=f"samples of each, at least {MIN_SAMPLES} (default: 30)")
    add("--out", type=Path, default=RESULTS, help="folder (default: bench/results)")
    args = parser.parse_args(argv)
    try:
        args.shapes = [parse_case(OP.name, text) for text in args.shapes]
    except ValueError as error:
        parser.error(str(error))
    if args.repeats < MIN_SAMPLES:
        parser.error(f"--repeats must be at least {MIN_SAMPLES}, got {args.repeats}")
    unknown = set(args.contenders or ()) - set(contenders())
    if unknown and (torch.cuda.is_available() or _interpreting()):
        parser.error(f"--contenders must be of {', '.join(contenders())}, got {', '.join(sorted(unknown))}")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    if not torch.cuda.is_available():
        if _interpreting():
            args.repeats = MIN_SAMPLES
            return run_toy(args)
        return in_interpreter("bench.gpu", sys.argv[1:] if argv is None else argv)
    device, progress = Device(), Progress()
    common = {"date": now(), **device.machine()}
    name = re.sub(r"[^A-Za-z0-9]+", "_", str(common["gpu"])).strip("_")
    path = args.out / f"gpu_{name}.csv"
    args.out.mkdir(parents=True, exist_ok=True)
    report.check_columns(path, COLUMNS)
    bandwidth = device.copy_bandwidth()
    progress.say(f"{common['gpu']}, copy {bandwidth:.0f} GB/s")
    rows, all_right = [], True
    for at, shape in enumerate(args.shapes):
        progress.say(f"{shape} ({at + 1}/{len(args.shapes)})")
        try:
            graph = graphs.load(shape.graph).graph
        except (ValueError, OSError) as missing:
            progress.say(f"{shape} is left out: {missing}")
            continue
        done, right = run_shape(shape, graph, device, args, bandwidth, common, progress.say)
        report.append(path, COLUMNS, done)  # at once: an interrupted run keeps what it has
        rows, all_right = rows + done, all_right and right
    if rows:
        text = table(rows)
        path.with_suffix(".md").write_text(text)
        print(text)
    return 0 if rows and all_right else 1


if __name__ == "__main__":
    sys.exit(main())

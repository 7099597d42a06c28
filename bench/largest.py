"""`python -m bench.largest`: the largest graph on which ADA-UGNN trains within some memory.

Graphs have 21 entries a node, 10 features of 500 on each, and 16 classes; hidden width 16, K = 10. A process with so
much memory to take builds one and trains two epochs. Sizes double until one fails, then the gap is halved some times.
Every size that was tried is appended to results/largest.csv.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

import ugnn_fast as uf
from bench.machine import RESULTS, ROOT, Progress, machine, now
from bench.report import append
from bench.timing import fix_threads, high_water
from ugnn_fast.datasets import Dataset
from ugnn_fast.experiments import Run, Settings, Trainer

CSV_NAME = "largest.csv"
COLUMNS = [
    "date", "limit_gib", "nodes", "entries", "trains", "peak_gib", "bytes_per_node", "build_s", "epoch_s", "why_not",
    "machine", "cores", "threads", "torch", "ugnn_fast", "isa", "commit",
]  # fmt: skip
OFFSETS = 10  # neighbours on each side of a node
FEATURES, STORED, CLASSES = 500, 10, 16
SETTINGS = Settings(hidden=16, dropout=0.5, steps=10, s=9.0, epochs=2)


def ring(N: int) -> uf.Graph:
    """Node i has the neighbours i + o and i - o for random o: symmetric without a sort of all edges."""
    offsets = np.random.default_rng(0).choice(np.arange(1, N // 2), OFFSETS, replace=False)
    around = np.concatenate([-offsets, [0], offsets])
    col = np.empty((N, len(around)), np.int32)
    for first in range(0, N, 1 << 20):
        rows = np.arange(first, min(first + (1 << 20), N))[:, None]
        col[first : first + (1 << 20)] = np.sort((rows + around) % N, axis=1)
    return uf.Graph.from_csr(np.arange(N + 1, dtype=np.int64) * len(around), col.reshape(-1))


def dataset(N: int) -> Dataset:
    rng = np.random.default_rng(1)
    # ascending in a row: one of the 50 features of each tenth
    step = FEATURES // STORED
    col = rng.integers(0, step, (N, STORED), dtype=np.int32) + step * np.arange(STORED, dtype=np.int32)
    x = torch.sparse_csr_tensor(
        torch.arange(N + 1) * STORED,
        torch.from_numpy(col).reshape(-1).long(),
        torch.ones(N * STORED),
        (N, FEATURES),
        check_invariants=False,
    )
    y = torch.from_numpy(rng.integers(0, CLASSES, N))
    parts = torch.from_numpy(rng.permutation(N)[: N // 4]).split([N // 4 - 2 * (N // 16), N // 16, N // 16])
    return Dataset("ring", ring(N), x, y, [tuple(parts)])


def train(N: int) -> dict[str, float]:
    """Builds and trains; seconds of both and the peak of the resident memory."""
    start = time.perf_counter()
    data = dataset(N)
    built = time.perf_counter()
    trainer = Trainer(data, "ada-ugnn", SETTINGS, [Run()])
    seconds = [trainer.step().seconds for _ in range(SETTINGS.epochs)]
    return {"entries": data.graph.num_edges, "build_s": built - start, "epoch_s": seconds[-1], "peak": high_water()}


def attempt(N: int, gib: float, threads: int) -> dict[str, object]:
    """A row: what a process with so much memory comes to."""
    command = [sys.executable, "-m", "bench.largest", "--train", str(N)]
    child = subprocess.run(
        [*command, "--gib", str(gib), "--threads", str(threads)], cwd=ROOT, capture_output=True, text=True
    )
    row: dict[str, object] = {"limit_gib": gib, "nodes": N, "trains": int(child.returncode == 0)}
    if child.returncode:
        last = (child.stderr.strip().splitlines() or [f"signal {-child.returncode}"])[-1]
        return row | {"why_not": last[:200]}
    found = json.loads(child.stdout.splitlines()[-1])
    row |= {"entries": found["entries"], "peak_gib": f"{found['peak'] / 2**30:.2f}"}
    row |= {"bytes_per_node": f"{found['peak'] / N:.0f}"}
    return row | {name: f"{found[name]:.1f}" for name in ("build_s", "epoch_s")}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gib", type=float, default=16.0, help="memory of the process (default: 16)")
    parser.add_argument("--nodes", type=int, default=1 << 20, help="size to begin with (default: 2^20)")
    parser.add_argument("--halvings", type=int, default=3, help="of the gap at the end (default: 3)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--train", type=int, metavar="N", help="this process: train on N nodes")
    args = parser.parse_args(argv)
    if args.train is not None:
        fix_threads(args.threads)
        resource.setrlimit(resource.RLIMIT_DATA, (int(args.gib * 2**30),) * 2)
        print(json.dumps(train(args.train)))
        return 0
    if args.nodes < 1000:
        raise SystemExit(f"--nodes must be >= 1000, got {args.nodes}")
    about = {**machine(), "threads": args.threads, "date": now()}
    args.out.mkdir(parents=True, exist_ok=True)
    path, progress = args.out / CSV_NAME, Progress()

    def trains(N: int) -> bool:
        progress.say(f"{N:,} nodes")
        row = attempt(N, args.gib, args.threads) | about
        append(path, COLUMNS, [row])
        if row["trains"]:
            progress.say(f"  {row['peak_gib']} GiB, {row['bytes_per_node']} bytes a node, {row['epoch_s']} s an epoch")
        else:
            progress.say(f"  fails: {row['why_not']}")
        return bool(row["trains"])

    most, least = args.nodes, 0
    while trains(most):
        least, most = most, 2 * most
    for _ in range(args.halvings if least else 0):
        middle = (least + most) // 2
        least, most = (middle, most) if trains(middle) else (least, middle)
    print(f"largest graph that trained within {args.gib:g} GiB: {least:,} nodes; smallest that did not: {most:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

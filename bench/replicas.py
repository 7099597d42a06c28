"""`python -m bench.replicas`: an epoch of R runs side by side, of one run, and of torch_geometric's model.

An epoch is a training step and an evaluation. The contenders take turns, as in ugnn-fast bench. Results are appended to
results/replicas.csv, and results/replicas.md is the table of the run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import ugnn_fast as uf
from bench.machine import RESULTS, Progress, machine
from bench.ops import epoch
from bench.report import append
from bench.timing import fix_threads, measure
from ugnn_fast.datasets import Dataset, row_normalize
from ugnn_fast.experiments import Run, Settings, Trainer, settings_for
from ugnn_fast.experiments.models import replicas_at_once

COLUMNS = [
    "date", "dataset", "model", "replicas", "one_ms", "replicas_ms", "times_one", "runs_per_s", "pyg_ms",
    "times_faster_than_pyg", "rejected_share", "machine", "cores", "threads", "torch", "ugnn_fast", "isa", "commit",
]  # fmt: skip
CSV_NAME, TABLE_NAME = "replicas.csv", "replicas.md"


def pyg_model(name: str, data: Dataset, settings: Settings) -> nn.Module | None:
    """torch_geometric's model of this name, or made of its parts; None for others."""
    from torch_geometric import nn as pyg

    assert data.x is not None
    width, classes, p = data.x.shape[1], data.num_classes, settings.dropout

    class Appnp(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(width, settings.hidden), nn.Linear(settings.hidden, classes)
            self.steps = pyg.APPNP(settings.steps, 1 / (1 + settings.s), cached=True)

        def forward(self, x, edge_index):
            h = self.first(F.dropout(x, p, self.training)).relu()
            return self.steps(self.second(F.dropout(h, p, self.training)), edge_index)

    class Gcn(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = pyg.GCNConv(width, settings.hidden, cached=True)
            self.second = pyg.GCNConv(settings.hidden, classes, cached=True)

        def forward(self, x, edge_index):
            return self.second(F.dropout(self.first(x, edge_index).relu(), p, self.training), edge_index)

    class Gat(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = pyg.GATConv(width, settings.hidden, 8, dropout=0.6)
            self.second = pyg.GATConv(8 * settings.hidden, classes, dropout=0.6)

        def forward(self, x, edge_index):
            h = F.elu(self.first(F.dropout(x, p, self.training), edge_index))
            return self.second(F.dropout(h, p, self.training), edge_index)

    class Ada(nn.Module):
        def __init__(self):
            super().__init__()
            problem = epoch.make(data, settings.hidden, settings.steps)
            self.network = epoch.Peer(problem, epoch.messages(problem))

        def forward(self, x, edge_index):
            return self.network(x)

    made: dict[str, Callable[[], nn.Module]] = {"ada-ugnn": Ada, "appnp": Appnp, "gcn": Gcn, "gat": Gat}
    return made[name]() if name in made else None


def pyg_epoch(network: nn.Module, data: Dataset, settings: Settings) -> Callable[[], object]:
    """The epoch of Trainer with a model of torch_geometric, on dense features, as its users write it."""
    assert data.x is not None
    edge_index = data.graph.edge_index[:, data.graph.edge_index[0] != data.graph.edge_index[1]]
    return epoch.epoch_of(network, (row_normalize(data.x).to_dense(), edge_index), data, settings)


def row_of(name: str, model: str, replicas: int, pyg: bool, repeats: int, seconds: float) -> dict[str, object]:
    data, settings = uf.datasets.load(name), settings_for(name, model)
    replicas = replicas_at_once(model, data, settings, replicas)
    splits = len(data.splits)
    one = Trainer(data, model, settings, [Run()])
    many = Trainer(data, model, settings, [Run(r % splits, r) for r in range(replicas)])
    calls: dict[str, Callable[[], object]] = {"one": one.step, "many": many.step}
    theirs = pyg_model(model, data, settings) if pyg else None
    if theirs is not None:
        calls["pyg"] = pyg_epoch(theirs, data, settings)
    found = measure(calls, repeats, seconds)
    ms = {contender: samples.quantiles()[1] for contender, samples in found.items()}
    return {
        "dataset": name,
        "model": model,
        "replicas": replicas,
        "one_ms": f"{ms['one']:.3f}",
        "replicas_ms": f"{ms['many']:.3f}",
        "times_one": f"{ms['many'] / ms['one']:.2f}",
        "runs_per_s": f"{1000 * replicas / ms['many']:.1f}",
        "pyg_ms": f"{ms['pyg']:.3f}" if theirs is not None else "",
        "times_faster_than_pyg": f"{ms['pyg'] * replicas / ms['many']:.2f}" if theirs is not None else "",
        "rejected_share": f"{max(samples.rejected_share for samples in found.values()):.2f}",
    }


def table(rows: list[dict[str, object]]) -> str:
    about = rows[0]
    lines = [
        "One epoch (training step and evaluation): of one run, of R runs side by side, of torch_geometric's model on "
        "dense features. Median of undisturbed samples, contenders interleaved. "
        f"{about['machine']}, {about['threads']} threads, torch {about['torch']}, ugnn_fast {about['ugnn_fast']}, "
        f"commit {about['commit']}, {about['date']}.",
        "",
        "| data set | model | one, ms | R | R runs, ms | times one | epochs / s | torch_geometric, ms | faster |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    columns = (
        "dataset", "model", "one_ms", "replicas", "replicas_ms", "times_one", "runs_per_s", "pyg_ms",
        "times_faster_than_pyg",
    )  # fmt: skip
    lines += ["| " + " | ".join(str(row[name]) for name in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--datasets", nargs="+", default=["cora"], help="default: cora")
    parser.add_argument("--models", nargs="+", default=["ada-ugnn", "appnp"], help="default: ada-ugnn appnp")
    parser.add_argument("--replicas", type=int, default=30, help="at most so many runs side by side (default: 30)")
    parser.add_argument("--pyg", action="store_true", help="torch_geometric's model too")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=8.0, help="for each data set and model (default: 8)")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    threads = args.threads or torch.get_num_threads()
    fix_threads(threads)
    about = {**machine(), "threads": threads}
    about["date"] = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    args.out.mkdir(parents=True, exist_ok=True)
    progress, rows = Progress(), []
    for name in args.datasets:
        for model in args.models:
            progress.say(f"{model} on {name}")
            rows.append({**row_of(name, model, args.replicas, args.pyg, args.repeats, args.seconds), **about})
            append(args.out / CSV_NAME, COLUMNS, rows[-1:])
    (args.out / TABLE_NAME).write_text(table(rows))
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`ugnn-fast`, the command line: arguments in, calls of ugnn_fast.experiments out."""

from __future__ import annotations

import argparse
import dataclasses
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from ugnn_fast import __version__, _native, datasets, experiments
from ugnn_fast._backend import backends
from ugnn_fast._bench_command import add_bench
from ugnn_fast.experiments.report import summary
from ugnn_fast.experiments.settings import shipped_table

_SETTINGS = tuple(field.name for field in dataclasses.fields(experiments.Settings))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, where argparse would print its usage and leave the process."""
        raise ValueError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns 0, 2 after bad input, 130 after Ctrl-C."""
    try:
        args = _parser().parse_args(argv)
        return args.run(args)
    except SystemExit as done:  # of --help and --version
        return int(done.code or 0)
    except KeyboardInterrupt:
        print("ugnn-fast: interrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError, MemoryError, ImportError, RuntimeError) as error:
        # torch's own error when a tensor does not fit; any other RuntimeError is a fault of ours
        if type(error) is RuntimeError and "allocate" not in str(error):
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        print(f"ugnn-fast: error: {text}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="ugnn-fast", description="Graph neural networks as graph signal denoising.")
    parser.add_argument("--version", action="version", version=f"ugnn-fast {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_train(commands)
    _add_reproduce(commands)
    _add_search(commands)
    add_bench(commands)
    info = commands.add_parser(
        "info", help="versions, backends and data sets found", description="Shows what is there."
    )
    info.add_argument("--root", metavar="DIR", help="folder with further data sets")
    info.set_defaults(run=_info)
    tune = commands.add_parser(
        "tune",
        help="measure the launch table of the Triton kernels on this GPU",
        description="Measures block sizes and warps of the Triton kernels on the current GPU, some minutes, and writes "
        "those that beat the shipped ones to $UGNN_LAUNCH_TABLE, or to ugnn_fast/launch_table.json of the folder for "
        "settings. Sums are then added in another order, so results change in their last digits.",
    )
    tune.set_defaults(run=_tune)
    return parser


def _add_train(commands) -> None:
    parser = commands.add_parser(
        "train",
        help="train a model on a data set",
        description="Trains a model and writes metrics.json, history.csv, checkpoint.pt, curves.png and, for "
        "ada-ugnn, smoothness.png into a folder. The test accuracy is that of the epoch with the best "
        "validation accuracy.",
        epilog="The defaults of the settings are those of the package's table for the model and data set; for a graph "
        "of one's own they are those of cora.",
    )
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--dataset",
        default="cora",
        metavar="NAME",
        help="NAME.npz of --root, $UGNN_DATA or the package (default: cora)",
    )
    source.add_argument(
        "--graph",
        metavar="FILE",
        help="an .npz file of one's own with graph, features, labels and splits (keys: see ugnn_fast.datasets)",
    )
    add("--model", default="ada-ugnn", choices=experiments.MODELS, help="default: ada-ugnn")
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument("--seed", type=int, default=0, metavar="SEED", help="seed of the run (default: 0)")
    seeds.add_argument("--seeds", type=int, metavar="RUNS", help="that many runs, with the seeds 0, 1, ...")
    add("--split", type=int, default=0, help="which split of the data set (default: 0)")
    add("--rate", type=int, default=0, help="attack on the edges in percent, for mettack_* (default: 0)")
    add("--root", metavar="DIR", help="folder with further data sets")
    add(
        "--out",
        metavar="DIR",
        help="folder for the results, an earlier report there is replaced (default: runs/DATASET_MODEL)",
    )
    add(
        "--resume",
        action="store_true",
        help="go on with an interrupted training in --out (training.pt), if there is one",
    )
    add("--threads", type=int, metavar="N", help="threads to compute with (default: torch's)")
    add("--quiet", action="store_true", help="no progress bar")
    settings = parser.add_argument_group("settings")
    add = settings.add_argument
    add("--epochs", type=int, metavar="N", help="training steps")
    add(
        "--patience",
        type=int,
        metavar="N",
        help="stop after N epochs without a better validation accuracy (default: 0, never)",
    )
    add("--hidden", type=int, metavar="N", help="width of the hidden layer")
    add("--lr", type=float, help="learning rate of Adam")
    add("--weight-decay", type=float, metavar="W", help="weight decay, on all parameters")
    add("--dropout", type=float, metavar="P", help="dropout before the layers, in [0, 1)")
    add("--steps", type=int, metavar="K", help="aggregation steps")
    add("--s", type=float, help="largest C of ada-ugnn; for appnp, ppnp and gprgnn alpha is 1 / (1 + s)")
    add(
        "--soft",
        action=argparse.BooleanOptionalAction,
        help="ada-ugnn: L1-normalise scores before the variance",
    )
    add("--binary", action=argparse.BooleanOptionalAction, help="every stored feature counts as 1")
    parser.set_defaults(run=_train)


def _train(args: argparse.Namespace) -> int:
    if args.soft is not None and args.model != "ada-ugnn":
        raise ValueError(f"--soft is for ada-ugnn only, got --model {args.model}")
    _in_range(seeds=args.seeds)
    _set_threads(args.threads)
    if args.graph is not None and args.root is not None:
        raise ValueError(f"--root must come without --graph, which is a file, got {args.root}")
    if args.graph is None:
        data = datasets.load(args.dataset, args.root, rate=args.rate)
    else:
        data = datasets.load_file(args.graph, args.rate)
    given = {name: value for name in _SETTINGS if (value := getattr(args, name)) is not None}
    settings = dataclasses.replace(experiments.settings_for(data.name, args.model, args.rate), **given)
    out = Path(args.out or Path("runs") / _run_name(data.name, args.rate, args.model))
    seeds = [args.seed] if args.seeds is None else list(range(args.seeds))
    try:
        results = experiments.train_seeds(
            data,
            args.model,
            settings,
            seeds,
            out,
            split=args.split,
            rate=args.rate,
            resume=args.resume,
            progress_bar=not args.quiet,
        )
    except experiments.Interrupted as stopped:
        if stopped.results:
            _print_summary(stopped.results, out)
        done = f"after {len(stopped.results)} of {len(seeds)} runs"
        print(f"ugnn-fast: interrupted {done}; the same command with --resume goes on", file=sys.stderr)
        return 130
    _print_summary(results, out)
    return 0


def _add_reproduce(commands) -> None:
    parser = commands.add_parser(
        "reproduce",
        help="the experiments of the paper",
        description="Trains what the chosen tables and figures need, appends each batch of runs to results.csv in the "
        "folder as it finishes, and writes tables (.md), figures (.png) and report.html. Started again, it "
        "goes on where it was stopped.",
    )
    add = parser.add_argument
    add("what", choices=(*experiments.PARTS, "all"), metavar="WHAT", help=f"{', '.join(experiments.PARTS)} or all")
    add("--runs", metavar="N", help="runs per model and data set, or: paper (20 x 20; default: 30)")
    add("--datasets", nargs="+", metavar="NAME", help="only these (default: all that are found)")
    add("--models", nargs="+", metavar="NAME", help=f"only these of {', '.join(experiments.PAPER_MODELS)}")
    add("--out", default="reproduce", metavar="DIR", help="folder for the results (default: reproduce)")
    add("--quick", action="store_true", help="a few short runs on small graphs: does it work?")
    add("--settings", metavar="FILE", help="table of settings, as search writes it; others are the package's")
    add("--from", dest="source", metavar="FILE", help="train nothing: tables and figures of this results.csv")
    add("--root", metavar="DIR", help="folder with further data sets")
    add("--threads", type=int, metavar="N", help="threads to compute with (default: torch's)")
    add("--jobs", type=int, metavar="N", help="processes that share the threads (default: one for each)")
    add("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_reproduce)


def _reproduce(args: argparse.Namespace) -> int:
    _in_range(jobs=args.jobs)
    _set_threads(args.threads)
    runs = _runs(args.runs, args.quick)
    choice = experiments.Choice(
        parts=experiments.PARTS if args.what == "all" else (args.what,),
        datasets=_known("--datasets", args.datasets, experiments.PAPER_DATASETS),
        models=_known("--models", args.models, experiments.PAPER_MODELS),
        runs=runs,
        quick=args.quick,
        table=None if args.settings is None else {**shipped_table(), **experiments.read_table(args.settings)},
    )
    tables, absent = experiments.reproduce(
        choice,
        args.out,
        source=args.source,
        root=args.root,
        processes=args.jobs or torch.get_num_threads(),
        progress_bar=not args.quiet,
    )
    for table in tables.values():
        print(table.markdown())
    if absent:
        print(f"not found, left out: {', '.join(absent)}")
    print(f"results in {args.out}")
    return 0


def _add_search(commands) -> None:
    parser = commands.add_parser(
        "search",
        help="settings for a model on a data set",
        description="Searches the paper's space of settings by validation accuracy (never by test accuracy): "
        "successive halving, several runs of a setting side by side. The rows found are written into a table "
        "that reproduce --settings takes, as they are found; started again, it goes on.",
    )
    add = parser.add_argument
    add("--models", nargs="+", required=True, metavar="NAME", help=f"among {', '.join(experiments.MODELS)}")
    add("--datasets", nargs="+", required=True, metavar="NAME", help="NAME.npz of --root, $UGNN_DATA or the package")
    add("--rates", nargs="+", type=int, default=[0], metavar="RATE", help="attacks in percent, for mettack_*")
    add("--budget", type=float, metavar="MINUTES", help="time for all of it; a trial is finished (default: 10)")
    add("--runs", type=int, default=5, metavar="N", help="runs of each setting in the last round (default: 5)")
    add("--epochs", type=int, metavar="N", help="epochs of the last round (default: 400)")
    add("--over", nargs="+", metavar="NAME", help="search these settings only, in one stage")
    add(
        "--exchange",
        action="store_true",
        help="search nothing new: try at each rate what was found for all of them, with all epochs and runs",
    )
    add("--out", default="settings.csv", metavar="FILE", help="the table; NAME_trials.csv beside it holds all trials")
    add("--root", metavar="DIR", help="folder with further data sets")
    add("--threads", type=int, metavar="N", help="threads to compute with (default: torch's)")
    add("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_search)


def _search(args: argparse.Namespace) -> int:
    _in_range(runs=args.runs)
    _set_threads(args.threads)
    budget = 10.0 if args.budget is None else args.budget
    if not budget > 0:
        raise ValueError(f"--budget must be > 0, got {budget}")
    _known("--models", args.models, experiments.MODELS)
    graphs = [(name, rate) for name in args.datasets for rate in args.rates]
    shared: dict[str, Any] = {"runs": args.runs, "root": args.root, "progress_bar": not args.quiet}
    if args.exchange:
        for option in ("over", "epochs", "budget"):
            if getattr(args, option) is not None:
                raise ValueError(
                    f"--exchange must come without --{option}: it tries all that was found, as it was found"
                )
        found = experiments.exchange(graphs, args.models, args.out, **shared)
    else:
        found = experiments.search_all(
            graphs, args.models, args.out, minutes=budget, epochs=args.epochs, over=args.over, **shared
        )
    for (model, dataset, rate), best in found.items():
        attacked = f" {rate} %" if rate else ""
        print(f"{model} on {dataset}{attacked}: validation {best.val:.2f} %, {best.settings.text()}")
    if not found:
        print("nothing to search: the table has all of these rows, and their trials beside it")
    print(f"settings in {args.out}")
    return 0


def _runs(text: str | None, quick: bool) -> int | None:
    """Of --runs; None for the paper's."""
    if quick and text is not None:
        raise ValueError(f"--quick must come without --runs: it has runs of its own, got --runs {text}")
    if text == "paper":
        return None
    try:
        runs = int(text or "30")
    except ValueError:
        raise ValueError(f"--runs must be paper or a number, got {text}") from None
    _in_range(runs=runs)
    return runs


def _known(option: str, given: Sequence[str] | None, known: Sequence[str]) -> Sequence[str] | None:
    for name in given or ():
        if name not in known:
            raise ValueError(f"{option} must be among {', '.join(known)}, got {name}")
    return given


def _run_name(dataset: str, rate: int, model: str) -> str:
    return f"{dataset}{f'-{rate:02d}' if rate else ''}_{model}"


def _print_summary(results: list[experiments.TrainResult], out: Path) -> None:
    found = summary(results)
    accuracy = f"{100 * found['test_accuracy_mean']:.2f} %"
    if found["test_accuracy_std"] is not None:
        spread = f"{100 * found['test_accuracy_std']:.2f}"
        accuracy += f" +- {spread} (mean and standard deviation of {found['runs']} seeds)"
    print(f"test accuracy      {accuracy}")
    print(f"time per epoch     {1000 * found['seconds_per_epoch']:.2f} ms (training step and evaluation)")
    if results[0].c is not None:
        value = found["correlation_mean"]
        text = "undefined" if value is None else f"{value:+.3f}"
        print(f"correlation of C   {text} with local label smoothness")
    print(f"results in         {out}")


def _info(args: argparse.Namespace) -> int:
    found = datasets.names(args.root)
    print(f"ugnn-fast  {__version__}")
    print(f"python     {platform.python_version()}")
    print(f"torch      {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"numpy      {np.__version__}")
    print(f"kernels    {_native.reason if _native.native is None else _native.native.isa()}")
    print("\nbackend    runs")
    for backend in backends().values():
        note = f"{len(backend.ops)} operators: {', '.join(backend.ops)}" if backend.runs else backend.reason
        print(f"{backend.name:<11}{'yes' if backend.runs else 'no':<6}{note}")
    print(f"\ndata sets  {', '.join(found)}")
    return 0


def _tune(args: argparse.Namespace) -> int:
    from ugnn_fast.kernels.tune import tune

    device, entries, path = tune(lambda line: print(line, file=sys.stderr, flush=True))
    print(f"{entries} entries for {device} in {path}; others as shipped")
    return 0


def _in_range(most: int = 1_000_000, **values: int | None) -> None:
    for name, value in values.items():
        if value is not None and not 1 <= value <= most:
            raise ValueError(f"--{name} must be in 1..{most}, got {value}")


def _set_threads(threads: int | None) -> None:
    _in_range(4096, threads=threads)
    if threads is not None:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    sys.exit(main())

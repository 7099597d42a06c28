"""Search for settings by validation accuracy: successive halving, with the runs of one setting side by side.

All candidates are trained for a few epochs, the best quarter of them for four times as many with more runs each, and so
on until the last few have all epochs and runs. Test accuracy is never looked at. A second stage refines what the first
has found. At several rates of an attack, each rate then tries what the others have found (`exchange`): a few epochs
favour settings that learn fast.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from ugnn_fast import datasets
from ugnn_fast._checks import check_count
from ugnn_fast.datasets import Dataset
from ugnn_fast.experiments._csv import append_lines, check_appendable, read_lines
from ugnn_fast.experiments._progress import Progress
from ugnn_fast.experiments.models import replicas_at_once, work
from ugnn_fast.experiments.settings import (
    COLUMNS,
    Key,
    Settings,
    cells,
    from_cells,
    read_table,
    settings_for,
    shipped_table,
    write_table,
)
from ugnn_fast.experiments.train import Diverged, Run, check_task, train_runs

# the paper's space
SPACE: dict[str, tuple] = {
    "lr": (0.005, 0.01, 0.05),
    "weight_decay": (5e-4, 5e-5, 5e-6, 5e-7, 5e-8),
    "dropout": (0.2, 0.5, 0.8),
    "steps": (2, 5, 10),
    "s": (1.0, 9.0, 19.0, 29.0),
    "soft": (False, True),
    "binary": (False, True),
}
_OPTIMIZER = ("lr", "weight_decay", "dropout")
# what is searched at once, stage after stage; each begins with the best of the one before
STAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    "gcn": (_OPTIMIZER,),
    "gat": (_OPTIMIZER,),
    "sgc": (("lr", "weight_decay", "steps"),),
    "appnp": (("steps", "s"), _OPTIMIZER),
    "ppnp": (("s",), _OPTIMIZER),
    "gprgnn": (("steps", "s"), _OPTIMIZER),
    "ada-ugnn": (("steps", "s", "soft"), _OPTIMIZER),
}
_KEEP = 4  # one of so many goes on to the next round
_FIRST_EPOCHS = 30
# So many candidates, such as all K and s, have all epochs at once: after 30 epochs a large s, which learns slowly,
# looks worse than it is.
_FEW = 16
_FEWEST_RUNS = 2
_TRIAL_COLUMNS = ("model", "dataset", "rate", "runs", "epochs", "val", *COLUMNS)
_PATIENCE = 100  # epochs without a better validation accuracy, after which little is to be expected


@dataclass(frozen=True)
class Trial:
    """What a setting reached: mean validation accuracy in percent of some runs after some epochs at most."""

    settings: Settings
    val: float
    runs: int
    epochs: int


def candidates(start: Settings, names: Sequence[str]) -> list[Settings]:
    """All combinations of the values of `names`, with `start` first."""
    found = [replace(start, **dict(zip(names, values, strict=True))) for values in _combinations(names)]
    return list(dict.fromkeys([start, *found]))


def _combinations(names: Iterable[str]) -> Iterator[tuple]:
    return itertools.product(*(SPACE[name] for name in names))


def search(
    dataset: Dataset,
    model: str,
    start: Settings,
    *,
    minutes: float,
    runs: int = 5,
    over: Sequence[str] | None = None,
    progress_bar: bool = True,
) -> tuple[Trial, list[Trial]]:
    """The best setting found within the time, and all trials. start: where the search begins, its epochs the most.

    over: what is searched, in one stage, in place of STAGES. Every stage has the same share of the time. Within a
    stage, no round is begun that the time left does not allow by what the rounds before took; what the last round found
    best then counts.
    """
    if model not in STAGES:
        raise ValueError(f"model must be one of {', '.join(STAGES)}, got {model!r}")
    if not minutes > 0:
        raise ValueError(f"minutes must be > 0, got {minutes}")
    check_count(runs, "runs", 1)
    for name in over or ():
        if name not in SPACE:
            raise ValueError(f"over must be among {', '.join(SPACE)}, got {name}")
    stages = STAGES[model] if over is None else (tuple(over),)
    if model != "ada-ugnn":  # the others have no such setting
        stages = tuple(tuple(name for name in names if name != "soft") for names in stages)
    if not all(stages):
        raise ValueError(f"over must have a setting of {model}, got {' '.join(over or ())}")
    trials: list[Trial] = []
    end = time.monotonic() + 60 * minutes
    best = Trial(start, -math.inf, 0, 0)
    with Progress(len(stages) * 99, "", show=progress_bar) as progress:
        for number, names in enumerate(stages):
            progress.describe(f"{model} on {dataset.name}, {' x '.join(names)}")
            left = (end - time.monotonic()) / (len(stages) - number)
            found = _stage(dataset, model, candidates(best.settings, names), runs, left, trials, progress)
            # a stage that ran out of time after fewer epochs does not undo the one before
            if (found.epochs, found.val) > (best.epochs, best.val):
                best = found
    return best, trials


def search_all(
    graphs: Sequence[tuple[str, int]],
    models: Sequence[str],
    out: str | os.PathLike,
    *,
    minutes: float,
    runs: int = 5,
    epochs: int | None = None,
    over: Sequence[str] | None = None,
    root: str | None = None,
    progress_bar: bool = True,
) -> dict[Key, Trial]:
    """Searches for every model on every (data set, rate) and writes each row into the table `out` as it is found.

    The time is shared by the work of an epoch; what one search leaves of its share goes to the others. Trials are
    appended to the file beside the table, NAME_trials.csv. A table that is there already is added to: rows of a search
    whose trials are in that file are left as they are, so that a search that was stopped goes on.
    """
    out = Path(out)
    table = _table(out)
    tried = {trial[0] for trial in _read_trials(_trials_file(out))}
    tasks = []
    for name, rate in dict.fromkeys(graphs):
        data = datasets.load(name, root, rate=rate)
        check_task(data, 0, 0)
        for model in dict.fromkeys(models):
            key = model, name, rate
            if key in tried and key in table and table[key][1].startswith("search"):
                continue
            start = settings_for(name, model, rate, table)
            tasks.append((key, data, start, work(model, data, start)))
    check_appendable(_trials_file(out))
    end = time.monotonic() + 60 * minutes
    found = {}
    for place, (key, data, start, own) in enumerate(tasks):
        share = own / sum(task[-1] for task in tasks[place:])
        best, trials = search(
            data,
            key[0],
            start if epochs is None else replace(start, epochs=epochs),
            minutes=max(share * (end - time.monotonic()) / 60, 0.02),
            runs=runs,
            over=over,
            progress_bar=progress_bar,
        )
        found[key] = best
        _record(out, table, key, best, trials)
    return found


def exchange(
    graphs: Sequence[tuple[str, int]],
    models: Sequence[str],
    out: str | os.PathLike,
    *,
    runs: int = 5,
    root: str | None = None,
    progress_bar: bool = True,
) -> dict[Key, Trial]:
    """Tries, for every model on every (data set, rate), what was found for all rates.

    That is the rows of the table `out`, and the two best trials of each rate that had all epochs. All of them, the row
    of the rate itself first, get all epochs and runs, and the best becomes the row.
    """
    out = Path(out)
    table = _table(out)
    finals = _finals(_trials_file(out))
    pools = {
        (model, name, rate): list(dict.fromkeys([*_at_rates(table, model, name, rate), *finals.get((model, name), [])]))
        for name, rate in graphs
        for model in models
    }
    for key, pool in pools.items():
        if not pool:
            raise ValueError(f"{out} must have rows of {key[0]} on {key[1]} to exchange, got none")
    check_appendable(_trials_file(out))
    found = {}
    with Progress(sum(map(len, pools.values())), "settings", show=progress_bar) as progress:
        for key, pool in pools.items():
            progress.describe(f"{key[0]} on {key[1]} {key[2]} %")
            data = datasets.load(key[1], root, rate=key[2])
            check_task(data, 0, 0)
            trials = []
            for settings in pool:
                trials.append(_trial(data, key[0], settings, runs, settings.epochs))
                progress.advance(1)
            found[key] = max(trials, key=lambda trial: trial.val)  # of equal ones the first
            _record(out, table, key, found[key], trials)
    return found


def _at_rates(table: Mapping[Key, tuple[Settings, str]], model: str, name: str, rate: int) -> list[Settings]:
    """Those of a model on a data set at all rates, each once, that of `rate` first."""
    rates = sorted((key[2] for key in table if key[:2] == (model, name)), key=lambda other: (other != rate, other))
    return list(dict.fromkeys(table[model, name, other][0] for other in rates))


def _table(out: Path) -> dict[Key, tuple[Settings, str]]:
    """The table to add to: that of the file, else the package's."""
    return read_table(out) if out.exists() else dict(shipped_table())


def _record(out: Path, table: dict[Key, tuple[Settings, str]], key: Key, best: Trial, trials: Sequence[Trial]) -> None:
    """What a search has found, in the table `out` and in the file of trials beside it."""
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    text = f"search {date}: validation {best.val:.2f} % ({best.runs} runs; {best.epochs} epochs)"
    table[key] = best.settings, text
    _append_trials(_trials_file(out), key, trials)
    write_table(out, table)


def _trials_file(out: Path) -> Path:
    return out.with_name(f"{out.stem}_trials.csv")


def _append_trials(path: Path, key: Key, trials: Sequence[Trial]) -> None:
    lines = ([*key, trial.runs, trial.epochs, f"{trial.val:.2f}", *cells(trial.settings)] for trial in trials)
    append_lines(path, _TRIAL_COLUMNS, lines)


def _read_trials(path: Path) -> list[tuple[Key, Trial]]:
    """The trials in a file and what they are of."""
    if not path.exists():
        return []
    found = []
    for where, row in read_lines(path, _TRIAL_COLUMNS):
        try:
            trial = Trial(from_cells(row), float(row["val"]), int(row["runs"]), int(row["epochs"]))
            found.append(((row["model"], row["dataset"], int(row["rate"])), trial))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: must be a trial: {error}") from error
    return found


def _finals(path: Path) -> dict[tuple[str, str], list[Settings]]:
    """By model and data set: of each rate, the two best trials in a file with all epochs."""
    trials = _read_trials(path)
    most: dict[tuple[str, str], int] = {}
    for key, trial in trials:
        most[key[:2]] = max(trial.epochs, most.get(key[:2], 0))
    found: dict[tuple[str, str], list[Settings]] = {}
    rates: dict[Key, set[Settings]] = {}
    for key, trial in sorted(trials, key=lambda tried: -tried[1].val):
        tops = rates.setdefault(key, set())
        if trial.epochs == most[key[:2]] and len(tops) < 2 and trial.settings not in tops:
            tops.add(trial.settings)
            found.setdefault(key[:2], []).append(trial.settings)
    return found


def _stage(
    dataset: Dataset,
    model: str,
    every: list[Settings],
    runs: int,
    seconds: float,
    trials: list[Trial],
    progress: Progress,
) -> Trial:
    begun = time.monotonic()
    rounds = [every[0].epochs] if len(every) <= _FEW else _rounds(every[0].epochs)
    # if the time is too short for all of them, then for some from everywhere
    every = [every[0], *random.Random(0).sample(every[1:], len(every) - 1)]
    share = 0.0  # of the bar
    spent = 0.0  # seconds per run and epoch
    best = Trial(every[0], -math.inf, 0, 0)
    for number, epochs in enumerate(rounds):
        left = seconds - (time.monotonic() - begun)
        part = _runs_of_round(runs, len(rounds) - 1 - number)
        if spent * epochs * part > left:
            break
        # a setting that was never tried is worse than one that was given up early: each round may take half of the time
        until = time.monotonic() + (left if number == len(rounds) - 1 else left / 2)
        start, done = time.monotonic(), []
        for settings in every:
            done.append(_trial(dataset, model, settings, part, epochs))
            progress.note(f"epochs {epochs}, {len(done)}/{len(every)}, best {max(t.val for t in done):.2f} %")
            now = min(99.0, 100 * (time.monotonic() - begun) / seconds)
            progress.advance(now - share)
            share = now
            if time.monotonic() > until:
                break
        spent = (time.monotonic() - start) / (len(done) * epochs * part)
        trials += done
        done.sort(key=lambda trial: -trial.val)  # stable: of equal ones the first
        best = done[0]
        every = [trial.settings for trial in done[: -(-len(done) // _KEEP)]]
    progress.advance(99.0 - share)
    return best


def _rounds(epochs: int) -> list[int]:
    """Epochs of each round, the last one with all of them."""
    rounds = []
    short = _FIRST_EPOCHS
    while short < epochs:
        rounds.append(short)
        short *= _KEEP
    return [*rounds, epochs]


def _runs_of_round(runs: int, rounds_left: int) -> int:
    """All runs in the last round, half of them in the one before, and so on."""
    return max(min(runs, _FEWEST_RUNS), -(-runs // 2**rounds_left))


def _trial(dataset: Dataset, model: str, settings: Settings, runs: int, epochs: int) -> Trial:
    """Runs on the first splits, in turn, with seeds from 1000 on: those of experiments are others.

    A setting with which one of them diverges has 0 %.
    """
    splits = len(dataset.splits)
    every = [Run(k % splits, 1000 + k) for k in range(runs)]
    size = replicas_at_once(model, dataset, settings, runs)
    short = replace(settings, epochs=epochs, patience=_PATIENCE)
    values = []
    for first in range(0, runs, size):
        try:
            results = train_runs(dataset, model, short, every[first : first + size])
        except Diverged:
            return Trial(settings, 0.0, runs, epochs)
        values += [result.best.val_accuracy for result in results]
    return Trial(settings, 100 * sum(values) / len(values), runs, epochs)

"""The paper's experiments: which runs they need, training of those that are not in the results yet."""

from __future__ import annotations

import dataclasses
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ugnn_fast import _memory, datasets
from ugnn_fast._checks import check_choice
from ugnn_fast.datasets import Dataset
from ugnn_fast.experiments import paper
from ugnn_fast.experiments._csv import check_appendable
from ugnn_fast.experiments._progress import Progress
from ugnn_fast.experiments._workers import shared_out
from ugnn_fast.experiments.models import bytes_per_replica, replicas_at_once, work
from ugnn_fast.experiments.results import Row, accuracies, append_results, read_results
from ugnn_fast.experiments.settings import Key, Settings, settings_for
from ugnn_fast.experiments.train import Epoch, Run, Trainer, TrainResult, check_task

PARTS = ("table2", "table3", "robustness", "correlation", "smoothness")
RESULTS_FILE = "results.csv"
_PROCESS_BYTES = 512 << 20  # of a process that trains, beside its batch: torch and the data set
_QUICK_EPOCHS, _QUICK_RUNS = 60, 3
_QUICK_DATASETS = ("cora", "citeseer", "air_usa", "mettack_cora")
_QUICK_RATES = (0, 25)


class Task(NamedTuple):
    """Runs of one model on one graph."""

    dataset: str
    rate: int
    model: str
    settings: Settings
    runs: list[Run]


class Choice(NamedTuple):
    """What is asked for. datasets, models: None for all. runs: None for what the paper did. table: of settings, None
    for the package's."""

    parts: Sequence[str] = PARTS
    datasets: Sequence[str] | None = None
    models: Sequence[str] | None = None
    runs: int | None = 30
    quick: bool = False
    table: Mapping[Key, tuple[Settings, str]] | None = None


def runs_of(dataset: str, count: int | None) -> list[Run]:
    """`count` runs on a data set, None for those of the paper.

    One split: that many seeds. Several: splits 0..19 in turn, with seeds that are shifted by one each time, so that 400
    runs are all pairs of 20 splits and 20 seeds. Attacked graphs: at most 10 seeds, as in the paper.
    """
    if dataset in paper.ATTACKED:
        return [Run(0, seed) for seed in range(min(count or paper.ATTACKED_RUNS, paper.ATTACKED_RUNS))]
    if dataset not in paper.MANY_SPLITS:
        return [Run(0, seed) for seed in range(30 if count is None else count)]
    S = paper.SPLITS
    return [Run(i % S, (i + i // S) % S if i < S * S else i) for i in range(S * S if count is None else count)]


def plan(choice: Choice) -> list[Task]:
    """All runs of the chosen parts."""
    for part in choice.parts:
        check_choice(part, "parts", PARTS)
    tasks = []
    for dataset, rate in _graphs(choice):
        for model in paper.MODELS:
            if choice.models is not None and model not in choice.models:
                continue
            if not _needs(choice.parts, dataset in paper.ATTACKED, model):
                continue
            settings = settings_for(dataset, model, rate, choice.table)
            runs = runs_of(dataset, _QUICK_RUNS if choice.quick else choice.runs)
            if choice.quick:
                settings = dataclasses.replace(settings, epochs=_QUICK_EPOCHS)
            tasks.append(Task(dataset, rate, model, settings, runs))
    return tasks


def _graphs(choice: Choice) -> Iterator[tuple[str, int]]:
    wanted = choice.datasets or (_QUICK_DATASETS if choice.quick else (*paper.DATASETS, *paper.ATTACKED))
    for dataset in (*paper.DATASETS, *paper.ATTACKED):
        if dataset in wanted:
            rates = (_QUICK_RATES if choice.quick else paper.RATES) if dataset in paper.ATTACKED else (0,)
            yield from ((dataset, rate) for rate in rates)


def _needs(parts: Sequence[str], attacked: bool, model: str) -> bool:
    if attacked:
        return "robustness" in parts or ("correlation" in parts and model == "ada-ugnn")
    return "table2" in parts or ("table3" in parts and model in ("appnp", "ada-ugnn"))


class Batch(NamedTuple):
    """Runs of a task that are trained side by side."""

    task: Task
    runs: list[Run]


def run(
    tasks: Sequence[Task],
    folder: str | os.PathLike,
    *,
    root: str | None = None,
    processes: int = 1,
    show: bool = True,
) -> list[Row]:
    """Trains what the folder's results.csv does not have yet, batch by batch, and returns the rows of all tasks.

    processes: batches that are trained at the same time, if the memory allows; they share torch's threads.
    """
    path = Path(folder) / RESULTS_FILE
    check_appendable(path)
    done = {row.run for row in read_results(path)}
    graphs = _Graphs(root)
    left = [Batch(task, runs) for task in tasks for runs in _batches(task, graphs.get(task), done)]
    total = sum(_units(batch, graphs) * batch.task.settings.epochs for batch in left)
    processes = _fitting(left, graphs, processes)
    threads = max(1, torch.get_num_threads() // processes)
    with Progress(total, "", show=show) as progress:
        for batch, news in shared_out(_Training(graphs, _about()), left, processes, threads):
            if isinstance(news, Epoch):
                task = batch.task
                rate = f" {task.rate} %" if task.rate else ""
                progress.describe(f"{task.model} on {task.dataset}{rate}, {len(batch.runs)} runs")
                progress.note(f"epoch {news.epoch}, val {100 * news.val_accuracy:.1f} %")
                progress.advance(_units(batch, graphs))
            else:
                append_results(path, news)
    return rows_of(tasks, read_results(path))


class _Training:
    """Trains batches: the epochs of a batch as they are done, then its rows."""

    def __init__(self, graphs: _Graphs, about: dict[str, str]):
        self.graphs, self.about = graphs, about

    def __call__(self, batch: Batch) -> Iterator[Epoch | list[Row]]:
        task, data = batch.task, self.graphs.get(batch.task)
        trainer = Trainer(data, task.model, task.settings, batch.runs)
        while not trainer.finished:
            yield trainer.step()
        yield [_row(batch, data, result, self.about) for result in trainer.results()]


def _fitting(batches: Sequence[Batch], graphs: _Graphs, processes: int) -> int:
    """So many processes at most that they take half of the memory."""
    largest = max(
        (len(runs) * bytes_per_replica(task.model, graphs.get(task), task.settings) for task, runs in batches),
        default=0,
    )
    return max(1, min(processes, len(batches), _memory.total_bytes() // 2 // (_PROCESS_BYTES + largest)))


def rows_of(tasks: Sequence[Task], rows: Sequence[Row]) -> list[Row]:
    """Those of the tasks, in their order."""
    found = {row.run: row for row in rows}
    wanted = (_key(task, run) for task in tasks for run in task.runs)
    return [found[key] for key in wanted if key in found]


def missing(choice: Choice, root: str | None = None) -> list[str]:
    """Data sets that the choice needs and that are not to be found."""
    there = datasets.names(root)
    needed = {task.dataset for task in plan(choice)}
    if "smoothness" in choice.parts:
        needed |= {dataset for dataset, _ in _graphs(choice)}
    return sorted(needed.difference(there))


class _Graphs:
    """The data sets of tasks, each read once."""

    def __init__(self, root: str | None):
        self.root = root
        self.read: dict[tuple[str, int], Dataset] = {}

    def get(self, task: Task) -> Dataset:
        key = task.dataset, task.rate
        if key not in self.read:
            data = datasets.load(task.dataset, self.root, rate=task.rate)
            for run in task.runs:
                check_task(data, run.seed, run.split)
            self.read[key] = data
        return self.read[key]

    def __getstate__(self) -> dict:
        return {"root": self.root, "read": {}}  # another process reads them again


def _batches(task: Task, data: Dataset, done: set[tuple]) -> Iterator[list[Run]]:
    """Runs to train side by side. Always the same ones, so that a resumed experiment gives the same numbers."""
    size = replicas_at_once(task.model, data, task.settings, len(task.runs))
    for first in range(0, len(task.runs), size):
        batch = [run for run in task.runs[first : first + size] if _key(task, run) not in done]
        if batch:
            yield batch


def _key(task: Task, run: Run) -> tuple:
    return task.dataset, task.rate, task.model, task.settings.text(), run.split, run.seed


def _units(batch: Batch, graphs: _Graphs) -> float:
    """Of work in an epoch."""
    return len(batch.runs) * work(batch.task.model, graphs.get(batch.task), batch.task.settings)


def _row(batch: Batch, data: Dataset, result: TrainResult, about: dict[str, str]) -> Row:
    task, runs = batch
    found: dict[str, Any] = {**accuracies(result, data.splits[result.split][2]), **about}
    return Row(
        dataset=task.dataset,
        rate=task.rate,
        model=task.model,
        split=result.split,
        seed=result.seed,
        settings=task.settings.text(),
        val=100 * result.best.val_accuracy,
        correlation=float("nan") if result.correlation is None else result.correlation,
        best_epoch=result.best.epoch,
        seconds=result.seconds,
        batch=f"{runs[0].split}:{runs[0].seed}",
        replicas=len(runs),
        threads=torch.get_num_threads(),
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M"),
        **found,
    )


def _about() -> dict[str, str]:
    """Commit and machine, as far as they can be found out."""
    root = Path(__file__).parents[2]
    commit = ""
    if (root / ".git").exists() and shutil.which(
        "git"
    ):  # not the repository of somebody who has installed the package inside it
        done = subprocess.run(["git", "-C", root, "describe", "--always", "--dirty=+"], capture_output=True, text=True)
        commit = done.stdout.strip()
    machine = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        machine = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"commit": commit, "machine": f"{machine}, {os.cpu_count()} cores"}

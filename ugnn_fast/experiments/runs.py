"""Several runs that differ in their seed, written to a folder as they finish."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ugnn_fast.datasets import Dataset
from ugnn_fast.experiments import report
from ugnn_fast.experiments._extras import require
from ugnn_fast.experiments._progress import Progress
from ugnn_fast.experiments.settings import Settings
from ugnn_fast.experiments.train import TrainResult, check_task, train


def train_seeds(
    dataset: Dataset,
    model: str,
    settings: Settings,
    seeds: Sequence[int],
    folder: str | os.PathLike,
    *,
    split: int = 0,
    rate: int = 0,
    progress_bar: bool = True,
) -> list[TrainResult]:
    """Trains once per seed and writes the report; after Ctrl-C the report of the runs that had finished."""
    if not seeds:
        raise ValueError("seeds must hold at least one seed, got none")
    # what could stop the end of a long run shall stop its beginning
    require("matplotlib.figure")
    for seed in seeds:
        check_task(dataset, seed, split)
    progress = Progress(len(seeds), settings.epochs, show=progress_bar)
    Path(folder).mkdir(parents=True, exist_ok=True)
    results: list[TrainResult] = []
    try:
        with progress:
            for seed in seeds:
                progress.start(seed)
                results.append(train(dataset, model, settings, seed=seed, split=split, progress=progress.step))
                report.write_numbers(folder, results, rate=rate)
    except KeyboardInterrupt:
        if not results:
            raise
    report.write_report(folder, results, rate=rate)
    return results

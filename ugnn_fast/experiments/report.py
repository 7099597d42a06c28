"""Results of training runs as a folder.

metrics.json     settings, versions, accuracy and time of each run, and their means
history.csv      one line per run and epoch
checkpoint.pt    parameters of the run with the best validation accuracy, see `load_checkpoint`
curves.png       loss and accuracy over the epochs
smoothness.png   learned C against local label smoothness, for a model that learns C
"""

from __future__ import annotations

import csv
import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import ugnn_fast
from ugnn_fast._backend import backends
from ugnn_fast.experiments import pictures
from ugnn_fast.experiments.models import build_model
from ugnn_fast.experiments.settings import Settings
from ugnn_fast.experiments.train import Epoch, TrainResult

_CHECKPOINT_FORMAT = 1


def write_report(folder: str | os.PathLike, results: Sequence[TrainResult], *, rate: int = 0) -> None:
    """All files of the folder, for runs that differ in their seed only. Replaces an earlier report."""
    write_numbers(folder, results, rate=rate)
    write_pictures(folder, results)


def write_numbers(folder: str | os.PathLike, results: Sequence[TrainResult], *, rate: int = 0) -> None:
    """metrics.json, history.csv and checkpoint.pt. rate: the attack on the data set's edges, in percent."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.json").write_text(json.dumps(metrics(results, rate=rate), indent=2, allow_nan=False) + "\n")
    with open(folder / "history.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["seed", *Epoch._fields])
        for result in results:
            writer.writerows([result.seed, *epoch] for epoch in result.history)
    chosen = best_run(results)
    torch.save(
        {
            "format": _CHECKPOINT_FORMAT,
            "model": chosen.model,
            "in_features": chosen.in_features,
            "classes": chosen.classes,
            "settings": asdict(chosen.settings),
            "dataset": chosen.dataset,
            "rate": rate,
            "split": chosen.split,
            "seed": chosen.seed,
            "epoch": chosen.best.epoch,
            "state": chosen.state,
        },
        folder / "checkpoint.pt",
    )


def write_pictures(folder: str | os.PathLike, results: Sequence[TrainResult]) -> None:
    """curves.png and, for a model with C, smoothness.png. Needs matplotlib."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pictures.curves(results).savefig(folder / "curves.png")
    chosen = best_run(results)
    if chosen.c is not None:
        pictures.smoothness(chosen).savefig(folder / "smoothness.png")
    else:
        # one of an earlier report would be of another model
        (folder / "smoothness.png").unlink(missing_ok=True)


def load_checkpoint(path: str | os.PathLike) -> tuple[nn.Module, dict[str, Any]]:
    """(model in evaluation mode, what the file says of its training: settings, dataset, seed, ...)."""
    try:
        saved = torch.load(path, weights_only=True)
        if saved["format"] != _CHECKPOINT_FORMAT:
            raise ValueError(f"format must be {_CHECKPOINT_FORMAT}, got {saved['format']}")
        settings = Settings(**saved["settings"])
        model = build_model(saved["model"], saved["in_features"], saved["classes"], settings)
        model.load_state_dict(saved.pop("state"))
    except OSError:
        raise
    except Exception as error:
        # a damaged or foreign file fails in as many ways as there are steps
        raise ValueError(f"path must be a checkpoint of ugnn-fast, got {path}: {error}") from error
    return model.eval(), saved


def best_run(results: Sequence[TrainResult]) -> TrainResult:
    """The run with the best validation accuracy, the first of several."""
    return max(results, key=lambda result: result.best.val_accuracy)


def metrics(results: Sequence[TrainResult], *, rate: int = 0) -> dict[str, Any]:
    """What metrics.json holds. Accuracies are shares, times are seconds."""
    first = results[0]
    return {
        "dataset": first.dataset,
        "rate": rate,
        "model": first.model,
        "split": first.split,
        "settings": asdict(first.settings),
        "summary": summary(results),
        "checkpoint_seed": best_run(results).seed,
        "runs": [
            {
                "seed": result.seed,
                "best_epoch": result.best.epoch,
                "train_loss": result.best.train_loss,
                "train_accuracy": result.best.train_accuracy,
                "val_accuracy": result.best.val_accuracy,
                "test_accuracy": result.test_accuracy,
                "correlation": result.correlation,
                "seconds_per_epoch": result.seconds_per_epoch,
                "seconds": result.seconds,
            }
            for result in results
        ],
        "backend": "cpu" if backends()["cpu"].runs else "reference",
        "threads": torch.get_num_threads(),
        "versions": {
            "ugnn_fast": ugnn_fast.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def summary(results: Sequence[TrainResult]) -> dict[str, Any]:
    """Means over the runs; std is that of a sample, None for one run."""
    accuracy = [result.test_accuracy for result in results]
    correlations = [result.correlation for result in results if result.correlation is not None]
    return {
        "runs": len(results),
        "test_accuracy_mean": statistics.fmean(accuracy),
        "test_accuracy_std": statistics.stdev(accuracy) if len(accuracy) > 1 else None,
        "correlation_mean": statistics.fmean(correlations) if correlations else None,
        "seconds_per_epoch": statistics.median(result.seconds_per_epoch for result in results),
        "seconds": sum(result.seconds for result in results),
    }

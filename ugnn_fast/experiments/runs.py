"""Runs that differ in their seed, trained side by side and written to a folder.

training.pt in that folder holds what an interrupted training needs to go on; it is gone when the training is over.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ugnn_fast._extras import require
from ugnn_fast.datasets import Dataset
from ugnn_fast.experiments import report
from ugnn_fast.experiments._progress import Progress
from ugnn_fast.experiments.models import replicas_at_once
from ugnn_fast.experiments.settings import Settings
from ugnn_fast.experiments.train import Run, Trainer, TrainResult, check_task

STATE_FILE = "training.pt"
_FORMAT = 1
_SAVE_SECONDS = 60.0  # between two savings


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with the results of the runs that had finished. What the others had reached is in training.pt."""

    def __init__(self, results: list[TrainResult]):
        super().__init__()
        self.results = results


def train_seeds(
    dataset: Dataset,
    model: str,
    settings: Settings,
    seeds: Sequence[int],
    folder: str | os.PathLike,
    *,
    split: int = 0,
    rate: int = 0,
    resume: bool = False,
    progress_bar: bool = True,
) -> list[TrainResult]:
    """Trains a run for each seed, as many at once as fit into memory, and writes the report.

    resume: goes on from training.pt in the folder, if there is one. After Ctrl-C training.pt is written, with a report
    of the runs that had finished, and Interrupted raised.
    """
    if not seeds:
        raise ValueError("seeds must hold at least one seed, got none")
    # what could stop the end of a long run shall stop its beginning
    require("matplotlib.figure")
    for seed in seeds:
        check_task(dataset, seed, split)
    folder = Path(folder)
    saved = _load(folder / STATE_FILE) if resume else []
    size = replicas_at_once(model, dataset, settings, len(seeds))
    progress = Progress(len(seeds) * settings.epochs, "epoch", show=progress_bar)
    folder.mkdir(parents=True, exist_ok=True)
    _save(folder / STATE_FILE, saved)  # what could not be written later shall be missed now
    results: list[TrainResult] = []
    states: list[dict[str, Any]] = []
    with progress:
        for first in range(0, len(seeds), size):
            batch = seeds[first : first + size]
            trainer = Trainer(dataset, model, settings, [Run(split, seed) for seed in batch])
            if len(states) < len(saved):
                _go_on(trainer, saved[len(states)], folder / STATE_FILE)
            progress.describe(_seeds_text(batch) + (f" of {len(seeds)}" if len(batch) < len(seeds) else ""))
            progress.advance(trainer.epoch * len(batch))
            whole = _train(trainer, progress, folder / STATE_FILE, states)
            states.append(trainer.state_dict())
            _save(folder / STATE_FILE, states)
            if not whole:
                if results:
                    report.write_report(folder, results, rate=rate)
                raise Interrupted(results)
            progress.advance((settings.epochs - trainer.epoch) * len(batch))
            results += trainer.results()
            report.write_numbers(folder, results, rate=rate)
    report.write_report(folder, results, rate=rate)
    (folder / STATE_FILE).unlink(missing_ok=True)
    return results


def _train(trainer: Trainer, progress: Progress, path: Path, before: list[dict[str, Any]]) -> bool:
    """Whether the training came to its end: Ctrl-C stops it between two epochs."""
    saved = time.monotonic()
    with _interruption() as interrupted:
        while not trainer.finished and not interrupted.is_set():
            epoch = trainer.step()
            progress.note(f"loss {epoch.train_loss:.3f}, val {100 * epoch.val_accuracy:.1f} %")
            progress.advance(len(trainer.runs))
            if time.monotonic() - saved > _SAVE_SECONDS:
                _save(path, [*before, trainer.state_dict()])
                saved = time.monotonic()
    return trainer.finished


@contextlib.contextmanager
def _interruption() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; the second one is an interrupt again. Only the main thread hears of them."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def hear(number: int, frame: object) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    before = signal.signal(signal.SIGINT, hear)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _go_on(trainer: Trainer, state: dict[str, Any], path: Path) -> None:
    try:
        trainer.load_state_dict(state)
    except (KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise _foreign(path, error) from error


def _foreign(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} must be an interrupted training of ugnn-fast: {type(error).__name__} {error}")


def _seeds_text(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]}..{seeds[-1]}"


def _save(path: Path, states: list[dict[str, Any]]) -> None:
    """Replaced at once: a crash leaves the old file or the new one."""
    new = path.with_suffix(".new")
    torch.save({"format": _FORMAT, "trainers": states}, new)
    os.replace(new, path)


def _load(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        saved = torch.load(path, weights_only=True)
        if saved["format"] != _FORMAT:
            raise ValueError(f"format must be {_FORMAT}, got {saved['format']}")
        return list(saved["trainers"])
    except OSError:
        raise
    except Exception as error:
        # a damaged or foreign file fails in as many ways as there are steps
        raise _foreign(path, error) from error

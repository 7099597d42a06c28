"""A file of results, one line per run, to which finished batches are appended.

A batch, runs that were trained side by side, is written in one go and counts only when all of its lines are there: a
crash at any moment loses the batch under way and nothing else.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ugnn_fast.experiments._csv import append_lines, read_lines
from ugnn_fast.experiments.train import TrainResult


@dataclass(frozen=True)
class Row:
    """A finished run. Accuracies in percent, of the epoch with the best validation accuracy.

    low, high: of test nodes with a local label smoothness < 0.5 and >= 0.5, an isolated node counting as 0; low_text,
    high_text: the same for <= 0.5 and > 0.5, the rule in the paper's text. nan where there are no such nodes.
    """

    dataset: str
    rate: int
    model: str
    split: int
    seed: int
    settings: str
    val: float
    test: float
    low: float
    high: float
    low_text: float
    high_text: float
    correlation: float  # of C with local label smoothness; nan for a model without C
    best_epoch: int
    seconds: float  # of this run: a share of its batch
    batch: str  # the first run of the batch, split:seed
    replicas: int  # runs of the batch
    commit: str
    machine: str
    threads: int
    date: str

    @property
    def run(self) -> tuple:
        """What the run was of."""
        return self.dataset, self.rate, self.model, self.settings, self.split, self.seed

    @property
    def core_seconds(self) -> float:
        return self.seconds * self.threads


COLUMNS = tuple(field.name for field in fields(Row))
_TYPES = {"str": str, "int": int, "float": float}


def accuracies(result: TrainResult, test_nodes) -> dict[str, float]:
    """test, low, high, low_text, high_text of a run."""
    right, smooth = result.right[test_nodes].double(), result.smoothness[test_nodes].nan_to_num(0.0)
    parts = {
        "test": smooth >= 0,
        "low": smooth < 0.5,
        "high": smooth >= 0.5,
        "low_text": smooth <= 0.5,
        "high_text": smooth > 0.5,
    }
    return {name: 100 * float(right[part].mean()) if part.any() else math.nan for name, part in parts.items()}


def read_results(path: str | os.PathLike) -> list[Row]:
    """The rows of complete batches; of several for the same run, the last."""
    if not Path(path).exists():
        return []
    types = {field.name: _TYPES[str(field.type)] for field in fields(Row)}
    batches: dict[tuple, dict[tuple, Row]] = {}
    for where, cells in read_lines(path, COLUMNS):
        try:
            row = Row(**{name: types[name](cells[name]) for name in COLUMNS})
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        batches.setdefault((*row.run[:4], row.batch, row.replicas), {})[row.run] = row
    whole = (batch for (*_, size), batch in batches.items() if len(batch) == size)
    return list({run: row for batch in whole for run, row in batch.items()}.values())


def append_results(path: str | os.PathLike, rows: Sequence[Row]) -> None:
    """The rows of one batch, on disk when this returns."""
    append_lines(path, COLUMNS, (_cells(row) for row in rows))


def _cells(row: Row) -> list[object]:
    """Accuracies with more digits than any count of nodes needs."""
    return [f"{value:.6f}" if isinstance(value, float) else value for value in asdict(row).values()]

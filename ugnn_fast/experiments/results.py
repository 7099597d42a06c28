"""A file of results, one line per run, to which finished batches are appended.

A batch, runs that were trained side by side, is written in one go and counts only when all of its lines are there: a
crash at any moment loses the batch under way and nothing else.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

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
    path = Path(path)
    if not path.exists():
        return []
    found: dict[tuple, Row] = {}
    types = {field.name: _TYPES[str(field.type)] for field in fields(Row)}
    whole = path.read_bytes()
    whole = whole[: whole.rfind(b"\n") + 1]  # a line without an end was being written
    for number, line in enumerate(csv.DictReader(io.StringIO(whole.decode())), 2):
        if None in line or None in line.values() or set(line) != set(COLUMNS):
            raise ValueError(f"{path}, line {number}: must have the columns {', '.join(COLUMNS)}")
        try:
            row = Row(**{name: types[name](line[name]) for name in COLUMNS})
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        found[row.run] = row
    sizes: dict[tuple, int] = {}
    for row in found.values():
        sizes[_batch(row)] = sizes.get(_batch(row), 0) + 1
    return [row for row in found.values() if sizes[_batch(row)] == row.replicas]


def _batch(row: Row) -> tuple:
    return (*row.run[:4], row.batch)


def append_results(path: str | os.PathLike, rows: Sequence[Row]) -> None:
    """The rows of one batch, on disk when this returns."""
    path = Path(path)
    lines = _lines(rows)
    with open(path, "a+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            lines = ",".join(COLUMNS) + "\n" + lines
        else:
            file.seek(size - 1)
            if file.read(1) != b"\n":  # what a crash left of a line
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(lines.encode())
        file.flush()
        os.fsync(file.fileno())


def write_results(path: str | os.PathLike, rows: Iterable[Row]) -> None:
    """A new file of rows."""
    Path(path).write_text(",".join(COLUMNS) + "\n" + _lines(rows))


def _lines(rows: Iterable[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        # accuracies with more digits than any count of nodes needs
        values = asdict(row).values()
        writer.writerow(f"{value:.6f}" if isinstance(value, float) else value for value in values)
    return text.getvalue()

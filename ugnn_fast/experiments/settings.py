"""Settings of a training run, and the table of those that experiments take by default, settings.csv.

A row of the table is for one model on one data set (mettack_*: at one rate of the attack). Its `source` says where it
comes from: "paper" for Ma et al. 2021 and its authors' code, else the search that found it (`ugnn-fast search`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ugnn_fast._checks import check_choice, check_count, check_number, check_share, check_size, check_steps
from ugnn_fast.experiments._csv import as_text, read_lines

MODELS = ("ada-ugnn", "appnp", "ppnp", "gcn", "gat", "sgc", "gprgnn")
TABLE_FILE = Path(__file__).with_name("settings.csv")


@dataclass(frozen=True)
class Settings:
    """What a training run depends on beside data, model, split and seed.

    steps: K. s: largest C of ADA-UGNN, the C of APPNP and PPNP; alpha = 1 / (1 + s) for those and for GPRGNN. soft:
    only for ADA-UGNN, see `ugnn_fast.nn.AdaUGNN`. binary: every stored feature counts as 1. patience: a run ends after
    so many epochs without a better validation accuracy; 0: never.
    """

    hidden: int = 16
    weight_decay: float = 5e-4
    dropout: float = 0.8
    steps: int = 10
    lr: float = 0.05
    s: float = 9.0
    soft: bool = False
    binary: bool = False
    epochs: int = 400
    patience: int = 0

    def __post_init__(self) -> None:
        check_size(self.hidden, "hidden")
        check_number(self.weight_decay, "weight_decay", low=0.0)
        check_share(self.dropout, "dropout")
        check_steps(self.steps)
        if check_number(self.lr, "lr", low=0.0) == 0:
            raise ValueError(f"lr must be > 0, got {self.lr}")
        check_number(self.s, "s", low=0.0)
        check_size(self.epochs, "epochs")
        if check_count(self.patience, "patience", 0) >= 2**31:
            raise ValueError(f"patience must be < 2^31, got {self.patience}")
        for name in ("soft", "binary"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be a bool, got {type(getattr(self, name)).__name__}")

    def text(self) -> str:
        """All of them in one word, the same for the same settings."""
        return ",".join(f"{name}={_written(value)}" for name, value in asdict(self).items())


def _written(value: float) -> str:
    if isinstance(value, bool):
        return str(int(value))
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


Key = tuple[str, str, int]  # model, data set, rate
COLUMNS = ("hidden", "weight_decay", "dropout", "steps", "lr", "s", "soft", "binary")
_HEADER = ("model", "dataset", "rate", *COLUMNS, "source")


def cells(settings: Settings) -> list[str]:
    """What a table has of them, column by column."""
    return [_written(getattr(settings, name)) for name in COLUMNS]


def from_cells(row: Mapping[str, str]) -> Settings:
    """Settings of a row of a table, by column."""
    types = {field.name: str(field.type) for field in fields(Settings)}
    values: dict[str, Any] = {name: _parsed(row[name], types[name]) for name in COLUMNS}
    return Settings(**values)


def read_table(path: str | os.PathLike) -> dict[Key, tuple[Settings, str]]:
    """Settings and their source by (model, data set, rate); at least one row."""
    table = {}
    for where, row in read_lines(path, _HEADER):
        try:
            check_choice(row["model"], "model", MODELS)
            table[row["model"], row["dataset"], int(row["rate"])] = from_cells(row), row["source"]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: must be a row of settings: {error}") from error
    if not table:
        raise ValueError(f"{path} must have the header {','.join(_HEADER)} and rows of settings, got none")
    return table


def write_table(path: str | os.PathLike, table: Mapping[Key, tuple[Settings, str]]) -> None:
    """The file that `read_table` reads, replaced at once."""
    path = Path(path)
    new = path.with_name(path.name + ".new")
    keys = sorted(table, key=lambda key: (key[0], *_order(key)))
    new.write_text(as_text([_HEADER, *([*key, *cells(table[key][0]), table[key][1]] for key in keys)]))
    os.replace(new, path)


def _order(key: Key) -> tuple:
    return key[1].startswith("mettack"), key[1], key[2]


def _parsed(text: str, type_name: str) -> int | float | bool:
    if type_name == "bool":
        check_choice(text, "a cell of soft and binary", ("0", "1"))
        return text == "1"
    return int(text) if type_name == "int" else float(text)


@functools.cache
def shipped_table() -> dict[Key, tuple[Settings, str]]:
    return read_table(TABLE_FILE)


def settings_for(
    dataset: str, model: str = "ada-ugnn", rate: int = 0, table: Mapping[Key, tuple[Settings, str]] | None = None
) -> Settings:
    """The row of the table, by default the package's, for this model, data set and rate.

    Without one: that of ADA-UGNN on the same data (of Cora, for data that the table does not have), with the dropout
    0.5 and hidden size 8 per head that GAT's authors use, if the model is that.
    """
    table = shipped_table() if table is None else table
    for key in ((model, dataset, rate), ("ada-ugnn", dataset, rate)):
        if key in table:
            return table[key][0] if key[0] == model else _for_model(model, table[key][0])
    if dataset.startswith("mettack_"):
        return settings_for(dataset.removeprefix("mettack_"), model, table=table)
    return _for_model(model, table.get(("ada-ugnn", "cora", 0), (Settings(), ""))[0])


def _for_model(model: str, settings: Settings) -> Settings:
    """Settings of ADA-UGNN for another model."""
    return replace(settings, hidden=8, dropout=0.5) if model == "gat" else settings

"""Tables and figures of the paper's experiments as files, and all of them in one HTML page that needs no other file.

results.csv                               one line per run, see `ugnn_fast.experiments.results`
table2.md, table3.md, ...                 tables
smoothness.png, robustness.png, ...       figures
report.html                               all of it
"""

from __future__ import annotations

import base64
import html
import io
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ugnn_fast import datasets
from ugnn_fast._extras import require
from ugnn_fast.experiments import figures, paper
from ugnn_fast.experiments.reproduce import RESULTS_FILE, Choice, missing, plan, rows_of, run
from ugnn_fast.experiments.results import Row, read_results
from ugnn_fast.experiments.tables import Table, all_tables

_TITLES = {
    "smoothness": "Local label smoothness of the graphs",
    "robustness": "Accuracy under Mettack",
    "correlation": "Correlation of C with local label smoothness under Mettack",
}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1150px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; font-size: 13.5px; margin: .6em 0 1.6em } img { max-width: 100% }
th, td { padding: .25em .7em; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap }
th:first-child, td:first-child { text-align: left } h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em }
div { overflow-x: auto }
"""


def reproduce(
    choice: Choice,
    folder: str | os.PathLike,
    *,
    source: str | None = None,
    root: str | None = None,
    processes: int = 1,
    progress_bar: bool = True,
) -> tuple[dict[str, Table], list[str]]:
    """Trains what the folder does not have yet and writes all files: (tables, data sets that were not found).

    source: a results.csv from which the files are made, without any training. processes: those that train at the same
    time and share torch's threads; more than one are for programs that can be imported without running.
    """
    # what could stop the end of a long run shall stop its beginning
    require("matplotlib.figure")
    require("scipy.stats")
    folder = Path(folder)
    if source is not None:
        if not Path(source).is_file():
            raise FileNotFoundError(f"source must be a file of results, got {source}: no such file")
        rows, absent = rows_of(plan(choice), read_results(source)), []
        if not rows and "smoothness" not in choice.parts:
            raise ValueError(f"{source} must have runs of {_asked(choice)} with the settings of the table, got none")
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / RESULTS_FILE).exists():
            shutil.copyfile(source, folder / RESULTS_FILE)
    else:
        absent = missing(choice, root)
        if absent and choice.datasets is not None:
            raise ValueError(f"data sets must be in --root, $UGNN_DATA or the package, not found: {', '.join(absent)}")
        tasks = [task for task in plan(choice) if task.dataset not in absent]
        if not tasks and "smoothness" not in choice.parts:
            raise ValueError(f"there must be something to train, got {_asked(choice)}, which needs no run")
        rows = run(tasks, folder, root=root, processes=processes, show=progress_bar)
    return write_summary(folder, rows, choice, root=root), absent


def _asked(choice: Choice) -> str:
    on = f" on {' '.join(choice.datasets)}" if choice.datasets else ""
    of = f" of {' '.join(choice.models)}" if choice.models else ""
    return " ".join(choice.parts) + on + of


def write_summary(
    folder: str | os.PathLike, rows: Sequence[Row], choice: Choice, *, root: str | None = None
) -> dict[str, Table]:
    """All files but results.csv; returns the tables."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tables = all_tables(rows, choice.parts)
    for name, table in tables.items():
        (folder / f"{name}.md").write_text(table.markdown())
    pictures = {}
    for name, figure in _figures(rows, choice, root).items():
        stream = io.BytesIO()
        figure.savefig(stream, format="png")
        pictures[name] = stream.getvalue()
        (folder / f"{name}.png").write_bytes(pictures[name])
    (folder / "report.html").write_text(_page(rows, tables, pictures))
    return tables


def _figures(rows: Sequence[Row], choice: Choice, root: str | None) -> dict[str, Any]:
    found = {}
    if "smoothness" in choice.parts:
        there = datasets.names(root)
        wanted = [(name, 0) for name in paper.DATASETS] + [("mettack_cora", rate) for rate in paper.RATES]
        chosen = choice.datasets
        keys = [key for key in wanted if key[0] in there and (chosen is None or key[0] in chosen)]
        if keys:
            found["smoothness"] = figures.smoothness({key: datasets.load(key[0], root, rate=key[1]) for key in keys})
    if "robustness" in choice.parts:
        found["robustness"] = figures.robustness(rows)
    if "correlation" in choice.parts:
        found["correlation"] = figures.correlation(rows)
    return {name: figure for name, figure in found.items() if figure is not None}


def _page(rows: Sequence[Row], tables: dict[str, Table], pictures: dict[str, bytes]) -> str:
    parts = [
        "<h1>ADA-UGNN and its peers: the experiments of Ma et al. 2021</h1>",
        f"<p>{html.escape(_about(rows))}</p>",
    ]
    for table in tables.values():
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.head)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>" for line in table.body
        )
        parts.append(f"<h2>{html.escape(table.title)}</h2><p>{html.escape(table.note)}</p>")
        parts.append(f"<div><table><tr>{head}</tr>{body}</table></div>")
    for name, picture in pictures.items():
        data = base64.b64encode(picture).decode()
        title = html.escape(_TITLES[name])
        parts.append(f'<h2>{title}</h2><img alt="{title}" src="data:image/png;base64,{data}">')
    head = f'<meta charset="utf-8"><title>Experiments</title><style>{_STYLE}</style>'
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def _about(rows: Sequence[Row]) -> str:
    """Where the figures come from."""
    if not rows:
        return "No training runs."
    minutes = sum(row.core_seconds for row in rows) / 60
    dates = sorted(row.date for row in rows)
    commits, machines = sorted({row.commit for row in rows}), sorted({row.machine for row in rows})
    threads = sorted({row.threads for row in rows})
    return (
        f"{len(rows):,} training runs in {minutes:.1f} minutes of a core, {dates[0]} to {dates[-1]} UTC, on "
        f"{'; '.join(machines)}, {' and '.join(map(str, threads))} threads, commit {', '.join(commits)}."
    )

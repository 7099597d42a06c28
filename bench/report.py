"""The CSV of a run, and `python -m bench.report`: a Markdown table and a picture of the latest run in it.

The file is appended to and never edited; the rows of one run share their date.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from bench.contenders import CONTENDERS, MODES, OURS, dtype_name, model_bytes
from bench.graphs import Problem, Shape
from bench.timing import Samples

CSV_NAME, TABLE_NAME, PICTURE_NAME = "ada_propagate.csv", "ada_propagate.md", "ada_propagate.png"

# fmt: off
COLUMNS = [
    "date", "op", "contender", "mode",
    "graph", "N", "E", "D", "K", "dtype",
    "p20_ms", "p50_ms", "p80_ms", "samples", "rejected_share",
    "peak_mb",
    "model_mb", "gb_per_s", "copy_share",
    "speedup", "best_other", "max_error",
    "copy_gb_per_s", "triad_gb_per_s",
    "machine", "cores", "threads", "torch", "ugnn_fast", "isa", "commit",
]
# fmt: on


def rows_of(
    shape: Shape,
    problem: Problem,
    mode: str,
    samples: dict[str, Samples],
    max_error: dict[str, float],
    peaks: dict[str, dict[str, float]],
    bandwidth: dict[str, float],
    common: dict[str, object],
) -> list[dict[str, object]]:
    """The CSV rows of one shape and mode."""
    N, E = problem.g.num_nodes, problem.g.num_edges
    p50 = {label: s.quantiles()[1] for label, s in samples.items()}
    others = {label: ms for label, ms in p50.items() if CONTENDERS[label].name != OURS}
    best = min(others, key=others.__getitem__, default=None)
    rows = []
    for label, taken in samples.items():
        contender = CONTENDERS[label]
        p20, median, p80 = taken.quantiles()
        moved = model_bytes(mode, N, E, shape.D, shape.K, contender.dtype.itemsize)
        rate = moved / median / 1e6
        compared = best is not None and contender.name == OURS
        peak = peaks.get(label, {}).get(mode)
        rows.append(
            {
                **common,
                "op": "ada_propagate",
                "contender": contender.name,
                "mode": mode,
                "graph": shape.graph,
                **{"N": N, "E": E, "D": shape.D, "K": shape.K},
                "dtype": dtype_name(contender.dtype),
                **{"p20_ms": f"{p20:.4g}", "p50_ms": f"{median:.4g}", "p80_ms": f"{p80:.4g}"},
                "samples": len(taken.counted),
                "rejected_share": f"{taken.rejected_share:.2f}",
                "peak_mb": "" if peak is None else f"{peak:.1f}",
                "model_mb": f"{moved / 1e6:.4g}",
                "gb_per_s": f"{rate:.4g}",
                "copy_share": f"{rate / bandwidth['copy']:.3g}",
                "speedup": f"{p50[best] / median:.3g}" if compared else "",
                "best_other": best if compared else "",
                "max_error": f"{max_error[label]:.1e}",
                "copy_gb_per_s": f"{bandwidth['copy']:.4g}",
                "triad_gb_per_s": f"{bandwidth['triad']:.4g}",
            }
        )
    return rows


def append(path: Path, columns: list[str], rows: list[dict[str, object]]) -> None:
    """Adds rows to a CSV file, which gets its header when it is new."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns)
        if new:
            writer.writeheader()
        writer.writerows(rows)


def check_columns(path: Path, columns: list[str]) -> None:
    """Raises ValueError, before hours of measuring, if rows would not fit the file that is there."""
    if path.exists():
        with path.open(newline="") as file:
            found = next(csv.reader(file), [])
        if found != columns:
            raise ValueError(f"{path} must have the columns {columns}, got {found}; move it or choose another --out")


def read_latest(path: Path) -> list[dict[str, str]]:
    """The rows of the run with the latest date."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise ValueError(f"{path} must hold at least one row, got none")
    latest = max(row["date"] for row in rows)
    return [row for row in rows if row["date"] == latest]


def _label(row: dict[str, str]) -> str:
    return row["contender"] if row["dtype"] == "float32" else f"{row['contender']} {row['dtype']}"


def _by_case(rows: list[dict[str, str]]) -> dict[tuple[str, ...], dict[str, dict[str, str]]]:
    """(graph, D, K, mode) -> contender -> row, in the order of the run."""
    cases: dict[tuple[str, ...], dict[str, dict[str, str]]] = {}
    for row in rows:
        cases.setdefault((row["graph"], row["D"], row["K"], row["mode"]), {})[_label(row)] = row
    return cases


def table(rows: list[dict[str, str]]) -> str:
    """Markdown: median ms and peak extra MB of every contender, our speed-up against the best others."""
    labels = [label for label in CONTENDERS if any(_label(row) == label for row in rows)]
    lines = [
        f"| graph (N / E), D, K | mode | {' | '.join(labels)} | speed-up | over tuned |",
        f"| --- | --- |{' ---: |' * (len(labels) + 2)}",
    ]
    for (graph, D, K, mode), found in _by_case(rows).items():
        any_row = next(iter(found.values()))
        size = f"{int(any_row['N']):,} / {int(any_row['E']):,}"
        cells = [_cell(found[label]) if label in found else "" for label in labels]
        gains = " | ".join(_gain(found, tuned) for tuned in (False, True))
        lines.append(f"| {graph} ({size}), {D}, {K} | {mode} | {' | '.join(cells)} | {gains} |")
    row = rows[0]
    noise = max(float(row["rejected_share"]) for row in rows)
    about = (
        "ada_propagate, median ms (peak extra MB) of a call; fwdbwd: with gradients of x and C."
        f" {row['machine']}, {row['threads']} of {row['cores']} cores, {row['isa']}, copy"
        f" {row['copy_gb_per_s']} GB/s, torch {row['torch']}, ugnn_fast {row['ugnn_fast']}, commit"
        f" {row['commit']}, {row['date'][:10]}; at most {100 * noise:.0f} % of a contender's samples were"
        f" rejected as disturbed. Speed-up: best other / {OURS};"
        f" over tuned: best of those that we tuned for this / {OURS}."
    )
    return f"{about}\n\n" + "\n".join(lines) + "\n"


def _gain(found: dict[str, dict[str, str]], tuned: bool) -> str:
    """Our speed-up over the best other contender in float32, of those that are tuned, or of the rest."""
    others = [
        float(row["p50_ms"]) for label, row in found.items() if label != OURS and CONTENDERS[label].tuned == tuned
        and row["dtype"] == "float32"
    ]  # fmt: skip
    return f"{min(others) / float(found[OURS]['p50_ms']):.2f}x" if OURS in found and others else ""


def _cell(row: dict[str, str]) -> str:
    return row["p50_ms"] + (f" ({row['peak_mb']})" if row["peak_mb"] else "")


def picture(rows: list[dict[str, str]], path: Path) -> None:
    """Bars: how many times slower than ours each other contender is, one panel per mode."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cases = _by_case(rows)
    modes = [mode for mode in MODES if any(case[3] == mode for case in cases)]
    others = [label for label, c in CONTENDERS.items() if c.name != OURS and any(_label(r) == label for r in rows)]
    figure, axes = plt.subplots(1, len(modes), figsize=(5.5 * len(modes), 4), squeeze=False, sharey=True)
    for axis, mode in zip(axes[0], modes, strict=True):
        shown = {case: found for case, found in cases.items() if case[3] == mode and OURS in found}
        for at, label in enumerate(others):
            width = 0.8 / len(others)
            places = [i + at * width for i, found in enumerate(shown.values()) if label in found]
            ratios = [
                float(found[label]["p50_ms"]) / float(found[OURS]["p50_ms"])
                for found in shown.values()
                if label in found
            ]
            axis.bar(places, ratios, width, label=label)
        names = [f"{graph.removeprefix('large_')}\nD {D}, K {K}" for graph, D, K, _ in shown]
        axis.set_xticks([i + 0.4 - 0.4 / max(len(others), 1) for i in range(len(shown))], names, fontsize=8)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_yscale("log")
        axis.set_title("forward" if mode == "fwd" else "forward + backward")
    axes[0][0].set_ylabel(f"time / time of {OURS}")
    if others:
        axes[0][-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    default = Path(__file__).parent / "results"
    parser.add_argument("--out", type=Path, default=default, help="folder of the CSV (default: bench/results)")
    args = parser.parse_args(argv)
    path = args.out / CSV_NAME
    if not path.exists():
        parser.error(f"{path} does not exist; `python -m bench.run` writes it")
    rows = read_latest(path)
    text = table(rows)
    (args.out / TABLE_NAME).write_text(text)
    print(text)
    try:
        picture(rows, args.out / PICTURE_NAME)
    except ImportError as missing:
        print(f"no picture: {missing}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

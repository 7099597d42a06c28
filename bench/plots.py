"""Pictures of a run: speed-up bars, roofline, and growth in E, D, K and threads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bench import bound
from bench.registry import OURS
from bench.report import by_case, label_of

Rows = list[dict[str, str]]
_SHOWN = (OURS, f"{OURS} recompute", f"{OURS} bfloat16", "torch_csr", "torch_csr_factored", bound.LABEL)


def draw(rows: Rows, out: Path) -> list[Path]:
    """Writes the pictures that the rows have something for; ImportError without matplotlib."""
    timed = [row for row in rows if row["p50_ms"]]
    made = []
    for name, picture in (("speedup", speedup), ("roofline", roofline), ("growth", growth)):
        figure = picture(timed)
        if figure is not None:
            path = out / f"{name}.png"
            figure.savefig(path, dpi=120)
            _pyplot().close(figure)
            made.append(path)
    return made


def _pyplot():
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def speedup(rows: Rows):
    """Bars: how many times slower than ours the others are, a panel for each operator and mode."""
    plt = _pyplot()
    most = max(int(row["threads"]) for row in rows)
    cases = {key: found for key, found in by_case(rows).items() if OURS in found and int(key[5]) == most}
    panels = list(dict.fromkeys((key[0], key[4]) for key in cases))
    if not panels:
        return None
    figure, axes = plt.subplots(len(panels), 1, figsize=(11, 3 * len(panels)), squeeze=False)
    for axis, (op, mode) in zip(axes[:, 0], panels, strict=True):
        shown = {key: found for key, found in cases.items() if (key[0], key[4]) == (op, mode)}
        labels = list(dict.fromkeys(label for found in shown.values() for label in found))
        others = [label for label in labels if label != OURS and not label.startswith(bound.LABEL)]
        for at, label in enumerate(others):
            width = 0.8 / len(others)
            bars = [
                (i + at * width, float(found[label]["p50_ms"]) / float(found[OURS]["p50_ms"]))
                for i, found in enumerate(shown.values())
                if label in found
            ]
            axis.bar(*zip(*bars, strict=True), width, label=label)
        names = [f"{graph.removeprefix('large_')}\nD {D}, K {K}" for _, graph, D, K, *_ in shown]
        axis.set_xticks([i + 0.4 for i in range(len(shown))], names, fontsize=7)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_yscale("log")
        axis.set_ylabel(f"time / {OURS}")
        axis.set_title(f"{op}, {mode}, {most} threads", fontsize=9)
        if others:
            axis.legend(fontsize=6, ncol=2, loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    return figure


def roofline(rows: Rows):
    """GB/s by model over the size of the gathered table, forward: ours under the bare gathers, and the copy."""
    plt = _pyplot()
    labels = [OURS, f"{OURS} bfloat16", bound.LABEL, f"{bound.LABEL} bfloat16"]
    forward = [row for row in rows if row["mode"] == "fwd" and label_of(row) in labels]
    if not forward:
        return None
    counts = sorted({int(row["threads"]) for row in forward})
    figure, axes = plt.subplots(1, len(counts), figsize=(6 * len(counts), 4.5), squeeze=False, sharey=True)
    for axis, threads in zip(axes[0], counts, strict=True):
        for label, marker in zip(labels, "oD_|", strict=True):
            here = [row for row in forward if label_of(row) == label and int(row["threads"]) == threads]
            sizes = [float(row["table_mb"]) for row in here]
            axis.plot(sizes, [float(row["gb_per_s"]) for row in here], marker, label=label, markersize=8)
        axis.axhline(float(forward[0]["copy_gb_per_s"]), color="black", linewidth=0.8, label="copy")
        axis.set(xscale="log", yscale="log", xlabel="table, MB", title=f"forward, {threads} threads")
    axes[0][0].set_ylabel("GB/s by model")
    axes[0][-1].legend(fontsize=7)
    figure.tight_layout()
    return figure


def series(rows: Rows, axis: str) -> dict[tuple[str, ...], list[tuple[float, dict[str, str]]]]:
    """(contender, what is fixed) -> (value, row) ascending, of rows that differ in this column alone.

    Of E: generated graphs, which are alike but for their size.
    """
    fixed = [name for name in ("op", "mode", "graph", "D", "K", "threads") if name != axis]
    if axis == "E":
        rows = [row for row in rows if row["graph"].startswith("power_law-")]
        fixed.remove("graph")
    found: dict[tuple[str, ...], dict[float, dict[str, str]]] = {}
    for row in rows:
        key = label_of(row), *(row[name] for name in fixed)
        found.setdefault(key, {})[float(row[axis])] = row
    return {key: sorted(values.items(), key=lambda pair: pair[0]) for key, values in found.items() if len(values) > 2
            or (axis == "threads" and len(values) > 1)}  # fmt: skip


def growth(rows: Rows):
    """Time and memory over E, time over D, K and threads; None if nothing grows."""
    lines = {axis: series(_for_growth(rows, axis), axis) for axis in ("E", "D", "K", "threads")}
    if not any(lines.values()):
        return None
    plt = _pyplot()
    figure, axes = plt.subplots(2, 3, figsize=(16, 9))
    panels = {
        "E": (axes[0][0], "ns per entry and step", lambda row: 1e6 * _ms(row) / float(row["E"]) / float(row["K"])),
        "D": (axes[1][0], "ms", _ms),
        "K": (axes[1][1], "ms", _ms),
        "threads": (axes[1][2], "ms", _ms),
    }
    for name, (axis, unit, value) in panels.items():
        _lines(axis, lines[name], value)
        axis.set(xscale="linear" if name == "threads" else "log", yscale="log", xlabel=name, ylabel=unit)
    with_memory = {key: [p for p in points if p[1]["peak_mb"]] for key, points in lines["E"].items()}
    for axis, per in ((axes[0][1], "N"), (axes[0][2], "E")):
        _lines(axis, with_memory, lambda row, per=per: 1e6 * float(row["peak_mb"]) / float(row[per]))
        name = {"N": "node", "E": "entry"}[per]
        axis.set(xscale="log", yscale="log", xlabel="E", ylabel=f"peak extra bytes per {name}")
    for axis in axes.flat:
        axis.set_visible(bool(axis.lines))
    figure.tight_layout()
    return figure


def _ms(row: dict[str, str]) -> float:
    return float(row["p50_ms"])


def _for_growth(rows: Rows, axis: str) -> Rows:
    """Few enough to be told apart: some contenders, the most threads, both ways but for E, threads on one graph."""
    rows = [row for row in rows if label_of(row) in _SHOWN]
    if axis != "E":
        rows = [row for row in rows if row["mode"] == "fwdbwd"] or rows
    if axis == "threads":
        largest = max((int(row["E"]) for row in rows), default=0)
        return [row for row in rows if int(row["E"]) == largest]
    most = max((int(row["threads"]) for row in rows), default=0)
    return [row for row in rows if int(row["threads"]) == most]


def _lines(axis, found: dict, value) -> None:
    """Lines that say by what they differ from each other."""
    differ = [len(set(part)) > 1 for part in zip(*found, strict=True)]
    for key, points in found.items():
        if points:
            label = ", ".join(part for part, differs in zip(key, differ, strict=True) if differs) or key[0]
            axis.plot(*_pairs((x, value(row)) for x, row in points), "o-", markersize=3, label=label)
    if axis.lines:
        axis.legend(fontsize=6)


def _pairs(points: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    x, y = zip(*points, strict=True)
    return list(x), list(y)

"""The figures of the paper's experiments, drawn from results and from the graphs themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ugnn_fast.datasets import Dataset
from ugnn_fast.experiments import paper
from ugnn_fast.experiments.models import TITLES
from ugnn_fast.experiments.pictures import panels
from ugnn_fast.experiments.results import Row
from ugnn_fast.experiments.tables import NAMES, sample
from ugnn_fast.functional import local_smoothness

_COLORS = {"gcn": "#8c8c8c", "gat": "#6a9a4b", "appnp": "#d98c1f", "ada-ugnn": "#1f5fa8"}
_MARKERS = {"gcn": "s", "gat": "^", "appnp": "D", "ada-ugnn": "o"}


def smoothness(graphs: Mapping[tuple[str, int], Dataset]) -> Any:
    """Histograms of local label smoothness, one panel per (data set, rate)."""
    columns = min(4, len(graphs))
    figure, every = panels(-(-len(graphs) // columns), columns, 2.9, 2.3)
    for axes, ((name, rate), data) in zip(every, graphs.items(), strict=False):
        if data.y is None:
            raise ValueError(f"{name} must have labels for a histogram of their smoothness, got none")
        smooth = local_smoothness(data.graph, data.y).nan_to_num(0.0)[data.y >= 0].numpy()
        low = float((smooth < 0.5).mean())
        weights = np.full(len(smooth), 100 / len(smooth))
        axes.hist(smooth, np.linspace(0, 1, 21), weights=weights, color=_COLORS["ada-ugnn"], alpha=0.8)
        attacked = f", {rate} % changed" if name in paper.ATTACKED else ""
        axes.set_title(f"{NAMES.get(name, name)}{attacked}\n{100 * low:.0f} % below 0.5", fontsize=9)
        axes.set(xlabel="local label smoothness", ylabel="nodes (%)", xlim=(0, 1))
    return figure


def robustness(rows: Sequence[Row]) -> Any | None:
    """Accuracy against the rate of the attack, one panel per graph, one line per model."""
    graphs = [name for name in paper.ATTACKED if any(row.dataset == name for row in rows)]
    if not graphs:
        return None
    figure, every = panels(1, len(graphs), 4.0, 3.6)
    for axes, dataset in zip(every, graphs, strict=True):
        for model in paper.MODELS:
            _line(axes, rows, dataset, model, "test", TITLES[model])
        axes.set(title=NAMES[dataset], xlabel="edges changed by Mettack (%)", ylabel="test accuracy (%)")
        axes.legend(fontsize=8)
    return figure


def correlation(rows: Sequence[Row]) -> Any | None:
    """Correlation of C with local label smoothness against the rate of the attack."""
    rows = [row for row in rows if not math.isnan(row.correlation)]
    graphs = [name for name in paper.ATTACKED if any(row.dataset == name for row in rows)]
    if not graphs:
        return None
    figure, every = panels(1, len(graphs), 4.0, 3.2)
    for axes, dataset in zip(every, graphs, strict=True):
        _line(axes, rows, dataset, "ada-ugnn", "correlation", TITLES["ada-ugnn"])
        axes.set(title=NAMES[dataset], xlabel="edges changed by Mettack (%)", ylabel="correlation of C with smoothness")
    return figure


def _line(axes: Any, rows: Sequence[Row], dataset: str, model: str, column: str, label: str) -> None:
    """Mean and standard deviation against the rate."""
    found = [(rate, sample(rows, dataset, model, rate=rate, column=column)) for rate in paper.RATES]
    points = [(rate, s.mean, 0.0 if math.isnan(s.spread) else s.spread) for rate, s in found if s.values]
    if points:
        rate, mean, spread = zip(*points, strict=True)
        style = {"color": _COLORS[model], "marker": _MARKERS[model], "markersize": 4, "linewidth": 1.4, "capsize": 2.5}
        axes.errorbar(rate, mean, yerr=spread, label=label, **style)

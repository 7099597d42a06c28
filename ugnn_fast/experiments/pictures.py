"""The pictures of a report. Drawn without pyplot: no display and no global state is involved."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from ugnn_fast._extras import require
from ugnn_fast.experiments.models import TITLES
from ugnn_fast.experiments.train import TrainResult

_TRAIN, _VAL, _TEST = "#8c8c8c", "#d98c1f", "#1f5fa8"
_LOW, _HIGH = "#c0504d", "#1f5fa8"
_BINS = 10


def curves(results: Sequence[TrainResult]) -> Any:
    """Loss and accuracies over the epochs: the mean over the runs and a band of one standard deviation."""
    figure, (left, right) = panels(1, 2, 5.2, 4.4)
    longest = max(len(run.history) for run in results)
    epochs = range(1, longest + 1)
    for axes, name, color, label in (
        (left, "train_loss", _TRAIN, "training (with dropout)"),
        (right, "train_accuracy", _TRAIN, "training"),
        (right, "val_accuracy", _VAL, "validation"),
        (right, "test_accuracy", _TEST, "test"),
    ):
        scale = 1 if axes is left else 100
        values = np.full((len(results), longest), np.nan)  # a run may have ended before others
        for row, run in zip(values, results, strict=True):
            row[: len(run.history)] = [scale * getattr(epoch, name) for epoch in run.history]
        mean, spread = np.nanmean(values, 0), np.nanstd(values, 0)
        axes.plot(epochs, mean, color=color, label=label, linewidth=1.4)
        if len(results) > 1:
            axes.fill_between(epochs, mean - spread, mean + spread, color=color, alpha=0.2, linewidth=0)
    left.set(title="Loss", xlabel="epoch", ylabel="cross entropy")
    right.set(title="Accuracy", xlabel="epoch", ylabel="accuracy (%)")
    accuracy = [100 * run.test_accuracy for run in results]
    if len(results) == 1:
        best = results[0].best
        text = f"test accuracy {accuracy[0]:.1f} %, best validation in epoch {best.epoch}"
        right.axvline(best.epoch, color="black", linewidth=0.8, linestyle=":", label="best validation")
    else:
        text = f"test accuracy {statistics.fmean(accuracy):.1f} ± {statistics.stdev(accuracy):.1f} %"
        text += f", {len(results)} seeds (mean and standard deviation)"
    left.legend()
    right.legend(loc="lower right")
    figure.suptitle(f"{_name(results[0])}: {text}", fontweight="bold")
    return figure


def smoothness(result: TrainResult) -> Any:
    """Learned C against local label smoothness: node by node, and its distribution on either side of 0.5."""
    assert result.c is not None
    defined = ~result.smoothness.isnan()
    share, c = result.smoothness[defined].numpy(), result.c[defined].numpy()
    figure, (left, right) = panels(1, 2, 5.2, 4.4)

    # many nodes share a value such as 1/2 or 1: spread them a little to show how many there are
    jitter = np.random.default_rng(0).uniform(-0.015, 0.015, len(share))
    left.scatter(share + jitter, c, s=5, color=_TEST, alpha=_opacity(len(c)), linewidth=0, label="node")
    centre, mean, spread = _binned(share, c)
    left.errorbar(
        centre, mean, yerr=spread, color="black", marker="o", markersize=4, linewidth=1.2, capsize=2.5,
        label="mean ± std of a bin",
    )  # fmt: skip
    left.set(title="By node", xlabel="local label smoothness", ylabel="C", xlim=(-0.04, 1.04))
    _legend_above(left)

    edges = np.linspace(*_limits(c), 41)
    for part, color, label in (
        (share < 0.5, _LOW, "smoothness < 0.5"),
        (share >= 0.5, _HIGH, "smoothness ≥ 0.5"),
    ):
        if part.any():
            weights = np.full(part.sum(), 100 / part.sum())
            label = f"{label}: {part.sum():,} nodes"
            right.hist(c[part], edges, weights=weights, color=color, alpha=0.45, label=label)
            right.axvline(c[part].mean(), color=color, linewidth=1.4, linestyle="--")
    right.set(title="Distribution (dashed: mean)", xlabel="C", ylabel="share of the nodes (%)")
    _legend_above(right)
    correlation = "undefined" if result.correlation is None else f"{result.correlation:+.2f}"
    title = f"{_name(result)}, seed {result.seed}: correlation of C with smoothness {correlation}"
    figure.suptitle(title, fontweight="bold")
    return figure


def panels(rows: int, columns: int, width: float, height: float) -> tuple[Any, list]:
    """A figure and its axes, of that size each."""
    size = (width * columns, height * rows)
    figure = require("matplotlib.figure").Figure(figsize=size, dpi=130, layout="constrained")
    every = list(np.ravel(figure.subplots(rows, columns, squeeze=False)))
    for axes in every:
        axes.grid(color="#e4e4e4", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, every


def _legend_above(axes: Any) -> None:
    """A legend under the title, where it hides no points; none for empty axes."""
    if not axes.get_legend_handles_labels()[0]:
        return
    legend = axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, fontsize=8.5)
    legend.legend_handles[0].set_alpha(0.6)
    axes.set_title(axes.get_title(), pad=24)


def _binned(share: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean smoothness, mean and standard deviation of C in each bin with nodes."""
    number = np.minimum((share * _BINS).astype(int), _BINS - 1)
    parts = [(share[number == b], c[number == b]) for b in range(_BINS) if (number == b).any()]
    rows = [(x.mean(), y.mean(), y.std()) for x, y in parts]
    centre, mean, spread = np.array(rows).reshape(-1, 3).T
    return centre, mean, spread


def _limits(c: np.ndarray) -> tuple[float, float]:
    low, high = (float(c.min()), float(c.max())) if len(c) else (0.0, 1.0)
    return (low, high) if high - low > 1e-6 else (low - 0.5, high + 0.5)


def _opacity(points: int) -> float:
    return float(np.clip(600 / max(points, 1), 0.04, 0.5))


def _name(result: TrainResult) -> str:
    return f"{TITLES[result.model]} on {result.dataset}"

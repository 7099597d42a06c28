"""Trains one model on one data set: the protocol of the paper's experiments."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ugnn_fast.datasets import Dataset, row_normalize
from ugnn_fast.experiments.settings import Settings, settings_for
from ugnn_fast.functional import local_smoothness
from ugnn_fast.nn import APPNP, AdaUGNN

MODELS = ("ada-ugnn", "appnp")


class Epoch(NamedTuple):
    """One line of the history: the loss of the training step, and accuracies after it, without dropout."""

    epoch: int
    train_loss: float
    train_accuracy: float
    val_accuracy: float
    test_accuracy: float
    seconds: float


@dataclass(eq=False)
class TrainResult:
    """A finished run; its parameters, C and test accuracy are those of the best epoch."""

    dataset: str
    model: str
    settings: Settings
    seed: int
    split: int
    in_features: int
    classes: int
    best: Epoch
    history: list[Epoch] = field(repr=False)
    state: dict[str, Tensor] = field(repr=False)
    smoothness: Tensor = field(repr=False)  # [N] local label smoothness, nan where it is not defined
    c: Tensor | None = field(repr=False)  # [N] learned C; None for a model without
    correlation: float | None  # of the two, over nodes where both are defined; None where it is not

    @property
    def test_accuracy(self) -> float:
        return self.best.test_accuracy

    @property
    def seconds_per_epoch(self) -> float:
        """Median over the epochs; an epoch is a training step and an evaluation."""
        return statistics.median(epoch.seconds for epoch in self.history)

    @property
    def seconds(self) -> float:
        return sum(epoch.seconds for epoch in self.history)


def build_model(name: str, in_features: int, classes: int, settings: Settings) -> nn.Module:
    """A new model, "ada-ugnn" or "appnp"."""
    if name == "ada-ugnn":
        return AdaUGNN(
            in_features,
            settings.hidden,
            classes,
            steps=settings.steps,
            s=settings.s,
            dropout=settings.dropout,
            soft=settings.soft,
        )
    if name == "appnp":
        return APPNP(
            in_features,
            settings.hidden,
            classes,
            steps=settings.steps,
            s=settings.s,
            dropout=settings.dropout,
        )
    raise ValueError(f"model must be one of {', '.join(MODELS)}, got {name!r}")


def train(
    dataset: Dataset,
    model: str = "ada-ugnn",
    settings: Settings | None = None,
    *,
    seed: int = 0,
    split: int = 0,
    progress: Callable[[Epoch], None] | None = None,
) -> TrainResult:
    """Adam with weight decay on all parameters; of all epochs, that with the best validation accuracy counts.

    Features are L1-normalised per row. settings: by default those of the paper for this data set. progress is
    called after each epoch. The global random state is left as it was.
    """
    settings = settings_for(dataset.name) if settings is None else settings
    nodes = check_task(dataset, seed, split)
    assert dataset.x is not None and dataset.y is not None
    graph, x, y = dataset.graph, row_normalize(dataset.x), dataset.y
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_model(model, x.shape[1], dataset.num_classes, settings)
        history, best, state = _fit(network, graph, x, y, nodes, settings, progress)
    network.load_state_dict(state)
    smooth = local_smoothness(graph, y)
    c = network.smoothness(x, graph) if isinstance(network, AdaUGNN) else None
    return TrainResult(
        dataset=dataset.name,
        model=model,
        settings=settings,
        seed=seed,
        split=split,
        in_features=x.shape[1],
        classes=dataset.num_classes,
        best=best,
        history=history,
        state=state,
        smoothness=smooth,
        c=c,
        correlation=None if c is None else correlation(c, smooth),
    )


def _fit(network, graph, x, y, nodes, settings, progress):
    """(history, its best epoch, parameters after the best epoch)"""
    train_nodes = nodes[0]
    train_y = y[train_nodes]
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.lr, weight_decay=settings.weight_decay, fused=True)
    history: list[Epoch] = []
    best: Epoch | None = None
    state: dict[str, Tensor] = {}
    for number in range(1, settings.epochs + 1):
        start = time.perf_counter()
        network.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(network(x, graph)[train_nodes], train_y)
        loss.backward()
        optimizer.step()
        network.eval()
        with torch.no_grad():
            right = (network(x, graph).argmax(-1) == y).double()
            # one transfer for all four numbers
            values = torch.stack([loss.double(), *(right[part].mean() for part in nodes)])
            train_loss, train, val, test = values.tolist()
        epoch = Epoch(number, train_loss, train, val, test, time.perf_counter() - start)
        history.append(epoch)
        if best is None or epoch.val_accuracy > best.val_accuracy:
            best = epoch
            state = {name: value.clone() for name, value in network.state_dict().items()}
        if progress is not None:
            progress(epoch)
    return history, best, state


def correlation(c: Tensor, smoothness: Tensor) -> float | None:
    """Pearson's correlation over nodes with a defined smoothness; None where one of the two does not vary."""
    defined = ~smoothness.isnan()
    pair = torch.stack([c[defined], smoothness[defined]]).double()
    if pair.shape[1] < 2 or bool((pair == pair[:, :1]).all(1).any()):
        return None
    return float(torch.corrcoef(pair)[0, 1])


def check_task(dataset: Dataset, seed: int, split: int) -> tuple[Tensor, Tensor, Tensor]:
    """Train, validation and test nodes of the split."""
    for name, missing in (
        ("features", dataset.x is None),
        ("labels", dataset.y is None),
        ("splits", not dataset.splits),
    ):
        if missing:
            raise ValueError(f"dataset must have features, labels and splits, got {dataset.name} without {name}")
    if not 0 <= split < len(dataset.splits):
        raise ValueError(f"split must be in 0..{len(dataset.splits) - 1} for {dataset.name}, got {split}")
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must be in 0..2^63 - 1, got {seed}")
    for name, part in zip(("train", "val", "test"), dataset.splits[split], strict=True):
        if part.numel() == 0:
            raise ValueError(f"split {split} of {dataset.name} must have {name} nodes, got none")
    return dataset.splits[split]

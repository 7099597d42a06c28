"""Trains models on one data set, several runs side by side: the protocol of the paper's experiments."""

from __future__ import annotations

import functools
import math
import statistics
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ugnn_fast._random import replica_generators
from ugnn_fast.datasets import Dataset, binary, row_normalize
from ugnn_fast.experiments.models import build_replicas
from ugnn_fast.experiments.settings import Settings, settings_for
from ugnn_fast.functional import local_smoothness
from ugnn_fast.nn import AdaUGNN

_HUGE = 1e10  # no weight of a training that gets anywhere


class Run(NamedTuple):
    """One of the runs that are trained side by side."""

    split: int = 0
    seed: int = 0


class Diverged(ValueError):
    """A training whose numbers are no longer finite."""


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
    """A finished run; its parameters, C and accuracies are those of the best epoch."""

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
    right: Tensor = field(repr=False)  # bool [N], whether a node gets its label; means nothing where it has none
    smoothness: Tensor = field(repr=False)  # [N] local label smoothness, nan where it is not defined
    c: Tensor | None = field(repr=False)  # [N] learned C; None for a model without
    correlation: float | None  # of the two, over nodes where both are defined; None where it is not

    @property
    def test_accuracy(self) -> float:
        return self.best.test_accuracy

    @property
    def seconds_per_epoch(self) -> float:
        """Median over the epochs; an epoch is a training step and an evaluation. Of runs side by side, a share each."""
        return statistics.median(epoch.seconds for epoch in self.history)

    @property
    def seconds(self) -> float:
        return sum(epoch.seconds for epoch in self.history)


def train(
    dataset: Dataset,
    model: str = "ada-ugnn",
    settings: Settings | None = None,
    *,
    seed: int = 0,
    split: int = 0,
    progress: Callable[[Epoch], None] | None = None,
) -> TrainResult:
    """One run, see `train_runs`."""
    return train_runs(dataset, model, settings, [Run(split, seed)], progress=progress)[0]


def train_runs(
    dataset: Dataset,
    model: str,
    settings: Settings | None,
    runs: Sequence[Run],
    *,
    progress: Callable[[Epoch], None] | None = None,
) -> list[TrainResult]:
    """Trains the runs side by side, as R replicas of the model. Each gives what it gives alone, to rounding.

    Adam with weight decay on all parameters; of all epochs, that with the best validation accuracy counts, the first of
    several. Features are L1-normalised per row. settings: by default those of the table for this model and data set.
    progress hears of each epoch (means over the runs). The global random state is left as it was.
    """
    trainer = Trainer(dataset, model, settings, runs)
    while not trainer.finished:
        epoch = trainer.step()
        if progress is not None:
            progress(epoch)
    return trainer.results()


class Trainer:
    """R runs in training, one epoch at a time. `state_dict` and `load_state_dict` carry it over to another process."""

    def __init__(self, dataset: Dataset, model: str, settings: Settings | None, runs: Sequence[Run]):
        if not runs:
            raise ValueError("runs must hold at least one run, got none")
        parts = [check_task(dataset, run.seed, run.split) for run in runs]
        assert dataset.x is not None and dataset.y is not None
        self.dataset, self.model, self.runs = dataset, model, list(runs)
        self.settings = settings_for(dataset.name, model) if settings is None else settings
        self.x = _features(dataset, self.settings.binary)
        seeds = [run.seed for run in runs]
        self.network, self.generators = build_replicas(
            model, self.x.shape[1], dataset.num_classes, self.settings, seeds
        )
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), lr=self.settings.lr, weight_decay=self.settings.weight_decay, fused=True
        )
        R, N = len(runs), dataset.graph.num_nodes
        # nodes of each run as rows of logits [N R, C]
        self._nodes = [
            torch.stack([nodes[part] for nodes in parts]) * R + torch.arange(R)[:, None] for part in range(3)
        ]  # [R, n] each
        labels = dataset.y.clamp(min=0)
        self._train_labels = labels[self._nodes[0].flatten() // R]
        self._label_entry = torch.arange(N * R) * dataset.num_classes + labels.repeat_interleave(R)
        # per epoch [R] each: loss, accuracies (training, validation, test)
        self._history: list[Tensor] = []
        self._seconds: list[float] = []
        self._best_epoch = torch.zeros(R, dtype=torch.int64)  # counted from 1; 0: none yet
        self._best_val = torch.full((R,), -1.0, dtype=torch.float64)
        self._best_right = torch.zeros(R, N, dtype=torch.bool)
        self._best_state = {name: value.clone() for name, value in self.network.state_dict().items()}

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return len(self._history)

    @property
    def finished(self) -> bool:
        return self.epoch >= self.settings.epochs or not bool(self._running().any())

    def _running(self) -> Tensor:
        """Which runs have not lost their patience, bool [R]."""
        patience = self.settings.patience
        return torch.full_like(self._best_epoch, self.epoch) - self._best_epoch < (patience or self.epoch + 1)

    def step(self) -> Epoch:
        """One epoch: a training step and an evaluation. Returns means over the runs; raises Diverged."""
        try:
            found = self._step()
        except ValueError as error:
            # an operator has met numbers that are none; nan is not below anything
            if all(bool((value.abs() < _HUGE).all()) for value in self.network.parameters()):
                raise
            raise self._diverged() from error
        if not math.isfinite(found.train_loss):
            raise self._diverged()
        return found

    def _diverged(self) -> Diverged:
        about = f"{self.model} on {self.dataset.name}, {self.settings.text()}"
        return Diverged(f"losses and weights must stay finite, got others in epoch {self.epoch} of {about}")

    def _step(self) -> Epoch:
        start = time.perf_counter()
        running = self._running()
        R, C = len(self.runs), self.dataset.num_classes
        self.network.train()
        self.optimizer.zero_grad()
        with replica_generators(self.generators):
            logits = self.network(self.x, self.dataset.graph).reshape(-1, C)
        chosen = logits.index_select(0, self._nodes[0].flatten())
        losses = F.cross_entropy(chosen, self._train_labels, reduction="none").view(R, -1).mean(1)
        losses.sum().backward()  # the gradient of a run is that of its own loss
        self.optimizer.step()
        self.network.eval()
        with torch.no_grad():
            logits = self.network(self.x, self.dataset.graph).reshape(-1, C)
            # what argmax says of a node, in less than half of its time; a tie is wrong, and so is nan
            own = logits.flatten().index_select(0, self._label_entry)
            right = (logits >= own[:, None]).sum(-1) == 1
            shares = [right[nodes].double().mean(1) for nodes in self._nodes]
            self._history.append(torch.stack([losses.detach().double(), *shares]))
            better = ((shares[1] > self._best_val) & running).nonzero().squeeze(1)
            if len(better):
                self._keep(better, right.view(-1, R))
        self._seconds.append((time.perf_counter() - start) / R)
        means = self._history[-1].mean(1).tolist()
        return Epoch._make([self.epoch, *means, self._seconds[-1]])

    def _keep(self, better: Tensor, right: Tensor) -> None:
        """The runs `better` are at their best."""
        self._best_epoch[better] = self.epoch
        self._best_val[better] = self._history[-1][2][better]
        self._best_right[better] = right.t()[better]
        for name, value in self.network.state_dict().items():
            self._best_state[name][better] = value[better]

    def results(self) -> list[TrainResult]:
        """What the runs have reached."""
        data, settings = self.dataset, self.settings
        assert data.y is not None
        smooth = local_smoothness(data.graph, data.y)
        every_c = None
        if isinstance(self.network, AdaUGNN):
            now = {name: value.clone() for name, value in self.network.state_dict().items()}
            self.network.load_state_dict(self._best_state)
            every_c = self.network.smoothness(self.x, data.graph)
            self.network.load_state_dict(now)
        values = torch.stack(self._history).permute(2, 0, 1).tolist()  # [R, epochs, 4]
        results = []
        for r, run in enumerate(self.runs):
            best = int(self._best_epoch[r])
            last = min(self.epoch, best + settings.patience) if settings.patience else self.epoch
            history = [Epoch._make([k + 1, *values[r][k], self._seconds[k]]) for k in range(last)]
            c = None if every_c is None else every_c[:, r].contiguous()
            result = TrainResult(
                dataset=data.name,
                model=self.model,
                settings=settings,
                seed=run.seed,
                split=run.split,
                in_features=self.x.shape[1],
                classes=data.num_classes,
                best=history[best - 1],
                history=history,
                state={name: value[r].clone() for name, value in self._best_state.items()},
                right=self._best_right[r],
                smoothness=smooth,
                c=c,
                correlation=None if c is None else correlation(c, smooth),
            )
            results.append(result)
        return results

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values; of a finished training what `results` needs."""
        found = {
            "task": self._task(),
            "history": self._history,
            "seconds": self._seconds,
            "best": [self._best_epoch, self._best_val, self._best_right],
            "best_state": self._best_state,
        }
        if not self.finished:
            found["network"] = self.network.state_dict()
            found["optimizer"] = self.optimizer.state_dict()
            found["generators"] = [generator.get_state() for generator in self.generators]
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the trainer that gave the state was. It must have had the same task."""
        if state["task"] != self._task():
            raise ValueError(f"state must be of {self._task()}, got one of {state['task']}")
        self._history, self._seconds = list(state["history"]), list(state["seconds"])
        self._best_epoch, self._best_val, self._best_right = state["best"]
        self._best_state = state["best_state"]
        if not self.finished:
            self.network.load_state_dict(state["network"])
            self.optimizer.load_state_dict(state["optimizer"])
            for generator, saved in zip(self.generators, state["generators"], strict=True):
                generator.set_state(saved)

    def _task(self) -> str:
        """Everything on which the numbers depend; of the data a checksum."""
        runs = " ".join(f"{run.split}:{run.seed}" for run in self.runs)
        data = self.dataset
        assert data.y is not None
        parts = [data.graph.rowptr, data.graph.col, data.y]
        parts += [] if data.graph.weight is None else [data.graph.weight]
        parts += [self.x.crow_indices(), self.x.col_indices(), self.x.values()]
        parts += [nodes for run in self.runs for nodes in data.splits[run.split]]
        checksum = functools.reduce(lambda before, part: zlib.crc32(part.numpy().tobytes(), before), parts, 0)
        name = f"{data.name} ({data.graph.num_nodes} nodes, checksum {checksum:08x})"
        return f"{self.model} on {name}, {self.settings.text()}, runs (split:seed) {runs}"


@functools.lru_cache(maxsize=1)
def _features(dataset: Dataset, as_binary: bool) -> Tensor:
    """Normalised features. Kept for the next batch of runs on the same data, as is what the kernels keep with them."""
    assert dataset.x is not None
    return row_normalize(binary(dataset.x) if as_binary else dataset.x)


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

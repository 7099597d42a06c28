"""The models of the experiments by name, and R of them as one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ugnn_fast import _memory
from ugnn_fast.datasets import Dataset
from ugnn_fast.experiments.settings import MODELS, Settings
from ugnn_fast.nn import APPNP, GAT, GCN, GPRGNN, PPNP, SGC, AdaUGNN

TITLES = {
    "ada-ugnn": "ADA-UGNN",
    "appnp": "APPNP",
    "ppnp": "PPNP",
    "gcn": "GCN",
    "gat": "GAT",
    "sgc": "SGC",
    "gprgnn": "GPRGNN",
}
_GAT_HEADS = 8
_CACHE_BYTES = 8 << 20


def build_model(
    name: str, in_features: int, classes: int, settings: Settings, replicas: int | None = None
) -> nn.Module:
    """A new model, one of MODELS, or `replicas` of them side by side."""
    sizes = in_features, settings.hidden, classes
    steps, s, dropout = settings.steps, settings.s, settings.dropout
    if name == "ada-ugnn":
        return AdaUGNN(*sizes, steps=steps, s=s, dropout=dropout, soft=settings.soft, replicas=replicas)
    if name == "appnp":
        return APPNP(*sizes, steps=steps, s=s, dropout=dropout, replicas=replicas)
    if name == "ppnp":
        return PPNP(*sizes, alpha=1 / (1 + s), dropout=dropout, replicas=replicas)
    if name == "gcn":
        return GCN(*sizes, dropout=dropout, replicas=replicas)
    if name == "gat":
        return GAT(*sizes, heads=_GAT_HEADS, dropout=dropout, attention_dropout=0.6, replicas=replicas)
    if name == "sgc":
        return SGC(in_features, classes, steps=steps, replicas=replicas)
    if name == "gprgnn":
        return GPRGNN(*sizes, steps=steps, alpha=1 / (1 + s), dropout=dropout, dprate=dropout, replicas=replicas)
    raise ValueError(f"model must be one of {', '.join(MODELS)}, got {name!r}")


def build_replicas(
    name: str, in_features: int, classes: int, settings: Settings, seeds: Sequence[int]
) -> tuple[nn.Module, list[torch.Generator]]:
    """One model for every seed, side by side, and the generator that each goes on with.

    Replica r starts, and goes on to draw its masks, as a single model does after `torch.manual_seed(seeds[r])`.
    """
    states: list[dict[str, Tensor]] = []
    generators = []
    with torch.random.fork_rng(devices=[]):
        for seed in seeds:
            torch.manual_seed(seed)
            states.append(build_model(name, in_features, classes, settings).state_dict())
            generators.append(torch.Generator())
            generators[-1].set_state(torch.get_rng_state())
        model = build_model(name, in_features, classes, settings, replicas=len(seeds))
    model.load_state_dict({key: torch.stack([state[key] for state in states]) for key in states[0]})
    return model, generators


def _width(name: str, settings: Settings) -> int:
    """Columns of the hidden layer."""
    return settings.hidden * (_GAT_HEADS if name == "gat" else 1)


def bytes_per_replica(name: str, dataset: Dataset, settings: Settings) -> int:
    """About what one more replica takes: its parameters in five copies (gradient, Adam's two, the best so far), and
    the values between its layers with their gradients."""
    assert dataset.x is not None
    N, F, C = dataset.graph.num_nodes, dataset.x.shape[1], dataset.num_classes
    width = _width(name, settings)
    return 4 * (5 * (F * width + width * C) + N * (5 * width + (2 * settings.steps + 10) * C))


def replicas_at_once(name: str, dataset: Dataset, settings: Settings, wanted: int) -> int:
    """How many of `wanted` replicas to train at once, in batches of about one size.

    They fit into a quarter of the machine's memory. Not of what is free just now: the same machine shall make the same
    batches, as sums in another order are other numbers. And a hidden layer of all of them stays in a cache: what
    replicas save is the time between the kernels, which is nothing where a kernel takes milliseconds.
    """
    fit = _memory.total_bytes() // 4 // bytes_per_replica(name, dataset, settings)
    layer = 4 * dataset.graph.num_nodes * _width(name, settings)
    if name == "gat":  # attention of one run has enough to do for all cores on a smaller graph already
        layer *= 4
    most = max(1, min(fit, _CACHE_BYTES // layer))
    batches = -(-wanted // most)
    return -(-wanted // batches)


def work(name: str, dataset: Dataset, settings: Settings) -> float:
    """About how long an epoch of one run takes, compared with other models and data sets."""
    assert dataset.x is not None
    N, E, C = dataset.graph.num_nodes, dataset.graph.num_edges, dataset.num_classes
    width = _width(name, settings)
    # 8 million values take about a millisecond on two cores; calls take one by themselves
    least = 8e6 + dataset.x._nnz() * width + 40 * N * width
    if name in ("gcn", "gat"):
        return least + (12 if name == "gat" else 2) * E * width
    return least + 3 * settings.steps * E * C

"""The graphs that are measured: data sets by name, generated ones by size, and a toy."""

from __future__ import annotations

import functools
import os

import numpy as np
import torch

import ugnn_fast as uf
from bench.machine import ROOT
from ugnn_fast.datasets import Dataset

TOY = "toy"
GENERATED = "power_law-"
ORDER = "@"  # NAME@METHOD: with its nodes in another order
_LARGE = 1_000_000


def power_law(N: int, E: int, seed: int = 0) -> uf.Graph:
    """N nodes and about E stored entries (both directions and loops), by the model of Chung and Lu.

    The ends of an edge have chances as 1 / rank^0.6; nodes are in random order. Duplicates collapse, so pairs are drawn
    until there are enough.
    """
    rng = np.random.default_rng(seed)
    chance = np.cumsum(np.arange(1, N + 1, dtype=np.float64) ** -0.6)
    wanted = (E - N) // 2
    codes = np.empty(0, np.int64)
    while len(codes) < wanted:
        drawn = rng.random((2, int(1.1 * (wanted - len(codes))) + 16)) * chance[-1]
        low, high = np.sort(np.searchsorted(chance, drawn), axis=0)
        codes = np.union1d(codes, (low * N + high)[low != high])
    codes = rng.permutation(codes)[:wanted]
    order = rng.permutation(N)
    edge_index = torch.from_numpy(np.stack([order[codes // N], order[codes % N]]))
    return uf.Graph.from_edge_index(edge_index, N, symmetrize=True)


def toy() -> Dataset:
    """70 nodes, a hub, nodes with nothing but their loop, features and labels."""
    random = torch.Generator().manual_seed(1)
    pairs = torch.randint(0, 60, (2, 150), generator=random)
    hub = torch.stack([torch.zeros(50, dtype=torch.long), torch.arange(50)])
    graph = uf.Graph.from_edge_index(torch.cat([pairs, hub], 1), 70, symmetrize=True)
    x = torch.rand(70, 20, generator=random) * (torch.rand(70, 20, generator=random) < 0.3)
    y = torch.randint(0, 3, (70,), generator=random)
    return Dataset(TOY, graph, x.to_sparse_csr(), y, [tuple(torch.arange(70).split([20, 20, 30]))])


@functools.lru_cache(maxsize=2)
def load(name: str) -> Dataset:
    """A data set of uf.datasets.load, "toy", or "power_law-N-E"; NAME@METHOD: in an order of Graph.reorder.

    Generated and reordered graphs have no features.
    """
    base, _, method = name.partition(ORDER)
    if method:
        return Dataset(name, load(base).graph.reorder(method), None, None, [])
    if name == TOY:
        return toy()
    if not name.startswith(GENERATED):
        return uf.datasets.load(name)
    try:
        N, E = (int(float(size)) for size in name.removeprefix(GENERATED).split("-"))
    except ValueError:
        raise ValueError(f"a generated graph must be {GENERATED}N-E, such as {GENERATED}1e6-2e7, got {name}") from None
    if not (0 < N < 2**31 and N <= E <= N * (N + 1) // 4):
        raise ValueError(f"{name} must have 0 < N <= E, and at most a quarter of all pairs")
    return Dataset(name, _kept(name, N, E), None, None, [])


def _kept(name: str, N: int, E: int) -> uf.Graph:
    """power_law(N, E); large ones are made once and kept in the folder build."""
    path = ROOT / "build" / "bench" / f"{name}.npz"
    if path.exists():
        with np.load(path) as file:
            return uf.Graph.from_csr(file["rowptr"], file["col"])
    graph = power_law(N, E)
    if E > _LARGE:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}.npz")
        np.savez(new, rowptr=graph.rowptr.numpy(), col=graph.col.numpy())
        new.replace(path)
    return graph

"""Orders of the nodes in which neighbours are near each other, so that their rows are found in a cache."""

from __future__ import annotations

import numpy as np

from ugnn_fast._extras import require

METHODS = ("degree", "rcm", "community")
_ROUNDS = 8


def permutation(rowptr: np.ndarray, col: np.ndarray, method: str) -> np.ndarray:
    """int64 [N]: the node that is to be number p."""
    if method == "degree" or not len(col):
        return np.argsort(-np.diff(rowptr), kind="stable")
    order = _rcm(rowptr, col)
    return order if method == "rcm" else _by_community(rowptr, col, order)


def _rcm(rowptr: np.ndarray, col: np.ndarray) -> np.ndarray:
    """Reverse Cuthill-McKee: breadth first from a node of low degree, so that edges are short."""
    require("scipy.sparse.csgraph")
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    N = len(rowptr) - 1
    matrix = csr_matrix((np.ones(len(col), np.int8), col, rowptr), shape=(N, N))
    return reverse_cuthill_mckee(matrix, symmetric_mode=True).astype(np.int64)


def _by_community(rowptr: np.ndarray, col: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Communities one after the other, by where their nodes are in `order` on average; in them, that order."""
    N = len(order)
    place = np.empty(N, np.int64)
    place[order] = np.arange(N)
    label = _communities(rowptr, col)
    mean = np.bincount(label, place, N) / np.maximum(np.bincount(label, minlength=N), 1)
    return np.lexsort((place, label, mean[label]))


def _communities(rowptr: np.ndarray, col: np.ndarray) -> np.ndarray:
    """[N]: a node takes the label that most of its neighbours have, some rounds long (Raghavan et al. 2007).

    In a round half of the nodes, drawn with a fixed seed, look at their neighbours: all at once would take turns.
    """
    N = len(rowptr) - 1
    rng = np.random.default_rng(0)
    row = np.repeat(np.arange(N), np.diff(rowptr))
    others = row != col
    row, col = row[others], col[others]
    label = np.arange(N)
    for _ in range(_ROUNDS):
        active = rng.random(N) < 0.5
        mine = active[row]
        pair = np.sort(row[mine] * N + label[col[mine]])
        first = np.flatnonzero(np.diff(pair, prepend=-1))
        count = np.diff(first, append=len(pair))
        node, found = np.divmod(pair[first], N)
        # of labels that are equally frequent, one by a number that says nothing of its size
        best = np.lexsort((found * 2654435761 % 2**32, count, node))
        last = best[np.flatnonzero(np.diff(node[best], append=N))]
        label[node[last]] = found[last]
    return label

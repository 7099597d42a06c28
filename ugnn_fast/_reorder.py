"""Orders of the nodes in which neighbours are near each other, so that their rows are found in a cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ugnn_fast._extras import require

METHODS = ("degree", "rcm", "community")


def permutation(rowptr: np.ndarray, col: np.ndarray, method: str, builder: Any) -> np.ndarray:
    """int64 [N]: the node that is to be number p. builder: as in graph.py."""
    if method == "degree" or not len(col):
        return np.argsort(-np.diff(rowptr), kind="stable")
    if method == "rcm":
        return _rcm(rowptr, col)
    return builder.community_order(rowptr, col, torch.get_num_threads()).astype(np.int64)


def _rcm(rowptr: np.ndarray, col: np.ndarray) -> np.ndarray:
    """Reverse Cuthill-McKee: breadth first from a node of low degree, so that edges are short."""
    require("scipy.sparse.csgraph")
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    N = len(rowptr) - 1
    matrix = csr_matrix((np.ones(len(col), np.int8), col, rowptr), shape=(N, N))
    return reverse_cuthill_mckee(matrix, symmetric_mode=True).astype(np.int64)

"""Fused sparse kernels for graph neural networks as graph signal denoising."""

from ugnn_fast import datasets, nn, pyg, regularizers, solvers
from ugnn_fast._backend import Backend, backends
from ugnn_fast._checks import set_checks
from ugnn_fast.dropping import drop_edges, dropout, dropout_linear
from ugnn_fast.functional import (
    ada_c,
    ada_propagate,
    denoising_energy,
    gat_aggregate,
    local_smoothness,
    neighbor_mean,
    neighbor_var,
    propagate,
    sparse_linear,
)
from ugnn_fast.graph import Graph
from ugnn_fast.ops import empty_cache
from ugnn_fast.solving import SolveInfo, ada_solve, solve

__version__ = "0.1.0"

__all__ = [
    "Backend",
    "Graph",
    "SolveInfo",
    "__version__",
    "ada_c",
    "ada_propagate",
    "ada_solve",
    "backends",
    "datasets",
    "denoising_energy",
    "drop_edges",
    "dropout",
    "dropout_linear",
    "empty_cache",
    "gat_aggregate",
    "local_smoothness",
    "neighbor_mean",
    "neighbor_var",
    "nn",
    "propagate",
    "pyg",
    "regularizers",
    "set_checks",
    "solve",
    "solvers",
    "sparse_linear",
]

"""Fused sparse kernels for graph neural networks as graph signal denoising."""

from ugnn_fast import datasets, nn, pyg
from ugnn_fast._backend import Backend, backends
from ugnn_fast._checks import set_checks
from ugnn_fast.functional import (
    ada_c,
    ada_propagate,
    denoising_energy,
    local_smoothness,
    neighbor_mean,
    neighbor_var,
    propagate,
    sparse_linear,
)
from ugnn_fast.graph import Graph
from ugnn_fast.ops import empty_cache

__version__ = "0.1.0"

__all__ = [
    "Backend",
    "Graph",
    "__version__",
    "ada_c",
    "ada_propagate",
    "backends",
    "datasets",
    "denoising_energy",
    "empty_cache",
    "local_smoothness",
    "neighbor_mean",
    "neighbor_var",
    "nn",
    "propagate",
    "pyg",
    "set_checks",
    "sparse_linear",
]

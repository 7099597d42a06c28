"""The operators in plain torch: slow, on any device, in the words of the paper, differentiated by autograd.

Tests compare the kernels with this package, benchmarks take it as the baseline, and it is what runs where nothing was
compiled. 16-bit inputs are computed in float32 and rounded once at the end.
"""

from ugnn_fast.reference._edges import degrees
from ugnn_fast.reference.ada_c import ada_c
from ugnn_fast.reference.ada_propagate import ada_propagate
from ugnn_fast.reference.denoising_energy import denoising_energy
from ugnn_fast.reference.dropout import dropout
from ugnn_fast.reference.gat_aggregate import gat_aggregate
from ugnn_fast.reference.local_smoothness import local_smoothness
from ugnn_fast.reference.neighbor_var import neighbor_mean, neighbor_var
from ugnn_fast.reference.propagate import propagate
from ugnn_fast.reference.solve import solve
from ugnn_fast.reference.sparse_linear import sparse_linear

__all__ = [
    "ada_c",
    "ada_propagate",
    "degrees",
    "denoising_energy",
    "dropout",
    "gat_aggregate",
    "local_smoothness",
    "neighbor_mean",
    "neighbor_var",
    "propagate",
    "solve",
    "sparse_linear",
]

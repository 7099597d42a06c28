"""The operators as torch sees them, `torch.ops.ugnn.*`: schema, body, fake kernel, gradient. Private."""

from ugnn_fast.ops._native_call import empty_cache, storage
from ugnn_fast.ops.ada_c import STATS, ada_c
from ugnn_fast.ops.ada_propagate import ada_propagate
from ugnn_fast.ops.denoising_energy import edge_energy
from ugnn_fast.ops.local_smoothness import local_smoothness
from ugnn_fast.ops.neighbor_var import neighbor_var
from ugnn_fast.ops.propagate import propagate
from ugnn_fast.ops.reverse import reverse
from ugnn_fast.ops.row_sum import row_sum
from ugnn_fast.ops.sparse_linear import sparse_dense, sparse_linear

__all__ = [
    "STATS",
    "ada_c",
    "ada_propagate",
    "edge_energy",
    "empty_cache",
    "local_smoothness",
    "neighbor_var",
    "propagate",
    "reverse",
    "row_sum",
    "sparse_dense",
    "sparse_linear",
    "storage",
]

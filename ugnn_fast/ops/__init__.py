"""The operators as torch sees them, `torch.ops.ugnn.*`: schema, body, fake kernel, gradient. Private."""

from ugnn_fast.ops._native_call import empty_cache, storage
from ugnn_fast.ops.ada_c import STATS, ada_c
from ugnn_fast.ops.ada_propagate import ada_propagate
from ugnn_fast.ops.denoising_energy import edge_energy
from ugnn_fast.ops.dropout import MAX_INPUTS, MAX_OUTPUTS, dropout, dropout_linear, plain_linear
from ugnn_fast.ops.gat_aggregate import gat_aggregate
from ugnn_fast.ops.kept_degree import kept_degree
from ugnn_fast.ops.local_smoothness import local_smoothness
from ugnn_fast.ops.neighbor_var import neighbor_var
from ugnn_fast.ops.propagate import propagate
from ugnn_fast.ops.reverse import reverse
from ugnn_fast.ops.row_sum import row_sum
from ugnn_fast.ops.solve import check_solution, solve
from ugnn_fast.ops.sparse_linear import sparse_dense, sparse_linear

__all__ = [
    "MAX_INPUTS",
    "MAX_OUTPUTS",
    "STATS",
    "ada_c",
    "ada_propagate",
    "check_solution",
    "dropout",
    "dropout_linear",
    "edge_energy",
    "empty_cache",
    "gat_aggregate",
    "kept_degree",
    "local_smoothness",
    "neighbor_var",
    "plain_linear",
    "propagate",
    "reverse",
    "row_sum",
    "solve",
    "sparse_dense",
    "sparse_linear",
    "storage",
]

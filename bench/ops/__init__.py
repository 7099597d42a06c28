"""The operators that are measured, a module each."""

from bench.ops import (
    ada_propagate,
    ada_solve,
    drop_edges,
    epoch,
    gat_aggregate,
    gat_layer,
    neighbor_var,
    propagate,
    pyg_layers,
    sparse_linear,
)
from bench.registry import Op


def all_ops() -> list[Op]:
    named = (propagate, ada_propagate, neighbor_var, gat_aggregate, gat_layer, sparse_linear, ada_solve, drop_edges)
    return [*(module.OP for module in named), epoch.OP, *pyg_layers.OPS]

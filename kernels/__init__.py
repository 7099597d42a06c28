"""Triton kernels; imported as ugnn_fast.kernels. Importing this package does not import triton."""

import functools
import importlib
from typing import Any

# of kernels that are not alone in their module
_MODULES = {
    "ada_propagate_bwd": "ada_propagate",
    "gat_aggregate_fwd": "gat_aggregate",
    "gat_aggregate_bwd": "gat_aggregate",
    "neighbor_stat": "neighbor_var",
    "neighbor_var_bwd": "neighbor_var",
    **dict.fromkeys(("residual", "products", "update", "lengths"), "solve"),
}


@functools.cache
def kernel(name: str) -> Any:
    """The kernel <name>_kernel; its module, and with it triton, is imported when it is first asked for."""
    return getattr(importlib.import_module(f"ugnn_fast.kernels.{_MODULES.get(name, name)}"), f"{name}_kernel")

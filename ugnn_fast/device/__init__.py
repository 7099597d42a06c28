"""Bodies of the operators on a GPU: tables, loops and launches. Kernels are named, and a backend has them.

Triton's are in ugnn_fast.kernels, those of CUDA in the native module. Nothing here imports triton.
"""

import functools
import importlib
from collections.abc import Callable


@functools.cache
def body(name: str) -> Callable:
    """The function that computes the operator ugnn::<name>: f(graph, *args), in the module of that stem."""
    return getattr(importlib.import_module(f"ugnn_fast.device.{name.removesuffix('_backward')}"), name)

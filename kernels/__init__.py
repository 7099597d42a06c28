"""Triton kernels; imported as ugnn_fast.kernels. Importing this package does not import triton."""

import functools
import importlib
from collections.abc import Callable


@functools.cache
def body(name: str) -> Callable:
    """The function that computes the operator ugnn::<name>: f(graph, *args), in the module of that stem."""
    return getattr(importlib.import_module(f"ugnn_fast.kernels.{name.removesuffix('_backward')}"), name)

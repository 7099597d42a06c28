"""What the CPU bodies of the operators share: tensors to addresses and sizes."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ugnn_fast._graph_build import NEAR_NODES
from ugnn_fast._native import native as _module
from ugnn_fast._random import kept_entries
from ugnn_fast.graph import GraphTensors

# every caller has been sent here by _backend.choose, which knows that the module is there
native: Any = _module

# below this many bytes the system's memory is as good as ours (kSmall in csrc/cpu/pool.cpp)
_SMALL = 64 << 10
# from here on the pool has huge pages, and malloc soon asks the system every time
_LARGE = 8 << 20
# tables of floats up to here are near the core, of slices of at most so many columns
NEAR_BYTES = 2 << 20
_SLICE = 64
DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}


def csr(graph: tuple) -> Any:
    """The kernels' view of a graph, from Graph.tensors()."""
    found = getattr(graph, "native", None)
    if found is not None:
        return found
    rowptr, col, weight, degree, hubs, order, near_rowptr, near_col, near_weight, _, _, drop_seed, keep_from = graph
    made = native.Csr(
        rowptr.data_ptr(),
        col.data_ptr(),
        0 if weight is None else weight.data_ptr(),
        degree.data_ptr(),
        hubs.data_ptr(),
        order.data_ptr(),
        near_rowptr.data_ptr(),
        near_col.data_ptr(),
        0 if near_weight is None else near_weight.data_ptr(),
        degree.shape[0],
        col.shape[0],
        hubs.shape[0],
        order.shape[0],
        drop_seed,
        keep_from,
    )
    if isinstance(graph, GraphTensors):
        graph.native = made
    return made


def storage(dtype: torch.dtype, x: Tensor) -> Tensor:
    """x as an autocast region of this dtype wants it stored; float64, and what has no kernel, stays as it is."""
    if x.dtype == torch.float64 or (x.device.type == "cpu" and dtype not in DTYPES):
        return x
    return x.to(dtype)


def coefficients(x: Tensor, *tensors: Tensor | None) -> list[Tensor | None]:
    """Coefficients in the type that goes with x, as an autocast region casts them."""
    return [None if t is None else t.to(acc_dtype(x.dtype)) for t in tensors]


def by_replica(c: Tensor) -> Tensor:
    """c [N] or [N, R] as the kernels want it: one contiguous row [N] per replica."""
    return c.contiguous() if c.dim() == 1 else c.t().contiguous()


def reused_empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """torch.empty(shape) in memory that stays with the package between calls; see empty_cache."""
    size = math.prod(shape) * dtype.itemsize
    if size < _SMALL:
        return torch.empty(shape, dtype=dtype)
    # in its shape before torch sees it: a view of torch could not be changed in place
    memory = native.take(size).reshape(*shape[:-1], shape[-1] * dtype.itemsize)
    return torch.from_numpy(memory).view(dtype)


def result(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """torch.empty(shape) for a result; a large one as of reused_empty.

    Pages that the system hands out anew are filled with zeros first, which takes longer than to write the result.
    """
    if math.prod(shape) * dtype.itemsize < _LARGE:
        return torch.empty(shape, dtype=dtype)
    return reused_empty(shape, dtype)


def result_as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """tensor.to(dtype), in memory as of result."""
    return tensor if tensor.dtype == dtype else result(tensor.shape, dtype).copy_(tensor)


def empty_cache() -> None:
    """Gives memory that is kept between calls, at most a quarter of the machine's, back to the system."""
    if native is not None:
        native.pool_clear()


def pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def acc_dtype(dtype: torch.dtype) -> torch.dtype:
    """Type of sums and coefficients for values of this type."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def replicas_and_width(x: Tensor) -> tuple[int, int]:
    """(R, D) of x [N, D] or [N, R, D]."""
    return (1, x.shape[1]) if x.dim() == 2 else (x.shape[1], x.shape[2])


def table_dtype(dtype: torch.dtype, N: int, D: int, backend: str) -> torch.dtype:
    """Type of the tables inside a call on x [N, D] or [N, R, D] of this type.

    While a table of floats is about as large as the second-level cache it is faster than one of 16-bit values: it is
    not bytes that take the time there, and rows of floats lie side by side in one vector.
    """
    near = backend == "cpu" and N <= NEAR_NODES and N * min(D, _SLICE) * 4 <= NEAR_BYTES
    return torch.float32 if near and dtype.itemsize == 2 else dtype


def padded_width(dtype: torch.dtype, D: int, narrow: bool = False) -> int:
    """Values that a row of D columns takes in kept tables; narrow: where tables u are kept alone."""
    return _padded_width(DTYPES[dtype], int(D), narrow)


@functools.cache
def _padded_width(dtype: int, D: int, narrow: bool) -> int:
    return native.padded_width(dtype, D, narrow)


def inverse_degree(graph: tuple, dtype: torch.dtype) -> Tensor:
    """1 / d_i, 0 for a node without neighbours, [N]."""
    rowptr, col, weight, degree = graph[:4]
    if dtype == torch.float64 and weight is not None:
        # in float32 the sum is rounded
        row = torch.repeat_interleave(rowptr.diff(), output_size=weight.shape[0])
        kept = kept_entries(row, col, *graph[-2:])
        degree = torch.zeros_like(degree, dtype=dtype).index_add(0, row[kept], weight[kept].to(dtype))
    return torch.where(degree > 0, degree, torch.inf).to(dtype).reciprocal()

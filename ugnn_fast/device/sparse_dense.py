"""dropout(x) as a dense matrix, for sparse x."""

from torch import Tensor

from ugnn_fast import kernels  # type: ignore[attr-defined]
from ugnn_fast.device import _cuda
from ugnn_fast.device.sparse_linear import mask_arguments
from ugnn_fast.kernels._launch import on_device


def sparse_dense(no_graph, rowptr, col, values, columns, dropout, seed, backend) -> Tensor:
    """Body of ugnn::sparse_dense."""
    N = rowptr.shape[0] - 1
    out = values.new_zeros((N, columns))
    mask = mask_arguments(dropout, seed)
    if backend != "triton":
        _cuda.launcher(backend).launch("sparse_dense", [(rowptr, col, values, *mask, out, columns, N)])
    elif N:
        with on_device(values.device.index):
            kernels.kernel("sparse_dense")[(N,)](rowptr, col, values, *mask, out, columns, BLOCK=256, num_warps=4)
    return out

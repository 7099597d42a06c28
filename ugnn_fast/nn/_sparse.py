"""The product of sparse CSR features with a dense weight, with a gradient for the weight."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakTensorKeyDictionary


class Structure(NamedTuple):
    """Where the nnz values of x [N, F] lie, by rows and by columns."""

    crow: Tensor  # [N + 1]
    col: Tensor  # [nnz]
    t_crow: Tensor  # [F + 1], row pointers of the transpose
    t_col: Tensor  # [nnz], its columns
    to_transpose: Tensor  # [nnz]: entry e of the transpose is entry to_transpose[e] of x


# values change with every dropout mask, the structure does not: made once per tensor, freed with it
_structures = WeakTensorKeyDictionary()


def structure_of(x: Tensor) -> Structure:
    """The structure of a sparse CSR tensor, checked at its first use."""
    found = _structures.get(x)
    if found is None:
        found = _structures[x] = _build_structure(x)
    return found


def _build_structure(x: Tensor) -> Structure:
    crow, col = x.crow_indices(), x.col_indices()
    try:
        torch.sparse_csr_tensor(crow, col, x.values(), size=x.shape, check_invariants=True)
    except RuntimeError as error:
        raise ValueError(f"x must be a valid sparse CSR tensor, got one for which {error}") from None
    N, columns = x.shape
    row = torch.arange(N, dtype=col.dtype, device=x.device).repeat_interleave(crow.diff())
    to_transpose = col.argsort(stable=True)
    t_crow = torch.zeros(columns + 1, dtype=crow.dtype, device=x.device)
    t_crow[1:] = torch.bincount(col, minlength=columns).cumsum(0)
    return Structure(crow, col, t_crow, row[to_transpose], to_transpose)


def sparse_product(structure: Structure, values: Tensor, weight: Tensor) -> Tensor:
    """x @ weight, [N, D], for x with these values [nnz] and weight [F, D]; gradient for weight only."""
    return _SparseProduct.apply(structure, values, weight)


def _rows_times(crow: Tensor, col: Tensor, values: Tensor, table: Tensor) -> Tensor:
    # a bag is a row: unlike torch.sparse.mm this needs no MKL, and it runs on every device and dtype
    return F.embedding_bag(
        col, table, crow, mode="sum", per_sample_weights=values.to(table.dtype), include_last_offset=True
    )


class _SparseProduct(torch.autograd.Function):
    # torch.sparse.mm computes the same, but its backward is many times slower
    @staticmethod
    def forward(ctx: Any, structure: Structure, values: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(structure.t_crow, structure.t_col, structure.to_transpose, values)
        return _rows_times(structure.crow, structure.col, values, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor]:
        t_crow, t_col, to_transpose, values = ctx.saved_tensors
        return None, None, _rows_times(t_crow, t_col, values.index_select(0, to_transpose), grad.contiguous())

"""Sparse features as the kernels read them: by rows, and once more by columns for the gradient."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ugnn_fast._checks import shape
from ugnn_fast._row_plan import row_plan


class SparseFeatures(NamedTuple):
    """The E stored entries of x [N, F], and of its transpose; with plans for kernels that ask for them."""

    rowptr: Tensor  # int64 [N + 1]
    col: Tensor  # int32 [E]
    values: Tensor  # [E]
    plan: Tensor  # ugnn_fast._row_plan, empty if there is none
    plan_sizes: list[int]
    t_rowptr: Tensor  # int64 [F + 1]
    t_col: Tensor  # int32 [E]
    t_values: Tensor  # [E]
    t_plan: Tensor
    t_plan_sizes: list[int]

    def planned(self) -> SparseFeatures:
        (plan, sizes), (t_plan, t_sizes) = row_plan(self.rowptr), row_plan(self.t_rowptr)
        return self._replace(plan=plan, plan_sizes=sizes, t_plan=t_plan, t_plan_sizes=t_sizes)


# made once per tensor, freed with it; with the version of the tensor, which every change in place raises
_found: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def sparse_features(x: Tensor, backend: str = "cpu") -> SparseFeatures:
    """The entries of a sparse CSR tensor, checked and transposed at its first use; planned, if the backend wants it."""
    # tensors made in inference mode have no version
    version = None if x.is_inference() else x._version
    found = _found.get(x)
    if found is None or found[0] != version:
        found = _found[x] = version, _build(x)
    # a plan is never empty
    if backend != "cpu" and not found[1].plan_sizes:
        found = _found[x] = version, found[1].planned()
    return found[1]


def _build(x: Tensor) -> SparseFeatures:
    crow, col, values = (part.detach() for part in (x.crow_indices(), x.col_indices(), x.values()))
    if x.dim() != 2 or values.dim() != 1:
        raise ValueError(f"x must be [N, F] with one value per entry, got {shape(x)} and values {shape(values)}")
    try:
        torch.sparse_csr_tensor(crow, col, values, size=x.shape, check_invariants=True)
    except RuntimeError as error:
        raise ValueError(f"x must be a valid sparse CSR tensor, got one for which {error}") from None
    N, F = x.shape
    if max(N, F) >= 2**31:
        raise ValueError(f"x must have fewer than 2^31 rows and columns, got {shape(x)}")
    # copies: whoever changes x in place later must not lead a kernel out of bounds
    rowptr = crow.to(torch.int64, copy=True)
    col = col.to(torch.int32, copy=True)
    row = torch.arange(N, dtype=torch.int32, device=x.device).repeat_interleave(rowptr.diff())
    order = col.argsort(stable=True)
    t_rowptr = torch.zeros(F + 1, dtype=torch.int64, device=x.device)
    t_rowptr[1:] = torch.bincount(col, minlength=F).cumsum(0)
    none: tuple[Tensor, list[int]] = col[:0], []
    return SparseFeatures(rowptr, col, values.clone(), *none, t_rowptr, row[order], values[order], *none)

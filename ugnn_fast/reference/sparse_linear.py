"""The product of sparse features under dropout with a weight, in plain torch."""

import torch
from torch import Tensor

from ugnn_fast._sparse import SparseFeatures
from ugnn_fast.reference._edges import computing_dtype
from ugnn_fast.reference._random import FEATURES, keep_from, philox


def sparse_linear(
    x: SparseFeatures, weight: Tensor, bias: Tensor | None, dropout: float, seeds: Tensor | None
) -> Tensor:
    """dropout(x) @ weight + bias: weight [F, D] gives [N, D], [R, F, D] gives [N, R, D]."""
    dtype = computing_dtype(weight)
    row = torch.repeat_interleave(x.rowptr.diff(), output_size=x.col.shape[0])
    values = x.values.to(dtype)
    each = []
    for r, w in enumerate(weight.to(dtype) if weight.dim() == 3 else [weight.to(dtype)]):
        i, j, value = row, x.col.long(), values
        if seeds is not None:
            # what is dropped does not take part: 0 times infinity would
            kept = feature_mask(i, j, dropout, seeds[r]).nonzero().squeeze(1)
            i, j, value = i[kept], j[kept], values[kept] / (1 - dropout)
        each.append(w.new_zeros(x.rowptr.shape[0] - 1, w.shape[1]).index_add(0, i, value[:, None] * w[j]))
    out = each[0] if weight.dim() == 2 else torch.stack(each, dim=1)
    return (out if bias is None else out + bias.to(dtype)).to(weight.dtype)


def feature_mask(row: Tensor, col: Tensor, dropout: float, seed: Tensor | int) -> Tensor:
    """Which of the entries (row, col) are kept."""
    return philox(seed, row, col, 0, FEATURES)[0] >= keep_from(dropout)

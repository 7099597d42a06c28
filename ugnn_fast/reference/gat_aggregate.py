"""GAT's aggregation in plain torch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ugnn_fast._random import ATTENTION, keep_from, philox
from ugnn_fast.graph import Graph
from ugnn_fast.reference._edges import computing_dtype, rows_of, sum_over_neighbors


def gat_aggregate(
    g: Graph, x: Tensor, att_src: Tensor, att_dst: Tensor, slope: float, dropout: float, seeds: Tensor | None
) -> Tensor:
    """y_i = sum_j mask_ij / (1 - q) alpha_ij x_j, alpha_ij = softmax_j LeakyReLU(dst_i + src_j)."""
    dtype = computing_dtype(x)
    i, j = rows_of(g), g.col.long()
    e = F.leaky_relu(att_dst.to(dtype)[i] + att_src.to(dtype)[j], slope)  # [E, H]
    rows = i.unsqueeze(1).expand_as(e)
    largest = e.new_zeros(att_dst.shape).scatter_reduce(0, rows, e.detach(), "amax", include_self=False)
    powers = (e - largest[i]).exp()
    total = sum_over_neighbors(g, powers)
    alpha = powers / torch.where(total > 0, total, 1)[i]  # 0 in a row that has lost all of its entries
    if seeds is not None:
        alpha = alpha * attention_mask(i, j, alpha.shape[1], dropout, seeds) / (1 - dropout)
    return sum_over_neighbors(g, alpha.unsqueeze(-1) * x.to(dtype)[j]).to(x.dtype)


def attention_mask(i: Tensor, j: Tensor, H: int, dropout: float, seeds: Tensor) -> Tensor:
    """Which heads of the entries (i, j) are kept, [E, H]; H / R heads for each of the R seeds."""
    heads = H // len(seeds)
    masks = []
    for seed in seeds:
        words = [torch.stack(philox(seed, i, j, quad, ATTENTION), 1) for quad in range(heads // 4 + 1)]
        masks.append(torch.cat(words, 1)[:, :heads] >= keep_from(dropout))
    return torch.cat(masks, 1)

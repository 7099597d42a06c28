"""GAT: aggregation weighted by attention between neighbours."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ugnn_fast._checks import acc_dtype, check_number, check_share, check_size
from ugnn_fast._random import draw_seeds
from ugnn_fast.functional import gat_aggregate
from ugnn_fast.graph import Graph
from ugnn_fast.nn._mlp import check_features
from ugnn_fast.nn.sparse_linear import SparseLinear


class GATLayer(nn.Module):
    """One layer of GAT (Velickovic et al. 2018).

        h = dropout(x) W,   y = gat_aggregate(h, <h, att_src>, <h, att_dst>) for each head

    forward(x, graph): x dense or torch sparse CSR [N, in_features]; returns the heads side by side and a bias,
    [N, heads * out_features], or with concat=False their mean and a bias, [N, out_features]. With replicas=R there are
    R layers with parameters and masks of their own: x is [N, in_features], shared, or [N, R, in_features], and the
    result is [N, R, ...]. dropout: of x; attention_dropout: of the weights of neighbours.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        heads: int = 8,
        concat: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        negative_slope: float = 0.2,
        replicas: int | None = None,
    ):
        super().__init__()
        self.out_features = check_size(out_features, "out_features")
        self.heads = check_size(heads, "heads")
        self.concat = bool(concat)
        self.attention_dropout = check_share(attention_dropout, "attention_dropout")
        self.negative_slope = check_number(negative_slope, "negative_slope", low=0.0)
        self.linear = SparseLinear(in_features, heads * out_features, bias=False, dropout=dropout, replicas=replicas)
        lead = () if replicas is None else (replicas,)
        self.att_src = nn.Parameter(torch.empty(*lead, heads, out_features))
        self.att_dst = nn.Parameter(torch.empty(*lead, heads, out_features))
        self.bias = nn.Parameter(torch.empty(*lead, (heads if concat else 1) * out_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters anew: uniform in +-sqrt(6 / (inputs + outputs)), the bias zero."""
        with torch.no_grad():
            for parameter in (self.linear.weight, self.att_src, self.att_dst):
                bound = (6 / (parameter.shape[-2] + parameter.shape[-1])) ** 0.5
                parameter.uniform_(-bound, bound)
            self.bias.zero_()

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        check_features(graph, x, self.linear)
        h = self.linear.product(x, self.linear.dropout if self.training else 0.0)  # [N, H D] or [N, R, H D]
        N, H, D = graph.num_nodes, self.heads, self.out_features
        R = self.linear.replicas or 1
        scores = self._scores(h).to(acc_dtype(h)).reshape(N, R, 2, H)
        src, dst = (scores[:, :, k].reshape(N, R * H) for k in range(2))
        q = self.attention_dropout if self.training else 0.0
        seeds = draw_seeds(R, h.device) if q > 0 else None  # one for each replica
        y = gat_aggregate(
            graph, h.reshape(N, R * H, D), src, dst, negative_slope=self.negative_slope, dropout=q, seed=seeds
        )
        y = y.reshape(*h.shape[:-1], H, D)
        return (y.flatten(-2) if self.concat else y.mean(-2)) + self.bias

    def _scores(self, h: Tensor) -> Tensor:
        """<h, att_src> and <h, att_dst> of each head, [..., 2 H]."""
        # One product with a matrix that is zero between heads: products column by column would write h once more.
        both = torch.stack([self.att_src, self.att_dst], dim=-1).unsqueeze(-1)  # [..., H, D, 2, 1]
        own_head = torch.eye(self.heads, dtype=h.dtype, device=h.device)[:, None, None, :]
        return _product(h, (both * own_head).flatten(-4, -3).flatten(-2))

    def extra_repr(self) -> str:
        return (
            f"{self.out_features}, heads={self.heads}, concat={self.concat}, "
            f"attention_dropout={self.attention_dropout:g}, negative_slope={self.negative_slope:g}"
        )


class GAT(nn.Module):
    """GAT of Velickovic et al. 2018, two layers.

        h = ELU(layer1(x)), `heads` heads of `hidden` columns side by side
        logits = layer2(h), the mean of `out_heads` heads

    forward(x, graph): x dense or torch sparse CSR [N, in_features]; returns logits [N, classes], or [N, R, classes]
    with replicas=R models side by side. dropout: of the input of both layers; attention_dropout: of the weights of
    neighbours. Edge weights of the graph are not used.
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        classes: int,
        *,
        heads: int = 8,
        out_heads: int = 1,
        dropout: float = 0.6,
        attention_dropout: float = 0.6,
        negative_slope: float = 0.2,
        replicas: int | None = None,
    ):
        super().__init__()
        check_size(hidden, "hidden")
        check_size(classes, "classes")
        check_size(out_heads, "out_heads")
        options: dict[str, Any] = {
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "negative_slope": negative_slope,
            "replicas": replicas,
        }
        self.layer1 = GATLayer(in_features, hidden, heads=heads, **options)
        self.layer2 = GATLayer(heads * hidden, classes, heads=out_heads, concat=False, **options)

    def reset_parameters(self) -> None:
        """Draws all parameters anew."""
        self.layer1.reset_parameters()
        self.layer2.reset_parameters()

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        return self.layer2(F.elu(self.layer1(x, graph)), graph)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x [N, in] or [N, R, in] times weight [in, out] or [R, in, out]."""
    return x @ weight if x.dim() == 2 else torch.einsum("nri,rio->nro", x, weight)

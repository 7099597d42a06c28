"""Layers with the names, arguments and parameters of PyTorch Geometric 2.8, on the kernels of this package.

    from ugnn_fast.pyg import APPNP     # in place of: from torch_geometric.nn import APPNP

Results, gradients and state_dict are those of the layers they replace; torch_geometric is not needed. Edges may be
directed, weighted, given several times (copies add up) and include self loops. What edge_index says is looked up once
per tensor, by identity and version, and shared by all layers: keep the tensor, and no layer sorts it again. So
`cached=True` changes nothing in APPNP and GCN2Conv, which always follow the edge_index that they are given.

Not taken over: dropout of edges, sparse tensors as edge_index, bipartite graphs, and aggregations other than a sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ugnn_fast import _pyg_graph
from ugnn_fast._checks import check_number, check_steps, shape
from ugnn_fast.functional import propagate

__all__ = ["APPNP", "GCN2Conv", "LabelPropagation", "SGConv", "SSGConv"]


class _Layer(nn.Module):
    """What the layers share: arguments of torch_geometric's MessagePassing, the checks of input, the steps."""

    def __init__(self, add_self_loops: bool, **kwargs: Any):
        super().__init__()
        self.add_self_loops = bool(add_self_loops)
        self.aggr, self.node_dim = kwargs.pop("aggr", "add"), kwargs.pop("node_dim", -2)
        self.flow = kwargs.pop("flow", "source_to_target")
        if kwargs:
            raise TypeError(f"{type(self).__name__} does not take {', '.join(sorted(kwargs))}")
        if self.aggr not in ("add", "sum"):
            raise ValueError(f"aggr must be 'add' or 'sum', got {self.aggr!r}")
        if self.node_dim != -2:
            raise ValueError(f"node_dim must be -2, got {self.node_dim!r}")
        if self.flow not in ("source_to_target", "target_to_source"):
            raise ValueError(f"flow must be 'source_to_target' or 'target_to_source', got {self.flow!r}")

    def reset_parameters(self) -> None:
        """Draws all parameters anew, and forgets what cached=True has kept."""

    def _steps(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        steps: int,
        normalize: bool = True,
        **coefficients: Any,
    ) -> Tensor:
        """uf.propagate on x [N, D] or [B, N, D], over S or the edges as they are given."""
        _check_x(x)
        graph, matrix = _pyg_graph.matrix_of(
            edge_index,
            edge_weight,
            x,
            normalize=normalize,
            add_self_loops=normalize and self.add_self_loops,
            to_target=self.flow == "source_to_target",
        )
        if x.dim() == 2:
            return propagate(graph, x, steps, **matrix, **coefficients)
        return propagate(graph, x.transpose(0, 1), steps, **matrix, **coefficients).transpose(0, 1)


class APPNP(_Layer):
    """torch_geometric.nn.APPNP: H <- (1 - alpha) S H + alpha X, K times from H = X, S = D^-1/2 (A + I) D^-1/2.

    forward(x, edge_index, edge_weight=None) -> [N, D]. dropout (of edges) must be 0.
    """

    def __init__(
        self,
        K: int,
        alpha: float,
        dropout: float = 0.0,
        cached: bool = False,
        add_self_loops: bool = True,
        normalize: bool = True,
        **kwargs: Any,
    ):
        super().__init__(add_self_loops, **kwargs)
        self.normalize = bool(normalize)
        self.K, self.alpha, self.cached = check_steps(K), check_number(alpha, "alpha"), bool(cached)
        self.dropout = check_number(dropout, "dropout")
        if self.dropout != 0:
            raise ValueError(f"dropout must be 0, as edges are not dropped here, got {dropout}")

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self._steps(x, edge_index, edge_weight, self.K, self.normalize, agg=1 - self.alpha, skip=self.alpha)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(K={self.K}, alpha={self.alpha})"


class _Linear(_Layer):
    """A polynomial of S, then a linear layer; applied in the cheaper order, as the two commute."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        K: int,
        cached: bool,
        add_self_loops: bool,
        bias: bool,
        **kwargs: Any,
    ):
        super().__init__(add_self_loops, **kwargs)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.K, self.cached = check_steps(K), bool(cached)
        self._cached: Tensor | None = None
        self.lin = nn.Linear(in_channels, out_channels, bias) if in_channels > 0 else nn.LazyLinear(out_channels, bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.lin.reset_parameters()
        self._cached = None

    def _filter(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        if self._cached is not None:
            return self.lin(self._cached.detach())
        known = not isinstance(self.lin.weight, nn.parameter.UninitializedParameter)
        if known and not self.cached and self.out_channels < self.lin.in_features:
            _check_x(x)
            h = self._filter(F.linear(x, self.lin.weight), edge_index, edge_weight)
            return h if self.lin.bias is None else h + self.lin.bias
        h = self._filter(x, edge_index, edge_weight)
        if self.cached:
            self._cached = h
        return self.lin(h)


class SGConv(_Linear):
    """torch_geometric.nn.SGConv: S^K X W + b. cached=True keeps S^K X of the first call for all that follow."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        K: int = 1,
        cached: bool = False,
        add_self_loops: bool = True,
        bias: bool = True,
        **kwargs: Any,
    ):
        super().__init__(in_channels, out_channels, K, cached, add_self_loops, bias, **kwargs)

    def _filter(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
        return self._steps(x, edge_index, edge_weight, self.K)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, K={self.K})"


class SSGConv(_Linear):
    """torch_geometric.nn.SSGConv: (alpha X + (1 - alpha) / K sum_{k=1}^K S^k X) W + b.

    cached=True keeps what stands before W in the first call for all that follow.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        alpha: float,
        K: int = 1,
        cached: bool = False,
        add_self_loops: bool = True,
        bias: bool = True,
        **kwargs: Any,
    ):
        super().__init__(in_channels, out_channels, K, cached, add_self_loops, bias, **kwargs)
        self.alpha = check_number(alpha, "alpha")

    def _filter(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
        if self.K == 0:
            return self.alpha * x
        # Horner's rule, H <- S H + share X: out="sum" would hold a sum beside H. The first step has the highest
        # power, the last one X itself
        share = (1 - self.alpha) / self.K
        agg, skip = torch.tensor([[1.0], [share]], dtype=_pyg_graph.number_type(x), device=x.device).repeat(1, self.K)
        agg[0], skip[-1] = share, self.alpha
        return self._steps(x, edge_index, edge_weight, self.K, agg=agg[:, None], skip=skip[:, None])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, K={self.K}, alpha={self.alpha})"


class GCN2Conv(_Layer):
    """torch_geometric.nn.GCN2Conv: ((1 - alpha) S X + alpha X0) ((1 - beta) I + beta W), beta = log(theta / layer + 1).

    forward(x, x_0, edge_index, edge_weight=None) -> [N, channels]. Without theta and layer beta = 1; with
    shared_weights=False X0 has a matrix of its own.
    """

    def __init__(
        self,
        channels: int,
        alpha: float,
        theta: float | None = None,
        layer: int | None = None,
        shared_weights: bool = True,
        cached: bool = False,
        add_self_loops: bool = True,
        normalize: bool = True,
        **kwargs: Any,
    ):
        super().__init__(add_self_loops, **kwargs)
        self.normalize = bool(normalize)
        self.channels, self.alpha, self.cached = channels, check_number(alpha, "alpha"), bool(cached)
        if (theta is None) != (layer is None):
            raise ValueError(f"theta and layer go together, got theta={theta} and layer={layer}")
        self.beta = 1.0 if theta is None or layer is None else math.log(theta / layer + 1)
        self.weight1 = nn.Parameter(torch.empty(channels, channels))
        self.weight2 = None if shared_weights else nn.Parameter(torch.empty(channels, channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in self.parameters():
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor, x_0: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        h = self._steps(x, edge_index, edge_weight, 1, self.normalize, agg=1 - self.alpha)
        x_0 = x_0[: h.shape[0]]
        if self.weight2 is None:
            return self._mix(torch.add(h, x_0, alpha=self.alpha), self.weight1)
        return self._mix(h, self.weight1) + self._mix(self.alpha * x_0, self.weight2)

    def _mix(self, h: Tensor, weight: Tensor) -> Tensor:
        # the matrix is mixed, not its product with h: the passes over tables as large as h cost more than the product
        identity = torch.eye(self.channels, dtype=weight.dtype, device=weight.device)
        return h @ torch.lerp(identity, weight, self.beta)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, alpha={self.alpha}, beta={self.beta})"


class LabelPropagation(_Layer):
    """torch_geometric.nn.LabelPropagation: Y <- clamp(alpha S Y + (1 - alpha) Y0, 0, 1), S = D^-1/2 A D^-1/2.

    forward(y, edge_index, mask=None, edge_weight=None, post_step=None) -> [N, classes], without gradients. y: int64
    labels [N] or [N, 1], or scores [N, classes]; mask: nodes whose labels are used, by default all. Given edge_weight
    stands in place of S as it is. post_step(y) stands in place of the clamp.
    """

    def __init__(self, num_layers: int, alpha: float):
        super().__init__(add_self_loops=False)
        self.num_layers, self.alpha = check_steps(num_layers), check_number(alpha, "alpha")

    @torch.no_grad()
    def forward(
        self,
        y: Tensor,
        edge_index: Tensor,
        mask: Tensor | None = None,
        edge_weight: Tensor | None = None,
        post_step: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        if y.dtype == torch.long and y.shape[:1].numel() == y.numel():
            y = F.one_hot(y.reshape(-1))
        if not y.is_floating_point():
            y = y.to(torch.get_default_dtype())
        start = y
        if mask is not None:
            start = torch.zeros_like(y)
            start[mask] = y[mask]
        edges = (edge_index, edge_weight)
        normalize = edge_weight is None
        if post_step is None:
            clamp = (0.0, 1.0)
            return self._steps(
                start, *edges, self.num_layers, normalize, agg=self.alpha, skip=1 - self.alpha, clamp=clamp
            )
        out = start
        for _ in range(self.num_layers):
            step = self._steps(out, *edges, 1, normalize, agg=self.alpha)
            out = post_step(step.add_(start, alpha=1 - self.alpha))
        return out

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_layers={self.num_layers}, alpha={self.alpha})"


def _check_x(x: Any) -> None:
    if isinstance(x, (tuple, list)):
        raise TypeError("x must be one tensor [N, D], got a pair: bipartite graphs are not supported")
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor, got {type(x).__name__}")
    if x.dim() not in (2, 3):
        raise ValueError(f"x must be [N, D] or [B, N, D], got {shape(x)}")

"""The general K-step recurrence in plain torch."""

import torch
from torch import Tensor

from ugnn_fast.graph import Graph
from ugnn_fast.reference._edges import column, computing_dtype, entry_weights, rho, rows_of, sum_over_neighbors

Coefficient = Tensor | float


def propagate(
    g: Graph,
    x: Tensor,
    steps: int,
    *,
    agg: Coefficient,
    skip: Coefficient,
    keep: Coefficient,
    prev: Coefficient,
    c: Tensor | float | None,
    edge_value: Tensor | None,
    norm: str,
    left: Tensor | None,
    right: Tensor | None,
    gamma: Tensor | None,
    out: str,
    clamp: tuple[float, float] | None,
) -> Tensor:
    """H_{k+1} = clamp(keep H_k + agg left (A o W) right H_k + skip X + prev H_{k-1}), H_0 = X, H_{-1} = 0."""
    dtype = computing_dtype(x)
    X = x.to(dtype)
    i, j, w = rows_of(g), g.col.long(), entry_weights(g, dtype)

    if c is not None:
        pair = 2 * float(c) if isinstance(c, float) else c.to(dtype)[i] + c.to(dtype)[j]
        w = pair * w if isinstance(pair, float) else pair * column(w, pair)
    if edge_value is not None:
        w = w * edge_value.to(dtype)
    r = rho(g, dtype)
    if norm == "sym":
        left, right = r, r
    elif norm == "row":
        left = r * r
    if left is not None:
        w = column(left.to(dtype)[i], w) * w
    if right is not None:
        w = column(right.to(dtype)[j], w) * w
    w = column(w, X[i])

    def at(value: Coefficient, k: int) -> Coefficient:
        if not isinstance(value, Tensor) or value.dim() == 0:
            return value
        row = value[k] if value.dim() == 2 else value
        return column(row.to(dtype), X)

    states = [X]
    for k in range(steps):
        H = at(keep, k) * states[-1] + at(agg, k) * sum_over_neighbors(g, w * states[-1][j]) + at(skip, k) * X
        if k > 0:
            H = H + at(prev, k) * states[-2]
        states.append(H if clamp is None else H.clamp(*clamp))
    if out == "all":
        return torch.stack(states).to(x.dtype)
    if out == "sum":
        assert gamma is not None
        return sum(gamma[k].to(dtype) * H for k, H in enumerate(states)).to(x.dtype)  # type: ignore[union-attr]
    return states[-1].to(x.dtype) if steps else x.clone()  # a result never shares memory with x

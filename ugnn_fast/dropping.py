"""Dropout: `drop_edges` of a graph, as a view that every operator takes; `dropout` and `dropout_linear` of values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ugnn_fast import ops, reference
from ugnn_fast._backend import choose
from ugnn_fast._checks import check_graph, check_seeds, check_share, check_weight, shape
from ugnn_fast._random import draw_seeds
from ugnn_fast.graph import Graph


def drop_edges(g: Graph, q: float, *, seed: int | None = None, backend: str = "auto") -> Graph:
    """The graph with a share q of its edges dropped at random (DropEdge, Rong et al. 2020), as a view of it.

    Operators skip the dropped edges, and `degree` counts the kept ones; stored entries, `edge_index` and `num_edges`
    stay as they are. Both directions of an edge agree, self loops are never dropped, and nothing is rescaled.

    seed: 64 bits; None draws it from torch's default generator. No mask is stored: every call makes it again from the
    seed (Philox counter (min(i, j), max(i, j), 0, 0)), the same on every backend. q = 0 gives the graph itself.
    """
    check_graph(g)
    q = check_share(q, "q")
    if g.drop:
        raise ValueError(f"g must have all of its edges, got a graph that drops {g.drop:g} of them already")
    cpu = torch.device("cpu")
    seeds = draw_seeds(1, cpu) if seed is None else check_seeds(seed, cpu)
    if len(seeds) != 1:
        raise ValueError(f"seed must be one int, got {len(seeds)}")
    if q == 0:
        return g
    view = g._dropping(torch.empty_like(g.degree), q, int(seeds))
    chosen = choose("drop_edges", backend, g.degree)
    if chosen == "reference":
        view.degree.copy_(reference.degrees(view, g.degree.dtype))
    else:
        ops.kept_degree(view, chosen)
    return view


def dropout(x: Tensor, p: float, *, seed: int | Sequence[int] | Tensor | None = None, backend: str = "auto") -> Tensor:
    """Each value of a dense x is lost with probability p; the others are divided by 1 - p.

    x: [N, F], or [N, R, F] for R models side by side. seed: a 64-bit integer, or R of them: model r gets the mask that
    it would get alone. None draws them from torch's default generator, and nothing if p is 0. The mask is that of a
    counter (see `drop_edges`), is the same on every backend, and is made again for the gradient.
    """
    _check_values(x)
    p = check_share(p, "p")
    seeds = _seeds(x, p, seed)
    return x if seeds is None else _drop(x, p, seeds, choose("dropout", backend, x))


def dropout_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    relu: bool = False,
    dropout: float = 0.0,
    seed: int | Sequence[int] | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """dropout(x) @ weight + bias, or dropout(ReLU(x)) @ weight + bias, for a dense x.

    x: [N, F] with weight [F, D] and bias [D], or R models side by side, [N, R, F], [R, F, D] and [R, D]. seed: as for
    `dropout`. Gradients for x, weight and bias. Narrow layers, of at most 256 inputs and 32 outputs, are one kernel
    that stores neither ReLU(x) nor the mask.
    """
    _check_values(x)
    check_weight(x, weight, bias)
    if weight.dim() != x.dim() or (x.dim() == 3 and weight.shape[0] != x.shape[1]):
        expected = "[F, D]" if x.dim() == 2 else f"[R, F, D] with R = {x.shape[1]}"
        raise ValueError(f"weight must be {expected} for x {shape(x)}, got {shape(weight)}")
    p = check_share(dropout, "dropout")
    seeds = _seeds(x, p, seed)
    chosen = choose("dropout_linear", backend, x)
    F, D = weight.shape[-2:]
    fused = chosen == "cpu" and F <= ops.MAX_INPUTS and D <= ops.MAX_OUTPUTS and x.dtype != torch.bfloat16
    if fused and not torch.is_autocast_enabled("cpu"):
        return ops.dropout_linear((), x, weight, bias, bool(relu), p, seeds, chosen)
    return ops.plain_linear(x, weight, bias, relu, p, seeds, lambda x, p, seeds: _drop(x, p, seeds, chosen))


def _drop(x: Tensor, p: float, seeds: Tensor, backend: str) -> Tensor:
    return reference.dropout(x, p, seeds) if backend == "reference" else ops.dropout((), x, p, seeds, backend)


def _check_values(x: Tensor) -> None:
    if not isinstance(x, Tensor) or x.layout is not torch.strided or not x.is_floating_point():
        got = f"{x.layout} {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"x must be a dense floating tensor, got {got}")
    if x.dim() not in (2, 3):
        raise ValueError(f"x must be [N, F] or [N, R, F], got {shape(x)}")


def _seeds(x: Tensor, p: float, seed: int | Sequence[int] | Tensor | None) -> Tensor | None:
    """One for each model in x; None for p = 0."""
    R = 1 if x.dim() == 2 else x.shape[1]
    seeds = None if p == 0 else draw_seeds(R, x.device) if seed is None else check_seeds(seed, x.device)
    if seeds is not None and len(seeds) != R:
        raise ValueError(f"seed must be {'one int' if R == 1 else f'R = {R} ints'}, got {len(seeds)}")
    return seeds

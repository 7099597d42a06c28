"""The documented functions: check the arguments, choose the backend, call the operator.

Notation: N nodes, E stored entries of Ã (both directions and self loops), D columns, R replicas (models that share the
graph), K steps. d_i is the degree, rho_i = d_i^-1/2 (0 where d_i = 0), a_ij the edge weight (1 without weights).
The equations are those of Ma et al. 2021, "A Unified View on Graph Neural Networks as Graph Signal Denoising";
docs/math.md derives them and their gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ugnn_fast import _memory, ops, reference
from ugnn_fast._backend import choose
from ugnn_fast._checks import (
    acc_dtype,
    check_choice,
    check_clamp,
    check_coefficient,
    check_device,
    check_edge_value,
    check_graph,
    check_nodes,
    check_number,
    check_seeds,
    check_share,
    check_sparse,
    check_steps,
    check_weight,
    node_shapes,
    shape,
    value_checks,
)
from ugnn_fast._random import draw_seeds
from ugnn_fast._sparse import sparse_features
from ugnn_fast.graph import Graph

_MEMORY = ("auto", "save", "recompute", "checkpoint")


def ada_propagate(
    g: Graph, x: Tensor, c: Tensor | float, steps: int, *, backend: str = "auto", memory: str = "auto"
) -> Tensor:
    """K steps of adaptive aggregation, ADA-UGNN's gradient descent on its denoising problem.

        H_i <- 2 b_i X_i + b_i sum_j a_ij (c_i + c_j) rho_i rho_j H_j,   K times from H = X
        b_i = 1 / (2 + c_i + sum_j a_ij c_j / d_i),   1/2 where d_i = 0

    x: [N, D], or [N, R, D] for R models at once. c: float, [N], or [N, R] with replicas; finite and >= 0; float32
    (float64 beside a float64 x). Returns H in the shape and dtype of x; gradients for x and c.

    memory: what is kept for the gradient of c. "save" keeps 2 K N D values; "recompute" a third of K N D on the CPU,
    all of it on a GPU, and gathers once more a step; "checkpoint" less than sqrt(2 K) N D (sqrt(K) N D on a GPU), as
    much again during backward, and gathers once more a step, too; "auto" saves while that stays under a quarter of the
    free memory (always under torch.compile, which cannot ask), else it recomputes. Nothing is kept when c needs no
    gradient.
    """
    check_graph(g)
    check_nodes(g, x)
    steps = check_steps(steps)
    check_choice(memory, "memory", _MEMORY)
    c = _node_weights(g, x, c)
    chosen = choose("ada_propagate", backend, x)
    if chosen == "reference" or steps == 0 or x.numel() == 0:
        _check_values(x, c, "c")
        return reference.ada_propagate(g, _reference_storage(x), c, steps)
    if isinstance(c, float):
        return ops.ada_propagate(g.tensors(chosen, steps), x, None, c, steps, "none", chosen, False)
    if chosen != "cpu":
        _check_values(x, c, "c")
    if not (c.requires_grad and torch.is_grad_enabled()):
        memory = "none"
    elif memory == "auto":
        memory = _memory_mode(x, steps)
    check = chosen == "cpu" and value_checks(x)
    return ops.ada_propagate(g.tensors(chosen, steps), x, c, 0.0, steps, memory, chosen, check)


def propagate(
    g: Graph,
    x: Tensor,
    steps: int,
    *,
    agg: Tensor | float = 1.0,
    skip: Tensor | float = 0.0,
    keep: Tensor | float = 0.0,
    prev: Tensor | float = 0.0,
    c: Tensor | float | None = None,
    edge_value: Tensor | None = None,
    norm: str = "sym",
    left: Tensor | None = None,
    right: Tensor | None = None,
    gamma: Tensor | None = None,
    out: str = "last",
    clamp: tuple[float | None, float | None] | None = None,
    backend: str = "auto",
    memory: str = "auto",
) -> Tensor:
    """K steps of the linear recurrence behind GCN, SGC, APPNP, GPRGNN, Chebyshev filters, label propagation, ...

        H_{k+1} = clamp(keep H_k + agg left (A o W) right H_k + skip X + prev H_{k-1}),   H_0 = X,  H_{-1} = 0

    x: [N, D] or [N, R, D]. W: 1; c_i + c_j for c float, [N] or [N, R] (a float gives 2c); or edge_value [E], which
    follows g.edge_index and need not be symmetric. agg, skip, keep, prev: a number, [N], or per step [K, 1] or [K, N].
    norm: "sym" is d^-1/2 on both sides, "row" 1/d_i on the left, "none"; left and right [N] replace the norm (one
    that is not given is then 1). out: "last" is H_K, "sum" is sum_k gamma_k H_k with gamma [K + 1], "all" is
    [K + 1, N, ...]. clamp: (lo, hi), None for no bound. Gradients for x, c, edge_value, agg, skip, keep, prev, gamma,
    left and right; those of anything but x keep the K states, whatever memory says.
    """
    check_graph(g)
    check_nodes(g, x)
    steps = check_steps(steps)
    check_choice(memory, "memory", _MEMORY)
    check_choice(norm, "norm", ("sym", "row", "none"))
    check_choice(out, "out", ("last", "sum", "all"))
    N = g.num_nodes
    if c is not None:
        if edge_value is not None:
            raise ValueError("c and edge_value both give W: pass one of them")
        c = _node_weights(g, x, c, low=-math.inf)
    if edge_value is not None:
        check_edge_value(g, x, edge_value)
    for name, side in (("left", left), ("right", right)):
        if side is not None:
            check_coefficient(g, x, side, name, {"[N]": (N,)})
    if left is not None or right is not None:
        norm = "given"
    if (gamma is not None) != (out == "sum"):
        raise ValueError(f'gamma goes with out="sum" and only there, got out="{out}" and gamma {type(gamma).__name__}')
    if gamma is not None:
        check_coefficient(g, x, gamma, "gamma", {"[K + 1]": (steps + 1,)})
    bounds = check_clamp(clamp)

    named = {"agg": agg, "skip": skip, "keep": keep, "prev": prev}
    coefficients, scales = {}, []
    for name, value in named.items():
        tensor, scale = _coefficient(g, x, value, name, steps)
        coefficients[name] = tensor
        scales.append(scale)
    chosen = choose("propagate", backend, x)
    if chosen == "reference" or steps == 0 or x.numel() == 0:
        return reference.propagate(
            g, _reference_storage(x), steps, **named, c=c, edge_value=edge_value, norm=norm, left=left, right=right,
            gamma=gamma, out=out, clamp=None if clamp is None else bounds,
        )  # fmt: skip
    if isinstance(c, float):
        scales[0] *= 2 * c
        c = None
    keep_states = _tracked(
        c, edge_value, left, right, gamma, coefficients["agg"], coefficients["keep"], coefficients["prev"],
        None if clamp is None else x,
    )  # fmt: skip
    reverse = _reverse(g) if edge_value is not None and torch.is_grad_enabled() else None
    # with any of these the kernels read more than tables, in the order of the graph
    keeps_order = keep_states or edge_value is not None or clamp is not None or out != "last" or any(scales[2:])
    return ops.propagate(
        g.tensors(chosen, 0 if keeps_order else steps), x, c, edge_value, reverse, False, left, right,
        *coefficients.values(), scales, gamma, norm, steps, out, *bounds, keep_states, chosen,
    )  # fmt: skip


def neighbor_mean(g: Graph, x: Tensor, *, backend: str = "auto") -> Tensor:
    """mean_i = sum_j a_ij x_j / d_i over the neighbours of i (and i, with self loops); 0 where d_i = 0."""
    check_graph(g)
    check_nodes(g, x)
    if choose("neighbor_mean", backend, x) == "reference":
        return reference.neighbor_mean(g, _reference_storage(x))
    return propagate(g, x, 1, norm="row", backend=backend)


def neighbor_var(g: Graph, x: Tensor, *, backend: str = "auto") -> Tensor:
    """var_i = sum_j a_ij (x_j - mean_i)^2 / d_i, the population variance over neighbours; shape and dtype of x."""
    check_graph(g)
    check_nodes(g, x)
    chosen = choose("neighbor_var", backend, x)
    if chosen == "reference" or x.numel() == 0:
        return reference.neighbor_var(g, _reference_storage(x))
    return ops.neighbor_var(g.tensors(chosen), x, False, chosen)


def ada_c(
    g: Graph,
    x: Tensor,
    weight: Tensor,
    s: float,
    *,
    bias: Tensor | float | None = None,
    stat: str = "var",
    backend: str = "auto",
) -> Tensor:
    """ADA-UGNN's adaptive weights, c_i = s sigmoid(<stat_i, weight> + bias).

    x: [N, D] with weight [D] gives [N]; [N, R, D] with weight [R, D] (or [D], shared) gives [N, R]. bias: a number,
    or a tensor with one value (or R of them). stat: "var" or "mean" over the neighbours. Gradients for x, weight, bias.
    """
    check_graph(g)
    check_nodes(g, x)
    s = check_number(s, "s", low=0.0)
    check_choice(stat, "stat", ops.STATS)
    shapes: dict[str, tuple] = {"[D]": (x.shape[-1],)}
    if x.dim() == 3:
        shapes["[R, D]"] = tuple(x.shape[1:])
    check_coefficient(g, x, weight, "weight", shapes)
    if bias is not None:
        if not isinstance(bias, Tensor):
            bias = torch.tensor(check_number(bias, "bias"), dtype=acc_dtype(x), device=x.device)
        R = x.shape[1] if x.dim() == 3 else 1
        check_coefficient(g, x, bias, "bias", {"[]": (), "[1]": (1,), "[R]": (R,)})
        bias = bias.reshape(-1).expand(R)
    chosen = choose("ada_c", backend, x)
    if chosen == "reference":
        return reference.ada_c(
            g, _reference_storage(x), weight, s, bias if bias is None or x.dim() == 3 else bias[0], stat
        )
    return ops.ada_c(g.tensors(chosen), x, weight.expand(x.shape[1:]), bias, s, stat, False, chosen)


def gat_aggregate(
    g: Graph,
    x: Tensor,
    att_src: Tensor,
    att_dst: Tensor,
    *,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    seed: int | Sequence[int] | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Aggregation of GAT (Velickovic et al. 2018), with the attention of every entry rebuilt from two scores per node.

        y_i = sum_j mask_ij / (1 - q) alpha_ij x_j,   alpha_ij = softmax over j of LeakyReLU(att_dst_i + att_src_j)

    for each head, over the stored entries of row i (the self loop too, if the graph has it); 0 for a row without
    entries. Edge weights are not used, as in torch_geometric's GATConv without edge_attr. x: [N, H, D]; att_src,
    att_dst: [N, H], float32 (float64 beside a float64 x). Returns y in the shape and dtype of x; gradients for x,
    att_src and att_dst. negative_slope: of LeakyReLU, >= 0. dropout: q, the share of the entries that each head loses.

    seed: of the mask, a 64-bit integer; None draws one from torch's default generator. R seeds (integers, or an int64
    tensor [R]; R divides H) are for R models side by side: heads r H / R to (r + 1) H / R - 1 get the mask that a call
    on them alone would get with seed r. A tensor on the device of x is read there: a CUDA graph that holds the call
    makes the mask of the seeds that the tensor has at the replay.
    """
    check_graph(g)
    check_nodes(g, x)
    if x.dim() != 3:
        raise ValueError(f"x must be [N, H, D], got {shape(x)}")
    H = x.shape[1]
    for name, scores in (("att_src", att_src), ("att_dst", att_dst)):
        check_coefficient(g, x, scores, name, {"[N, H]": (g.num_nodes, H)})
    slope = check_number(negative_slope, "negative_slope", low=0.0)
    dropout = check_share(dropout, "dropout")
    seeds = None if seed is None else check_seeds(seed, x.device)
    if seeds is not None and (len(seeds) == 0 or H % len(seeds)):
        raise ValueError(f"seed must be one seed, or R of them with R a divisor of H = {H}, got {len(seeds)}")
    if dropout == 0:
        seeds = None
    elif seeds is None:
        seeds = draw_seeds(1, x.device)
    chosen = choose("gat_aggregate", backend, x)
    if chosen == "reference" or x.numel() == 0:
        return reference.gat_aggregate(g, _reference_storage(x), att_src, att_dst, slope, dropout, seeds)
    return ops.gat_aggregate(g.tensors(chosen), x, att_src, att_dst, slope, dropout, seeds, chosen)


def local_smoothness(g: Graph, labels: Tensor, *, backend: str = "auto") -> Tensor:
    """Share of a node's labelled neighbours that carry its label, float32 [N].

    Self loops and edge weights are ignored; nan where no neighbour is labelled or the node's label is < 0.
    """
    check_graph(g)
    if not isinstance(labels, Tensor) or labels.dtype not in (torch.int64, torch.int32):
        got = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels must be an int64 or int32 tensor, got {got}")
    if labels.shape != (g.num_nodes,):
        raise ValueError(f"labels must be [N] = [{g.num_nodes}], got {shape(labels)}")
    check_device(g, labels, "labels")
    chosen = choose("local_smoothness", backend, g.degree)
    labels = labels.long()
    if chosen == "reference":
        return reference.local_smoothness(g, labels)
    return ops.local_smoothness(g.tensors(chosen), labels, chosen)


def denoising_energy(g: Graph, f: Tensor, s: Tensor, c: Tensor | float, *, backend: str = "auto") -> Tensor:
    """The objective that ADA-UGNN descends, |F - S|^2 + 1/2 sum_i c_i sum_j a_ij |rho_i F_i - rho_j F_j|^2.

    f, s: [N, D] gives a 0-d tensor, [N, R, D] gives [R]; c: float, [N] or [N, R]. Gradients for f, s and c.
    """
    check_graph(g)
    check_nodes(g, f, "f")
    check_nodes(g, s, "s")
    if s.shape != f.shape or s.dtype != f.dtype:
        raise ValueError(f"s must be {shape(f)} {f.dtype} like f, got {shape(s)} {s.dtype}")
    c = _node_weights(g, f, c)
    _check_values(f, c, "c")
    chosen = choose("denoising_energy", backend, f)
    if chosen == "reference":
        return reference.denoising_energy(g, f, s, c)
    graph_part = ops.edge_energy(g.tensors(chosen), f, chosen)  # [N] or [N, R]
    off = (f.to(graph_part.dtype) - s.to(graph_part.dtype)).square().sum(-1)
    if isinstance(c, Tensor) and c.dim() < graph_part.dim():
        c = c.unsqueeze(-1)
    return ops.row_sum((), off + 0.5 * c * graph_part)


def sparse_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    dropout: float = 0.0,
    seed: int | Sequence[int] | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """dropout(x) @ weight + bias for a sparse x, such as a bag of words, with the mask made inside the product.

    x: torch sparse CSR [N, F]. weight: [F, D] with bias [D] gives [N, D]; [R, F, D] with bias [R, D], R models side by
    side, gives [N, R, D]. All of one dtype. dropout: the share of the stored values that is lost; the others are
    divided by 1 - dropout. seed: a 64-bit integer, or R of them, or an int64 tensor as in gat_aggregate: model r gets
    the mask that it would get alone. None draws them from torch's default generator, and nothing if dropout is 0.
    Gradients for weight and bias, not for x.

    x is checked and transposed at its first use, and that is kept as long as x lives.
    """
    check_sparse(x)
    check_weight(x, weight, bias)
    dropout = check_share(dropout, "dropout")
    R = 1 if weight.dim() == 2 else weight.shape[0]
    device = weight.device
    seeds = None if dropout == 0 else draw_seeds(R, device) if seed is None else check_seeds(seed, device)
    if seeds is not None and len(seeds) != R:
        raise ValueError(f"seed must be {'one int' if R == 1 else f'R = {R} ints'}, got {len(seeds)}")
    chosen = choose("sparse_linear", backend, weight)
    if chosen == "reference":
        return reference.sparse_linear(sparse_features(x), _reference_storage(weight), bias, dropout, seeds)
    return ops.sparse_linear(sparse_features(x, chosen), weight, bias, dropout, seeds, chosen)


def _tracked(*tensors: Tensor | None) -> bool:
    """Whether autograd will ask for the gradient of one of them."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _reverse(g: Graph) -> Tensor:
    """g.reverse; computed in the call, and not kept, when a compiler traces it and it is not there yet."""
    return ops.reverse((), g.rowptr, g.col) if torch.compiler.is_compiling() and g._reverse is None else g.reverse


def _reference_storage(x: Tensor) -> Tensor:
    """x as the operators' autocast rule would store it."""
    device = x.device.type
    return ops.storage(torch.get_autocast_dtype(device), x) if torch.is_autocast_enabled(device) else x


def _memory_mode(x: Tensor, steps: int) -> str:
    """What memory="auto" means for ada_propagate with a learned c."""
    if torch.compiler.is_compiling():
        return "save"
    kept = 2 * steps * x.numel() * x.element_size()
    return "save" if _memory.fits_a_quarter(kept, x.device) else "recompute"


def _node_weights(g: Graph, x: Tensor, c: Tensor | float, low: float = 0.0, name: str = "c") -> Tensor | float:
    """c as a float or as a checked tensor [N] or [N, R]."""
    if not isinstance(c, Tensor):
        return check_number(c, name, low=low)
    if c.shape == x.shape[:1] and c.dtype is x.dtype is torch.float32 and c.device == g.device:
        return c  # the usual case, at a fraction of what the checks below cost
    if c.dim() == 0:
        c = c.expand(g.num_nodes)
    check_coefficient(g, x, c, name, node_shapes(x))
    return c


def _not_negative(values: Tensor) -> Tensor:
    return values >= 0


def _check_values(
    x: Tensor, c: Tensor | float, name: str, good: Callable = _not_negative, expected: str = "finite and >= 0"
) -> None:
    """good: true from some value on, for numbers and tensors."""
    if isinstance(c, Tensor) and value_checks(x) and c.numel():
        c = c.detach()
        low, high = (value.item() for value in c.aminmax())  # NaN if there is one
        if not (good(low) and math.isfinite(low) and math.isfinite(high)):
            bad = ~(good(c) & c.isfinite())
            at = int(bad.nonzero()[0, 0])
            raise ValueError(f"{name} must be {expected} everywhere, got {c[bad][0].item()} at node {at}")


def _coefficient(g: Graph, x: Tensor, value: Tensor | float, name: str, steps: int) -> tuple[Tensor | None, float]:
    """A coefficient as (tensor, scale): a number is (None, number)."""
    if not isinstance(value, Tensor):
        return None, check_number(value, name)
    if value.dim() == 0:
        value = value.expand(steps, 1)
    N, K = g.num_nodes, steps
    check_coefficient(g, x, value, name, {"[]": (), "[N]": (N,), "[K, 1]": (K, 1), "[K, N]": (K, N)})
    return value, 1.0

"""ugnn::propagate, K steps of the general linear recurrence, and its backward.

H_{k+1} = clamp(keep H_k + agg left (A o W) right H_k + skip X + prev H_{k-1}),   H_0 = X,  H_{-1} = 0
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ugnn_fast import _memory
from ugnn_fast._library import GRAPH, define
from ugnn_fast.ops._native_call import (
    DTYPES,
    acc_dtype,
    by_replica,
    coefficients,
    csr,
    inverse_degree,
    native,
    pointer,
    replicas_and_width,
    result,
    result_as,
    storage,
    table_dtype,
)
from ugnn_fast.ops.edge_dot import edge_dot
from ugnn_fast.ops.row_sum import row_sum

NORMS = {"none": 0, "sym": 1, "row": 2, "given": 3}


class Arguments(NamedTuple):
    """The operator's arguments after the graph's, in the order of the schema."""

    x: Tensor  # [N, D] or [N, R, D]
    c: Tensor | None  # [N] or [N, R]
    edge_value: Tensor | None  # [E]
    reverse: Tensor | None  # [E], with edge_value
    transposed: bool  # e_ji in place of e_ij
    left: Tensor | None  # [N]
    right: Tensor | None  # [N]
    # a scalar coefficient is its number; a tensor is [N], [K, 1] or [K, N] and is multiplied by its number
    agg: Tensor | None
    skip: Tensor | None
    keep: Tensor | None
    prev: Tensor | None
    scales: list[float]  # of agg, skip, keep, prev
    gamma: Tensor | None  # [K + 1], out = "sum"
    norm: str
    steps: int
    out: str
    lo: float
    hi: float
    keep_states: bool
    backend: str

    @property
    def clamped(self) -> bool:
        return self.lo > float("-inf") or self.hi < float("inf")


_SCHEMA = (
    f"propagate({GRAPH}, Tensor x, Tensor? c, Tensor? edge_value, Tensor? reverse, bool transposed, Tensor? left,"
    " Tensor? right, Tensor? agg, Tensor? skip, Tensor? keep, Tensor? prev, float[] scales, Tensor? gamma, str norm,"
    " int steps, str out, float lo, float hi, bool keep_states, str backend) -> (Tensor result, Tensor states)"
)


def _coef(values: Tensor | None, scale: float):
    if values is None:
        return native.Coef(0, 0, 0, scale)
    per_step = values.dim() == 2
    row_stride = 0 if per_step and values.shape[1] == 1 else 1
    return native.Coef(values.data_ptr(), row_stride, values.shape[1] if per_step else 0, scale)


def _body(graph, *arguments):
    a = Arguments(*arguments)
    R, D = replicas_and_width(a.x)
    x = a.x.to(table_dtype(a.x.dtype, a.x.shape[0], D, a.backend)).contiguous()
    states_shape = (a.steps if a.keep_states and a.out != "all" else 0, *x.shape)
    tables = a.steps + 1 if a.out == "all" else states_shape[0]
    what = 'with out="all"' if a.out == "all" else "with gradients"
    _memory.require(tables * x.numel() * x.element_size(), x.device, f"propagate of {a.steps} steps {what}")
    states = result(states_shape, x.dtype)
    last = total = all_steps = None
    if a.out == "all":
        h = result((a.steps + 1, *x.shape), x.dtype)
        h[0] = x
        all_steps = h[1:]
    else:
        h = result(x.shape, x.dtype if a.out == "last" else acc_dtype(x.dtype))
        last, total = (h, None) if a.out == "last" else (None, h)
        if a.keep_states:
            all_steps = states
    # contiguous copies must outlive the call
    tensors = [None if t is None else t.contiguous() for t in arguments[7:11]]
    c = None if a.c is None else by_replica(a.c)
    edge_value, left, right, gamma = (
        None if t is None else t.contiguous() for t in (a.edge_value, a.left, a.right, a.gamma)
    )
    native.propagate_forward(
        csr(graph), DTYPES[x.dtype], torch.get_num_threads(), R, D, a.steps,
        x.data_ptr(), pointer(c), 1 if c is None or c.dim() == 1 else R,
        pointer(edge_value), pointer(a.reverse) if a.transposed else 0,
        NORMS[a.norm], pointer(left), pointer(right), *map(_coef, tensors, a.scales),
        a.clamped, a.lo, a.hi, pointer(gamma), pointer(last), pointer(all_steps), pointer(total),
    )  # fmt: skip
    if last is not None and all_steps is not None:
        h.copy_(all_steps[-1])
    return result_as(h, a.x.dtype), result_as(states, a.x.dtype)


def _fake(graph, *arguments):
    a = Arguments(*arguments)
    states = a.x.new_empty((a.steps if a.keep_states and a.out != "all" else 0, *a.x.shape))
    if a.out == "all":
        return a.x.new_empty((a.steps + 1, *a.x.shape)), states
    return torch.empty_like(a.x, memory_format=torch.contiguous_format), states


def one_step(graph: tuple, x: Tensor, backend: str, **changes) -> Tensor:
    """left (A o W) right x, by default A x."""
    plain = Arguments(
        x=x, c=None, edge_value=None, reverse=None, transposed=False, left=None, right=None, agg=None, skip=None,
        keep=None, prev=None, scales=[1.0, 0.0, 0.0, 0.0], gamma=None, norm="none", steps=1, out="last",
        lo=float("-inf"), hi=float("inf"), keep_states=False, backend=backend,
    )  # fmt: skip
    return propagate(graph, *plain._replace(**changes))


def mean_adjoint(graph: tuple, grad: Tensor, backend: str) -> Tensor:
    """Gradient of x from that of the neighbours' mean: sum_i a_ij g_i / d_i."""
    share = inverse_degree(graph, acc_dtype(grad.dtype))
    return one_step(graph, grad, backend, norm="given", right=share)


def laplacian(graph: tuple, f: Tensor, c: Tensor, backend: str) -> Tensor:
    """Gradient of 1/2 sum_i c_i sum_j a_ij |rho_i f_i - rho_j f_j|^2 in f: (c + m) f - rho (A o (c_i + c_j)) rho f."""
    degree = graph[3]
    mean = one_step(graph, c.unsqueeze(-1), backend, norm="row").squeeze(-1)
    total = torch.where(degree.reshape(-1, *(1,) * (c.dim() - 1)) > 0, c + mean, 0).unsqueeze(-1)
    return total.to(f.dtype) * f - one_step(graph, f, backend, norm="sym", c=c)


def pair_products(graph: tuple, v: Tensor, u: Tensor, backend: str) -> Tensor:
    """v_i sum_j a_ij u_j + u_i sum_j a_ij v_j: (G2), the gradient of c before the sum over columns."""
    return v * one_step(graph, u, backend) + u * one_step(graph, v, backend)


def _dot_rows(p: Tensor, q: Tensor, dtype: torch.dtype) -> Tensor:
    """sum of p q over all but the first dimension, [N]."""
    return (p.to(dtype) * q.to(dtype)).flatten(1).sum(1)


class _Propagate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernel, graph, *arguments):
        a = Arguments(*arguments)
        if any(ctx.needs_input_grad[3:]) or a.clamped:
            arguments = tuple(a := a._replace(keep_states=True))
        result, states = kernel(graph, *arguments)
        ctx.graph = graph
        # tensors go through save_for_backward, everything else stays in the tuple
        ctx.places = [k for k, value in enumerate(arguments) if isinstance(value, Tensor)]
        ctx.others = [None if isinstance(value, Tensor) else value for value in arguments]
        ctx.save_for_backward(result, states, *(arguments[k] for k in ctx.places))
        ctx.only_x = not any(ctx.needs_input_grad[3:])
        ctx.polynomial = (
            ctx.only_x
            and a.out != "all"
            and not a.clamped
            and all(t is None or (t.dim() == 2 and t.shape[1] == 1) for t in (a.agg, a.skip, a.keep, a.prev))
        )
        return result

    @staticmethod
    def backward(ctx, grad):
        result, states, *tensors = ctx.saved_tensors
        arguments = list(ctx.others)
        for place, tensor in zip(ctx.places, tensors, strict=True):
            arguments[place] = tensor
        a = Arguments(*arguments)
        if ctx.polynomial:
            # the K steps are a polynomial of one matrix, and their adjoint the same polynomial of its transpose (G5)
            grads = {"x": propagate(ctx.graph, *_transposed(ctx.graph, a)._replace(x=grad, keep_states=False))}
        else:
            if torch.is_grad_enabled() and not ctx.only_x:
                raise RuntimeError("propagate: double backward is offered for x alone; use backend='reference'")
            needed = {name for name, need in zip(Arguments._fields, ctx.needs_input_grad[2:], strict=True) if need}
            grads = _gradients(ctx.graph, a, grad, result[1:] if a.out == "all" else states, needed)
        return (None, None, *(grads.get(name) for name in Arguments._fields))


def _transposed(graph: tuple, a: Arguments) -> Arguments:
    """The same steps with (left (A o W) right)^T = right (A o W)^T left; A and c_i + c_j are symmetric."""
    if a.norm == "row":
        a = a._replace(norm="given", left=inverse_degree(graph, acc_dtype(a.x.dtype)), right=None)
    # permuted once: K steps would look up the reverse entry K times
    value = None if a.edge_value is None else a.edge_value[a.reverse]
    return a._replace(left=a.right, right=a.left, edge_value=value)


def _gradients(graph: tuple, a: Arguments, grad: Tensor, states: Tensor, needed: set[str]) -> dict[str, Tensor]:
    """Gradients of the needed arguments by the adjoint recurrence. (G4)

    G_k = keep_k G_{k+1} + right (A o W)^T left agg_k G_{k+1} + prev_{k+1} G_{k+2} + what comes in at step k
    """
    x, K = a.x, a.steps
    dtype = acc_dtype(x.dtype)
    weight, degree = graph[2], graph[3]

    def column(values: Tensor) -> Tensor:
        return values.reshape(-1, *(1,) * (x.dim() - 1))

    left, right = a.left, a.right
    if a.norm == "sym":
        left = right = inverse_degree(graph, dtype).sqrt()
    elif a.norm == "row":
        left = inverse_degree(graph, dtype)

    def scaled(values: Tensor, factor: Tensor | None) -> Tensor:
        return values if factor is None else column(factor) * values

    def aggregate(u: Tensor, c: Tensor | None, edge_value: Tensor | None, transposed: bool) -> Tensor:
        # not in 16 bits: a gradient of one coefficient for all nodes is a long sum, and what it is a sum of may cancel
        return one_step(graph, u, a.backend, c=c, edge_value=edge_value, reverse=a.reverse, transposed=transposed)

    def coefficient(name: str, k: int) -> Tensor | float:
        values, scale = getattr(a, name), a.scales[("agg", "skip", "keep", "prev").index(name)]
        if values is None:
            return scale
        row = values[k] if values.dim() == 2 else values
        return scale * (row if row.shape[0] == 1 else column(row))

    def state(k: int) -> Tensor:
        return (x if k == 0 else states[k - 1]).to(dtype)

    def incoming(k: int) -> Tensor:
        if a.out == "all":
            return grad[k].to(dtype)
        if a.out == "sum":
            assert a.gamma is not None
            return a.gamma[k].to(dtype) * grad.to(dtype)
        return grad.to(dtype) if k == K else torch.zeros_like(grad, dtype=dtype)

    per_row: dict[str, list[Tensor]] = {name: [] for name in ("agg", "skip", "keep", "prev")}
    grad_x = torch.zeros_like(x, dtype=dtype)
    sums: dict[str, Tensor] = {}

    def add(name: str, value: Tensor) -> None:
        sums[name] = sums[name] + value if name in sums else value

    G, G_later = incoming(K), torch.zeros_like(grad_x)  # of H_{k+1}, and prev-part waiting for H_k
    for k in reversed(range(K)):
        # without states nothing below reads H, and without need_y nothing reads y
        H = state(k) if a.keep_states or a.out == "all" else x
        need_y = a.clamped or "agg" in needed or "left" in needed
        raw = aggregate(scaled(H, right), a.c, a.edge_value, a.transposed) if need_y else x
        y = scaled(raw, left)
        if a.clamped:
            Z = coefficient("keep", k) * H + coefficient("agg", k) * y + coefficient("skip", k) * x.to(dtype)
            if k > 0:
                Z = Z + coefficient("prev", k) * state(k - 1)
            G = G * ((a.lo <= Z) & (a.hi >= Z))
        agg = coefficient("agg", k)
        v = scaled(agg * G, left)
        t = aggregate(v, a.c, a.edge_value, not a.transposed)
        if "agg" in needed:
            per_row["agg"].append(_dot_rows(G, y, dtype))
        if "skip" in needed:
            per_row["skip"].append(_dot_rows(G, x, dtype))
        if "keep" in needed:
            per_row["keep"].append(_dot_rows(G, H, dtype))
        if "prev" in needed:
            per_row["prev"].append(
                _dot_rows(G, state(k - 1), dtype) if k > 0 else torch.zeros_like(degree, dtype=dtype)
            )
        if "left" in needed:
            add("left", _dot_rows(agg * G, raw, dtype))
        if "right" in needed:
            add("right", _dot_rows(H, t, dtype))
        if "c" in needed:
            assert a.c is not None
            both = pair_products(graph, v, scaled(H, right), a.backend)
            add("c", both.sum(-1) if a.c.dim() == 2 else both.flatten(1).sum(1))
        if "edge_value" in needed:
            add("edge_value", edge_dot(graph, v, scaled(H, right), a.backend))
        if "gamma" in needed:
            add("gamma", torch.zeros(K + 1, dtype=dtype, device=x.device))
            sums["gamma"][k + 1] += _total(grad.to(dtype) * state(k + 1))
        grad_x = grad_x + coefficient("skip", k) * G
        G, G_later = (
            coefficient("keep", k) * G + scaled(t, right) + G_later + (incoming(k) if k > 0 or a.out != "last" else 0),
            coefficient("prev", k) * G,
        )

    grads: dict[str, Tensor] = {}
    if "x" in needed:
        grads["x"] = (grad_x + G).to(x.dtype)
    for name, scale in zip(("agg", "skip", "keep", "prev"), a.scales, strict=True):
        if name in needed:
            grads[name] = scale * _like(torch.stack(per_row[name][::-1]), getattr(a, name))
    if "gamma" in needed:
        sums["gamma"][0] += _total(grad.to(dtype) * x.to(dtype))
    for name in ("left", "right", "c", "gamma"):
        if name in needed:
            grads[name] = sums[name]
    if "edge_value" in needed:
        dots = sums["edge_value"] if weight is None else sums["edge_value"] * weight.to(dtype)
        grads["edge_value"] = dots[a.reverse] if a.transposed else dots
    return grads


def _like(rows: Tensor, values: Tensor) -> Tensor:
    """Gradient of a coefficient of shape [N], [K, 1] or [K, N] from its parts [K, N]."""
    if values.dim() == 1:
        return rows.sum(0)
    if values.shape[1] == 1 and rows.shape[1] != 1:
        return torch.stack([_total(row) for row in rows])[:, None]
    return rows


def _total(values: Tensor) -> Tensor:
    """Sum of all values, independent of the number of threads."""
    return row_sum((), values.reshape(-1))


def _autocast(dtype: torch.dtype, args: tuple) -> tuple:
    a = Arguments(*args)
    x = storage(dtype, a.x)
    names = ("c", "edge_value", "left", "right", "agg", "skip", "keep", "prev", "gamma")
    cast: dict[str, Any] = dict(zip(names, coefficients(x, *(getattr(a, name) for name in names)), strict=True))
    return tuple(a._replace(x=x, **cast))


propagate = define(_SCHEMA, _body, _fake, _Propagate, _autocast, first_only=True)

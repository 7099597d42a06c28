"""K steps of the general recurrence by the kernel step."""

from typing import Any

import torch
from torch import Tensor

from ugnn_fast.device.step import ZERO, Stepper, coef_of, column, per_node, rsqrt_degree
from ugnn_fast.ops._native_call import acc_dtype
from ugnn_fast.ops.propagate import Arguments


def propagate(graph: tuple, *arguments) -> tuple[Tensor, Tensor]:
    """Body of ugnn::propagate."""
    a = Arguments(*arguments)
    x, K = a.x.contiguous(), a.steps
    left: Any = a.left
    right: Any = a.right
    gamma: Any = a.gamma
    if a.norm == "sym":
        left = right = rsqrt_degree(graph, acc_dtype(x.dtype), a.backend)
    elif a.norm == "row":
        left = rsqrt_degree(graph, acc_dtype(x.dtype), a.backend).square()
    left, right = (None if side is None else side.contiguous() for side in (left, right))
    c = ZERO if a.c is None else per_node(a.c)
    edge_value = None if a.edge_value is None else a.edge_value.contiguous()
    stepper = Stepper(
        graph, x, c=c, replicas=c.replica_stride > 0, edge_value=edge_value,
        reverse=a.reverse if a.transposed else None, backend=a.backend,
    )  # fmt: skip
    agg, skip, keep, prev = map(coef_of, (a.agg, a.skip, a.keep, a.prev), a.scales)
    skips, keeps, goes_back = (t.values is not None or t.scale != 0 for t in (skip, keep, prev))

    states = x.new_empty((K if a.keep_states and a.out != "all" else 0, *x.shape))
    result = x.new_empty((K + 1, *x.shape) if a.out == "all" else x.shape)
    total = None
    if a.out == "all":
        result[0] = x
        outs: list[Any] = list(result[1:])
    else:
        if a.out == "sum":
            total = gamma[0] * x.to(gamma.dtype)
        outs = [*states] if a.keep_states else [None] * (K - 1) + [result if a.out == "last" else None]
    # H is written where somebody reads it: a later step, if the table of neighbours is not H itself
    if right is None or keeps or goes_back:
        ring = [torch.empty_like(x) for _ in range(min(K, 3 if goes_back else 2))]
        outs = [ring[k % len(ring)] if out is None and k < K - 1 else out for k, out in enumerate(outs)]
    tables = None if right is None else [torch.empty_like(x) for _ in range(min(K, 2))]
    table: Any = x
    if tables is not None:
        table = torch.mul(x, column(right, x), out=tables[0])

    h: Any = x
    before = None
    with stepper.together():
        for k in range(K):
            following = None if tables is None or k == K - 1 else tables[(k + 1) % 2]
            stepper.step(
                table, left=left, right=right, agg=agg.step(k), skip=skip.step(k), keep=keep.step(k), prev=prev.step(k),
                x=x if skips else None, h=h if keeps else None, before=before if goes_back else None,
                clamp=(a.lo, a.hi) if a.clamped else None, gamma=None if total is None else gamma[k + 1 :],
                out=outs[k], following=following, total=total,
            )  # fmt: skip
            h, before = outs[k], h
            table = h if tables is None else following
    if total is not None:
        result.copy_(total)
    elif a.out == "last" and a.keep_states:
        result.copy_(states[-1])
    return result, states

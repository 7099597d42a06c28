"""GAT's aggregation, docs/math.md (A1)-(A3): one pass over the rows forward, two backward, nothing kept per entry."""

import math
from typing import Any

import torch
from torch import Tensor

from ugnn_fast import _random
from ugnn_fast.device._rows import Rows, cdiv
from ugnn_fast.kernels._launch import WIDEST, Config, row_config


class _Heads:
    """Launches the kernels on one graph, for the heads of x [N, H, D]."""

    def __init__(self, graph: tuple, x: Tensor, slope: float, dropout: float, seeds: Tensor | None, backend: str):
        *_, plan, plan_sizes, drop_seed, keep_from = graph
        self.rows = Rows(graph[0], plan, plan_sizes, backend)
        _, H, D = x.shape
        R = 1 if seeds is None else len(seeds)
        # CUDA kernels share out the heads by themselves
        self.config, self.parts, self.columns, vec, self.shape = None, 1, 1, 1, {}
        if backend == "triton":
            self.config, heads, vec = _config(H // R, x)
            self.parts = cdiv(D, self.config.block)
            self.columns = R * cdiv(H // R, heads) * self.parts
            self.shape = {"HEADS": heads, "VEC": vec}
        # they are on the device already: a copy from the host could not be captured in a CUDA graph
        seeds = None if seeds is None else seeds.contiguous()
        self.dropping = keep_from > 0
        self.args = (
            graph[1], drop_seed, keep_from, seeds, _random.keep_from(dropout), 1 / (1 - dropout), slope, H, H // R,
            D // vec,
        )  # fmt: skip

    def launch(self, kernel: str, *args: Any, **constants: Any) -> None:
        self.rows.launch(
            kernel, self.columns, self.config, *self.args, *args, DROP=self.dropping, **self.shape, **constants
        )


def _config(replica_heads: int, x: Tensor) -> tuple[Config, int, int]:
    """Launch of a kernel, and HEADS and VEC: up to four narrow heads to a program."""
    D = x.shape[2]
    vec = math.gcd(D, 16 // x.element_size())
    block = row_config(D, x.dtype, x.device).block
    heads = 1
    while heads < min(replica_heads, 4) and 2 * heads * block <= WIDEST:
        heads *= 2
    slots, _, warps = row_config(heads * block, x.dtype, x.device)
    # a thread with vectors of several slots would compute, and hold, the weights of all of them
    slots = max(2, min(slots, 32 * warps * vec // (heads * block)))
    return Config(slots, block, warps), heads, vec


def gat_aggregate(graph, x, att_src, att_dst, slope, dropout, seeds, backend) -> tuple[Tensor, Tensor]:
    """Body of ugnn::gat_aggregate."""
    x, att_src, att_dst = x.contiguous(), att_src.contiguous(), att_dst.contiguous()
    heads = _Heads(graph, x, slope, dropout, seeds, backend)
    y, lse = torch.empty_like(x), torch.empty_like(att_src)
    partial = heads.rows.partial(1, x[0].numel(), lse.dtype)
    partial_head = heads.rows.partial(2, x.shape[1], lse.dtype)
    heads.launch("gat_aggregate_fwd", x, att_src, att_dst, partial, partial_head, y, lse)
    return y, lse


def gat_aggregate_backward(
    graph, x, att_src, att_dst, lse, grad, slope, dropout, seeds, backend
) -> tuple[Tensor, Tensor, Tensor]:
    """Body of ugnn::gat_aggregate_backward."""
    x, att_src, att_dst, lse = x.contiguous(), att_src.contiguous(), att_dst.contiguous(), lse.contiguous()
    grad = grad.to(x.dtype).contiguous()
    heads = _Heads(graph, x, slope, dropout, seeds, backend)
    partial = heads.rows.partial(2, x[0].numel(), lse.dtype)
    partial_head = heads.rows.partial(2, x.shape[1], lse.dtype)
    t, grad_dst, grad_src = torch.empty((3, heads.parts, *lse.shape), dtype=lse.dtype, device=lse.device)
    grad_x = torch.empty_like(x)
    heads.launch(
        "gat_aggregate_bwd", x, grad, att_src, att_dst, lse, None, partial, partial_head, None, t, grad_dst,
        SENDS=False,
    )  # fmt: skip
    stats = torch.stack((att_dst, lse, t.sum(0)), -1)
    heads.launch(
        "gat_aggregate_bwd", grad, x, att_src, att_dst, lse, stats, partial, partial_head, grad_x, None, grad_src,
        SENDS=True,
    )  # fmt: skip
    return grad_x, grad_src.sum(0), grad_dst.sum(0)

"""The shapes that are measured, and the problem made of each: graph, inputs, float64 result."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

import ugnn_fast as uf
from ugnn_fast import reference


@dataclass(frozen=True)
class Shape:
    """A data set of uf.datasets.load, a width D and a number of steps K."""

    graph: str
    D: int
    K: int

    def __str__(self) -> str:
        return f"{self.graph}:{self.D}:{self.K}"


SHAPES = {
    shape.graph: shape
    for shape in (
        Shape("cora", 7, 10),
        Shape("pubmed", 3, 10),
        Shape("coauthor_physics", 5, 5),
        Shape("large_ogbn_arxiv", 40, 10),
        Shape("large_cnr2000", 16, 10),
    )
}
QUICK = ("cora", "pubmed")
# our bfloat16 storage is measured too where rows are wide enough for it to matter
BFLOAT16 = ("large_ogbn_arxiv",)

# columns of the float64 reference are computed in blocks of about this size
_REFERENCE_BYTES = 2 << 30


def parse_shape(text: str) -> Shape:
    """A name of SHAPES, or GRAPH:D:K for any data set."""
    if text in SHAPES:
        return SHAPES[text]
    try:
        graph, D, K = text.split(":")
        shape = Shape(graph, int(D), int(K))
    except ValueError:
        raise ValueError(f"a shape must be one of {', '.join(SHAPES)}, or GRAPH:D:K, got {text!r}") from None
    if shape.D < 1 or shape.K < 1:
        raise ValueError(f"a shape must have D >= 1 and K >= 1, got {text!r}")
    return shape


@dataclass(frozen=True)
class Problem:
    """Inputs of one K-step propagation: x, grad (of the result) [N, D], c [N]."""

    g: uf.Graph
    x: Tensor
    c: Tensor
    grad: Tensor
    K: int

    def to(self, dtype: torch.dtype) -> Problem:
        """The same with x and grad in another type; c stays float32."""
        return replace(self, x=self.x.to(dtype), grad=self.grad.to(dtype))

    def on(self, device: torch.device) -> Problem:
        """The same on another device."""
        tensors = {name: getattr(self, name).to(device) for name in ("g", "x", "c", "grad")}
        return replace(self, **tensors)


def make_problem(g: uf.Graph, D: int, K: int) -> Problem:
    """Normal x and grad, c = 9 sigmoid(normal) as a trained model has it; always the same numbers."""
    random = torch.Generator().manual_seed(0)
    x, grad = torch.randn(2, g.num_nodes, D, generator=random)
    c = 9 * torch.randn(g.num_nodes, generator=random).sigmoid()
    return Problem(g, x, c, grad, K)


def reference_results(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """H, dX [N, D] and dC [N] in float64, by autograd through the plain reference.

    Columns of x never mix, so they are done in blocks: all at once would take K E D values.
    """
    g, K = problem.g, problem.K
    D = problem.x.shape[1]
    block = max(1, _REFERENCE_BYTES // (8 * max(g.num_edges, 1) * (K + 4)))
    h, grad_x, grad_c = [], [], torch.zeros(g.num_nodes, dtype=torch.float64, device=g.device)
    for start in range(0, D, block):
        part = slice(start, start + block)
        x = problem.x[:, part].double().requires_grad_()
        c = problem.c.double().requires_grad_()
        out = reference.ada_propagate(g, x, c, K)
        gx, gc = torch.autograd.grad(out, (x, c), problem.grad[:, part].double())
        h.append(out.detach())
        grad_x.append(gx)
        grad_c += gc
    return torch.cat(h, 1), torch.cat(grad_x, 1), grad_c

"""The layers of ugnn_fast.pyg against those of torch_geometric that they replace; D is the width, K the steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import ugnn_fast as uf
from bench.registry import OURS, Calls, Contender, Op, Problem, Results, Work, graph_work, node_problem
from ugnn_fast.datasets import Dataset

NEEDS = "torch_geometric"
# arguments of each layer beside its widths, with the name of the number of steps, if it has one
LAYERS: dict[str, tuple[dict[str, Any], str | None]] = {
    "APPNP": ({"alpha": 0.1}, "K"),
    "GCN2Conv": ({"alpha": 0.1, "theta": 0.5, "layer": 1}, None),
    "SGConv": ({}, "K"),
    "SSGConv": ({"alpha": 0.05}, "K"),
    "LabelPropagation": ({"alpha": 0.9}, "num_layers"),
}
# what SGConv and SSGConv keep with cached=True leaves no propagation to time
CAN_CACHE = ("APPNP", "GCN2Conv")


def make(data: Dataset, D: int, K: int) -> Problem:
    problem = node_problem(data.graph, D, K)
    return Problem(problem.g, (problem.x,), problem.grad, K)


def module_of(layer: str, package: Any, D: int, K: int, **options: Any) -> torch.nn.Module:
    """Always with the same parameters."""
    arguments, steps = LAYERS[layer]
    widths: dict[str, Any] = {"GCN2Conv": {"channels": D}}
    widths["SGConv"] = widths["SSGConv"] = {"in_channels": D, "out_channels": D}
    torch.manual_seed(0)
    of_steps = {} if steps is None else {steps: K}
    return getattr(package, layer)(**widths.get(layer, {}), **arguments, **of_steps, **options)


def calls_of(layer: str, module: torch.nn.Module, problem: Problem, edges: Tensor) -> Calls:
    """Gradients of x and of the parameters; LabelPropagation has none."""
    if layer == "LabelPropagation":
        return {"fwd": lambda: (module(problem.x, edges),)}
    parameters = list(module.parameters())
    copies = 2 if layer == "GCN2Conv" else 1
    x = problem.x.clone().requires_grad_()

    def fwd() -> Results:
        with torch.no_grad():
            return (module(*[problem.x] * copies, edges),)

    def fwdbwd() -> Results:
        out = module(*[x] * copies, edges)
        return out.detach(), *torch.autograd.grad(out, (x, *parameters), problem.grad)

    return {"fwd": fwd, "fwdbwd": fwdbwd}


def no_loops(g: uf.Graph) -> Tensor:
    return g.edge_index[:, g.edge_index[0] != g.edge_index[1]].contiguous()


def ours(layer: str) -> Callable[[Problem], Calls]:
    def made(problem: Problem) -> Calls:
        module = module_of(layer, uf.pyg, problem.x.shape[1], problem.K)
        return calls_of(layer, module, problem, no_loops(problem.g))

    return made


def theirs(layer: str, csr: bool = False, **options: Any) -> Callable[[Problem], Calls]:
    def made(problem: Problem) -> Calls:
        import torch_geometric.nn

        edges = no_loops(problem.g)
        if csr:
            ones, N = torch.ones(edges.shape[1]), problem.g.num_nodes
            matrix = torch.sparse_coo_tensor(edges.flip(0), ones, (N, N), check_invariants=False)
            edges = matrix.coalesce().to_sparse_csr()
        module = module_of(layer, torch_geometric.nn, problem.x.shape[1], problem.K, **options)
        return calls_of(layer, module, problem, edges)

    return made


def expected(layer: str) -> Callable[[Problem], Results]:
    """Of torch_geometric's layer, in float64."""

    def made(problem: Problem) -> Results:
        import torch_geometric.nn

        module = module_of(layer, torch_geometric.nn, problem.x.shape[1], problem.K).double()
        exact = Problem(problem.g, (problem.x.double(),), problem.grad.double(), problem.K)
        return list(calls_of(layer, module, exact, no_loops(problem.g)).values())[-1]()

    return made


def work(layer: str) -> Callable[[Problem, str, int], Work]:
    def made(problem: Problem, mode: str, itemsize: int) -> Work:
        """As in `propagate`."""
        passes = (1 if LAYERS[layer][1] is None else problem.K) * (1 if mode == "fwd" else 2)
        return graph_work(problem, passes, 2 * passes, itemsize)

    return made


def _op(layer: str) -> Op:
    steps = 1 if LAYERS[layer][1] is None else 10 if layer in ("APPNP", "LabelPropagation") else 4
    modes = ("fwd",) if layer == "LabelPropagation" else ("fwd", "fwdbwd")
    contenders = [
        Contender(OURS, ours(layer), f"uf.pyg.{layer}", needs=NEEDS),
        Contender("pyg", theirs(layer), f"torch_geometric.nn.{layer}", needs=NEEDS),
        Contender("pyg csr", theirs(layer, csr=True), "the same on a torch.sparse CSR matrix", needs=NEEDS),
    ]
    if layer in CAN_CACHE:
        contenders.append(Contender("pyg cached", theirs(layer, cached=True), "the same, cached=True", needs=NEEDS))
    return Op(
        name=f"pyg.{layer}",
        what=f"the layer {layer} of torch_geometric; gradients of x and of its parameters",
        cases=(f"large_ogbn_arxiv:40:{steps}",),
        make=make,
        expected=expected(layer),
        work=work(layer),
        results=("H", "dX", "dParameter 1", "dParameter 2"),
        modes=modes,
        contenders=tuple(contenders),
    )


OPS = tuple(map(_op, LAYERS))

"""What a benchmark is made of: an operator has problems, contenders and a model of its work; OPS has all operators.

A contender makes, for one problem, a call per mode. "fwd" gives (result,), "fwdbwd" gives (result, gradients of the
inputs). What depends on the graph alone is made once, before timing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

import ugnn_fast as uf
from ugnn_fast._memory import free_bytes
from ugnn_fast.datasets import Dataset

Results = tuple[Tensor, ...]
Calls = dict[str, Callable[[], Results]]

MODES = ("fwd", "fwdbwd")
OURS = "ugnn_fast"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Largest relative error, |result - float64| / |float64|, that counts as right.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
# columns of the float64 reference are computed in blocks of about this size
_REFERENCE_BYTES = 2 << 30
# neighbour values of all steps from which on a few columns are checked
_CHECKED_VALUES = 1e8


@dataclass(frozen=True)
class Case:
    """An operator on a graph, with width D and K steps."""

    op: str
    graph: str
    D: int
    K: int

    def __str__(self) -> str:
        return f"{self.op} {self.graph}:{self.D}:{self.K}"


def parse_case(op: str, text: str) -> Case:
    """GRAPH:D:K."""
    try:
        graph, D, K = text.split(":")
        case = Case(op, graph, int(D), int(K))
    except ValueError:
        raise ValueError(f"a case must be GRAPH:D:K, got {text!r}") from None
    if case.D < 1 or case.K < 1:
        raise ValueError(f"a case must have D >= 1 and K >= 1, got {text!r}")
    return case


@dataclass(frozen=True)
class Problem:
    """Inputs of an operator that get gradients, first of them x; grad: of the result; dropout: of timed calls.

    checked: columns (or heads) that are compared with float64, the others have no gradient; None: all of them.
    """

    g: uf.Graph
    inputs: tuple[Tensor, ...]
    grad: Tensor
    K: int = 1
    dropout: float = 0.0
    features: Tensor | None = None  # sparse CSR
    data: Dataset | None = None
    checked: tuple[int, ...] | None = None

    @property
    def x(self) -> Tensor:
        return self.inputs[0]

    @property
    def c(self) -> Tensor:
        return self.inputs[1]

    def to(self, dtype: torch.dtype) -> Problem:
        """The same with x and grad in another type."""
        return replace(self, inputs=(self.x.to(dtype), *self.inputs[1:]), grad=self.grad.to(dtype))

    def on(self, device: torch.device) -> Problem:
        """The same on another device."""
        inputs = tuple(tensor.to(device) for tensor in self.inputs)
        return replace(self, g=self.g.to(device), inputs=inputs, grad=self.grad.to(device))


def node_problem(g: uf.Graph, D: int, K: int) -> Problem:
    """Normal x and grad, c = 9 sigmoid(normal) as a trained model has it; always the same numbers."""
    random = torch.Generator().manual_seed(0)
    x, grad = torch.randn(2, g.num_nodes, D, generator=random)
    c = 9 * torch.randn(g.num_nodes, generator=random).sigmoid()
    return Problem(g, (x, c), grad, K)


@dataclass(frozen=True)
class Gather:
    """Passes that sum, for each row, the rows of a table that its entries name: rowptr [N + 1], col [E]."""

    rowptr: Tensor
    col: Tensor
    table_rows: int
    width: int
    passes: int

    def bytes(self, itemsize: int) -> int:
        """If no row of the table is found in a cache: ids are 4 bytes, row pointers 8."""
        return self.passes * (len(self.col) * (self.width * itemsize + 4) + 8 * (len(self.rowptr) - 1))


@dataclass(frozen=True)
class Work:
    """The model of a call: its gathers, which are its bound too, and what it reads and writes in order beside them."""

    gathers: tuple[Gather, ...]
    streamed: int

    def bytes(self, itemsize: int) -> int:
        return self.streamed + sum(gather.bytes(itemsize) for gather in self.gathers)


def graph_work(problem: Problem, passes: int, streams: int, itemsize: int, extra: int = 0) -> Work:
    """Passes over the graph with rows as wide as those of x, and so many tables like x in or out."""
    g, width = problem.g, problem.x[0].numel()
    gather = Gather(g.rowptr, g.col, g.num_nodes, width, passes)
    return Work((gather,), streams * g.num_nodes * width * itemsize + extra)


Refuse = Callable[[Problem], str | None]


def never(problem: Problem) -> str | None:
    return None


@dataclass(frozen=True)
class Contender:
    """make(problem) -> calls; refuse(problem) -> why it cannot take part, or None."""

    name: str
    make: Callable[[Problem], Calls]
    what: str
    dtype: torch.dtype = torch.float32
    fused: bool = False  # a kernel of our own in another language, not a library's
    needs: str | None = None  # a package beside torch
    exact: bool = True  # gives the operator's results; others show what a part of the work costs
    compiled: bool = False  # by torch.compile, which takes long
    refuse: Refuse = never

    @property
    def label(self) -> str:
        return self.name if self.dtype == torch.float32 else f"{self.name} {dtype_name(self.dtype)}"

    @property
    def ours(self) -> bool:
        return self.name.split()[0] == OURS

    def why_not(self, problem: Problem) -> str | None:
        """Why it cannot take part: its package cannot be imported, or it refuses."""
        if self.needs is not None:
            try:
                importlib.import_module(self.needs)
            except Exception as error:  # a package built for another torch fails in its own way
                return f"{self.needs} cannot be imported: {' '.join(str(error).split())[:200]}"
        return self.refuse(problem)


@dataclass(frozen=True)
class Op:
    """An operator; results: names of the result and of the gradients."""

    name: str
    what: str
    cases: tuple[str, ...]  # GRAPH:D:K
    make: Callable[[Dataset, int, int], Problem]
    expected: Callable[[Problem], Results]  # in float64, without dropout
    work: Callable[[Problem, str, int], Work]  # of a mode, with items of so many bytes
    contenders: tuple[Contender, ...]
    results: tuple[str, ...] = ("H", "dX", "dC")
    modes: tuple[str, ...] = MODES
    apart: bool = False  # columns never mix: some of them can be checked alone
    by_name: dict[str, Contender] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.by_name.update({contender.label: contender for contender in self.contenders})

    def default_cases(self) -> list[Case]:
        return [parse_case(self.name, text) for text in self.cases]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def with_autograd(problem: Problem, function: Callable[..., Tensor]) -> Calls:
    """Calls of function(*inputs) -> result, differentiated by autograd."""
    leaves = [tensor.clone().requires_grad_() for tensor in problem.inputs]

    def fwd() -> Results:
        with torch.no_grad():
            return (function(*problem.inputs),)

    def fwdbwd() -> Results:
        result = function(*leaves)
        return result.detach(), *torch.autograd.grad(result, leaves, problem.grad)

    return {"fwd": fwd, "fwdbwd": fwdbwd}


def sampled(problem: Problem) -> Problem:
    """Of a large problem a few columns to check: float64 in plain torch would take minutes for all of them."""
    if problem.g.num_edges * problem.x[0].numel() * problem.K <= _CHECKED_VALUES:
        return problem
    last = problem.x.shape[1] - 1
    checked = tuple(sorted({0, last // 2, last}))
    grad = torch.zeros_like(problem.grad)
    grad[:, checked] = problem.grad[:, checked]
    return replace(problem, grad=grad, checked=checked)


def of_columns(tensor: Tensor, columns: tuple[int, ...] | None) -> Tensor:
    """The columns of [N, columns, ...]; all of them for None, and all of a tensor without."""
    return tensor if columns is None or tensor.dim() < 2 else tensor[:, columns]


def by_columns(reference: Callable[..., Tensor]) -> Callable[[Problem], Results]:
    """expected(problem) of reference(problem, *inputs), whose columns (or heads) never mix.

    They are done in blocks, as all at once would take K E D values: inputs [N, ...] of two and more dimensions are cut,
    gradients of others are summed.
    """

    def expected(problem: Problem) -> Results:
        cut = tuple(of_columns(tensor, problem.checked) for tensor in (*problem.inputs, problem.grad))
        problem = replace(problem, inputs=cut[:-1], grad=cut[-1])
        per_column = 8 * max(problem.g.num_edges, 1) * (problem.K + 4) * problem.x[0, 0].numel()
        block = max(1, _REFERENCE_BYTES // per_column)
        parts = []
        for start in range(0, problem.x.shape[1], block):
            here = slice(start, start + block)
            inputs = [
                (tensor[:, here] if tensor.dim() > 1 else tensor).detach().double().requires_grad_()
                for tensor in problem.inputs
            ]
            result = reference(problem, *inputs)
            gradients = torch.autograd.grad(result, inputs, problem.grad[:, here].double())
            parts.append((result.detach(), *gradients))
        return tuple(torch.cat(t, 1) if t[0].dim() > 1 else sum(t) for t in zip(*parts, strict=True))

    return expected


def refuse_messages(problem: Problem) -> str | None:
    """For contenders that keep one message [E, D] per step for backward, and have a few in work."""
    return too_large(4 * problem.g.num_edges * problem.x[0].numel() * (problem.K + 4), problem.x.device)


def too_large(needed: int, device: torch.device) -> str | None:
    """What to say if so many bytes are not free."""
    free = free_bytes(device)
    return f"it needs about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free" if needed > 0.8 * free else None


def errors(
    op_results: tuple[str, ...], calls: Calls, expected: Results, checked: tuple[int, ...] | None = None
) -> dict[str, float]:
    """Relative errors against float64 of everything that the calls give, or of the checked columns."""
    found = {}
    for mode, call in calls.items():
        results = call()
        if len(results) not in (1, len(expected)):  # the result alone, or all
            raise ValueError(f"{mode} must give {len(expected)} results, got {len(results)}")
        for name, result, right in zip(op_results, results, expected, strict=False):
            result = of_columns(result, checked).double()
            found[f"{name} of {mode}"] = float((result - right).norm() / right.norm().clamp(min=1e-30))
    return found


def why_wrong(contender: Contender, found: dict[str, float]) -> str | None:
    """The results that are off, or None."""
    tolerance = TOLERANCE[contender.dtype]
    # not (error <= tolerance): nan is wrong too
    wrong = [f"{name} off by {error:.1e}" for name, error in found.items() if not error <= tolerance]
    return f"{', '.join(wrong)} (at most {tolerance:.0e})" if wrong else None


def operators() -> dict[str, Op]:
    """All operators by name."""
    from bench import ops

    return {op.name: op for op in ops.all_ops()}


def compiled(make: Callable[[Problem], Callable[..., Any]]) -> Callable[[Problem], Calls]:
    """A contender whose function, make(problem) -> function(*inputs), is compiled by torch."""

    def made(problem: Problem) -> Calls:
        return with_autograd(problem, torch.compile(make(problem)))

    return made

"""The contenders: each makes, for one problem, a call per mode that computes everything from x and c.

Modes: "fwd" gives H, "fwdbwd" gives (H, dX, dC). What depends on the graph alone is made once, before timing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import ugnn_fast as uf
from bench.baselines.scipy_csr import ScipyCsr
from bench.baselines.structure import Structure
from bench.baselines.torch_csr import TorchCsr
from bench.baselines.torch_csr_factored import TorchCsrFactored
from bench.baselines.torch_csr_plain import TorchCsrPlain
from bench.graphs import Problem
from ugnn_fast import reference
from ugnn_fast._memory import free_bytes

Calls = dict[str, Callable[[], Any]]

MODES = ("fwd", "fwdbwd")
OURS = "ugnn_fast"

# Largest relative error, |result - float64| / |float64|, of H, dX and dC that counts as right.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class Contender:
    """make(problem) -> calls; refuse(problem) -> why it cannot take part, or None."""

    name: str
    make: Callable[[Problem], Calls]
    what: str
    dtype: torch.dtype = torch.float32
    tuned: bool = False  # by us, with what this package knows: more than a peer that one finds or writes first
    refuse: Callable[[Problem], str | None] = lambda problem: None

    @property
    def label(self) -> str:
        return self.name if self.dtype == torch.float32 else f"{self.name} {dtype_name(self.dtype)}"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def with_autograd(problem: Problem, propagate: Callable[[Tensor, Tensor], Tensor]) -> Calls:
    x, c = problem.x.clone().requires_grad_(), problem.c.clone().requires_grad_()

    def fwd() -> Tensor:
        with torch.no_grad():
            return propagate(problem.x, problem.c)

    def fwdbwd() -> tuple[Tensor, ...]:
        h = propagate(x, c)
        return h.detach(), *torch.autograd.grad(h, (x, c), problem.grad)

    return {"fwd": fwd, "fwdbwd": fwdbwd}


def ours(backend: str) -> Callable[[Problem], Calls]:
    """The backend by name: "auto" would time the reference where nothing was compiled."""

    def make(problem: Problem) -> Calls:
        g, K = problem.g, problem.K
        return with_autograd(problem, lambda x, c: uf.ada_propagate(g, x, c, K, backend=backend, memory="save"))

    return make


def torch_scatter(problem: Problem) -> Calls:
    return with_autograd(problem, lambda x, c: reference.ada_propagate(problem.g, x, c, problem.K))


def torch_scatter_refuses(problem: Problem) -> str | None:
    """One message [E, D] per step is kept for backward, and a few are in work."""
    needed = 4 * problem.g.num_edges * problem.x.shape[1] * (problem.K + 4)
    free = free_bytes(problem.x.device)
    if needed > 0.8 * free:
        return f"it needs about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
    return None


def torch_csr(function: type[torch.autograd.Function]) -> Callable[[Problem], Calls]:
    def make(problem: Problem) -> Calls:
        structure = Structure(problem.g)
        return with_autograd(problem, lambda x, c: function.apply(structure, x, c, problem.K))

    return make


def _scipy(problem: Problem) -> Calls:
    csr = ScipyCsr(problem.g)
    x, c, grad, K = problem.x.numpy(), problem.c.numpy(), problem.grad.numpy(), problem.K
    return {
        "fwd": lambda: torch.from_numpy(csr.forward(x, c, K)),
        "fwdbwd": lambda: tuple(map(torch.from_numpy, csr.forward_backward(x, c, K, grad))),
    }


_ALL = (
    Contender(OURS, ours("cpu"), 'uf.ada_propagate, memory="save"'),
    Contender(
        "torch_scatter",
        torch_scatter,
        "gather and index_add, torch's autograd",
        refuse=torch_scatter_refuses,
    ),
    Contender("torch_csr_plain", torch_csr(TorchCsrPlain), "stored edge weights, MKL products, backward by hand"),
    Contender(
        "torch_csr", torch_csr(TorchCsr), "the same, tuned: memory reused, dC by MKL's sampled product", tuned=True
    ),
    Contender("torch_csr_factored", torch_csr(TorchCsrFactored), "our factorisation with MKL products", tuned=True),
    Contender("scipy", _scipy, "csr @ dense; gradients by our factorisation; one thread"),
    Contender(OURS, ours("cpu"), "bfloat16 tables, float32 sums", dtype=torch.bfloat16),
)
CONTENDERS = {contender.label: contender for contender in _ALL}


def errors(contender: Contender, calls: Calls, expected: tuple[Tensor, Tensor, Tensor]) -> dict[str, float]:
    """Relative errors of H (of both modes), dX and dC against float64."""
    h, *gradients = calls["fwdbwd"]()
    results = {"H": calls["fwd"](), "H with autograd": h, "dX": gradients[0], "dC": gradients[1]}
    wanted = (expected[0], *expected)
    return {
        name: float((result.double() - right).norm() / right.norm())
        for (name, result), right in zip(results.items(), wanted, strict=True)
    }


def why_wrong(contender: Contender, found: dict[str, float]) -> str | None:
    """The results that are off, or None."""
    tolerance = TOLERANCE[contender.dtype]
    # not (error <= tolerance): nan is wrong too
    wrong = [f"{name} off by {error:.1e}" for name, error in found.items() if not error <= tolerance]
    return f"{', '.join(wrong)} (at most {tolerance:.0e})" if wrong else None


def model_bytes(mode: str, N: int, E: int, D: int, K: int, itemsize: int) -> int:
    """Bytes that K steps move if no neighbour row is found in a cache; the same model for every contender.

    A pass gathers E rows of D values, reads E column ids (4 bytes) and N row pointers (8). Beside it stream
      forward             2 N D: X in, H out;
      forward, gradients  3 N D: s out too;
      backward            5 N D: u and s in, dX in and out, the next gradient out.
    """
    one_pass = E * (D * itemsize + 4) + 8 * N
    stream = N * D * itemsize
    if mode == "fwd":
        return K * (one_pass + 2 * stream)
    return K * (2 * one_pass + 8 * stream)

"""What tests and benchmarks share: sample graphs, a seeded choice of cases, comparisons.

An operator is compared with a statement: the same mathematics in a few lines of plain torch. The statement
runs twice, in float64 (exact) and in the operator's own dtype (plain); the operator may be off by twice what
plain torch is off, plus a few units in the last place.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ugnn_fast._backend import _interpreting, backends
from ugnn_fast.graph import Graph

# product() multiplies by a dense matrix up to this N
_DENSE = 512
# the row of a hub is one long sum and one draw of rounding, not the worst of many
HUB_TOLERANCE = {"factor": 8.0, "units": 64.0}
# errors of so many numbers can be compared; of fewer, chance decides
FEW = 16
# one, two, a few columns; whole vectors, and what is left over beside one or several of them
WIDTHS = (1, 2, 3, 7, 8, 9, 16, 33, 40, 64, 130)
# for Triton, whose columns go by powers of two: whole blocks, parts of one, several, of whole vectors and broken ones
TRITON_WIDTHS = (1, 3, 8, 16, 33, 40, 64, 136)
# operators of Triton in whose cases all graphs meet all widths, together
_GRAPH_BY_WIDTH = ("ada_propagate", "propagate", "neighbor_var", "ada_c", "denoising_energy")
# whether Triton gets the whole product of graph, width, dtype, operator and mode, not a pairwise cover; see Makefile
whole_product = False


@functools.cache
def sample_graphs() -> dict[str, Graph]:
    """Named graphs: the shapes that break kernels, small enough for a dense float64 matrix, and one hub.

    Those called small_* stand for larger ones in Triton's interpreter.
    """
    rng = np.random.default_rng(0)
    make = functools.partial(Graph.from_edge_index, symmetrize=True)

    def pairs(N: int, M: int) -> np.ndarray:
        return rng.integers(0, N, (2, M))

    def power_law(N: int) -> np.ndarray:
        # each node joins two nodes that already have many neighbours
        ends = [0, 1]
        for i in range(2, N):
            for j in rng.choice(ends, 2):
                ends += [i, int(j)]
        return np.array(ends).reshape(-1, 2).T

    nodes = np.arange(20)
    few = pairs(30, 60)
    part = pairs(12, 30)

    def spokes(N: int, M: int) -> np.ndarray:
        return np.concatenate([np.stack([np.zeros(N, np.int64), np.arange(1, N + 1)]), pairs(N + 1, M)], axis=1)

    hub = spokes(20000, 4000)
    graphs = {
        "empty": make([[], []], 0),
        "one_node": make([[], []], 1),
        "isolated": make([[1, 4], [4, 7]], 9),
        "star": make([[0] * 33, list(range(1, 34))]),
        "chain": make([nodes[:-1], nodes[1:]]),
        "power_law": make(power_law(150)),
        "two_components": make(np.concatenate([part, part + 12], axis=1), 24),
        "duplicates": make(np.concatenate([few, few, few[::-1]], axis=1).astype(np.int32), 30),
        "weighted": make(few, 30, rng.uniform(0.1, 3, 60)),
        "weighted_no_self_loops": make(few[:, :20], 30, rng.uniform(0.1, 3, 20), self_loops=False),
        "no_self_loops": make(few[:, :25], 30, self_loops=False),
        "no_edges": make([[], []], 5, self_loops=False),
        "hub": make(hub),
        "weighted_hub": make(hub, edge_weight=rng.uniform(0.1, 3, hub.shape[1])),
    }
    small = spokes(300, 30)
    return graphs | {
        "small_power_law": make(power_law(64)),
        "small_hub": make(small, edge_weight=rng.uniform(0.1, 3, small.shape[1]), self_loops=False),
    }


def entries(g: Graph, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Row i, column j and weight a_ij of every stored entry, [E] each."""
    i, j = g.edge_index
    return i, j, torch.ones(g.num_edges, dtype=dtype) if g.weight is None else g.weight.to(dtype)


def degrees(g: Graph, dtype: torch.dtype = torch.float64) -> Tensor:
    """d_i = sum_j a_ij, [N]."""
    i, _, a = entries(g, dtype)
    return torch.zeros(g.num_nodes, dtype=dtype).index_add(0, i, a)


def product(g: Graph, values: Tensor, h: Tensor) -> Tensor:
    """M h for h [N, D], where M has `values` [E] at the stored entries; differentiable in both."""
    i, j = g.edge_index
    if g.num_nodes <= _DENSE:
        return torch.zeros(g.num_nodes, g.num_nodes, dtype=values.dtype).index_put((i, j), values) @ h
    return torch.zeros_like(h).index_add(0, i, values[:, None] * h[j])


def strided(x: Tensor) -> Tensor:
    """The same values, not contiguous: every second one in memory."""
    return torch.stack([x, -x], dim=-1)[..., 0]


def pairwise(
    axes: dict[str, Sequence[Any]],
    valid: Callable[..., bool] = lambda **case: True,
    seed: int = 0,
    asked: Callable[..., bool] = lambda **pair: True,
) -> list[dict[str, Any]]:
    """Cases in which every two values of different axes that are asked for meet, if a valid case can have both."""
    rng = random.Random(seed)
    values = {name: list(axis) for name, axis in axes.items()}
    missing = {
        ((a, k), (b, m))
        for a, b in itertools.combinations(values, 2)
        for k in range(len(values[a]))
        for m in range(len(values[b]))
        if asked(**{a: values[a][k], b: values[b][m]})
    }
    cases = []
    while missing:
        wanted = min(missing)
        best: dict[str, int] = {}
        covered: set = set()
        for _ in range(40):
            case = {name: rng.randrange(len(axis)) for name, axis in values.items()} | dict(wanted)
            if not valid(**{name: values[name][k] for name, k in case.items()}):
                continue
            gain = missing & set(itertools.combinations(case.items(), 2))
            if len(gain) > len(covered):
                best, covered = case, gain
        if best:
            cases.append({name: values[name][k] for name, k in best.items()})
        missing -= covered | {wanted}
    return cases


def product_of(
    axes: dict[str, Sequence[Any]], drawn: dict[str, Sequence[Any]], valid: Callable[..., bool], seed: int = 0
) -> list[dict[str, Any]]:
    """Every combination of the axes that can be valid, each with one random value of every drawn axis."""
    rng = random.Random(seed)
    cases = []
    for values in itertools.product(*axes.values()):
        for _ in range(100):
            case = dict(zip(axes, values, strict=True)) | {name: rng.choice(axis) for name, axis in drawn.items()}
            if valid(**case):
                cases.append(case)
                break
    return cases


def operator_cases(
    op: str,
    valid: Callable[..., bool] = lambda **case: True,
    modes: Sequence[str] = (),
    largest: int = 12040,
    **axes: Sequence[Any],
) -> list[dict[str, Any]]:
    """backend_cases() over sample graphs, widths, dtypes, replicas, layouts and the given axes.

    The reference has no code that depends on widths or hubs, and gets few of them. Hubs stay narrow. largest: values of
    a table in the cover of Triton, whose interpreter is slow; in the whole product larger ones come without replicas,
    and with two steps at most.
    """
    graphs = sample_graphs()

    def small_enough(graph: str, D: int, R: int | None, backend: str, **case: Any) -> bool:
        width = D * (R or 1)
        if backend == "triton":
            values = graphs[graph].num_nodes * width
            small = values <= (1000 if whole_product else largest)
            small = small or (whole_product and R != 3 and case.get("K", 1) <= 2)
        else:
            small = "hub" not in graph or (D <= 40 and R is None)
        return small and valid(graph=graph, D=D, R=R, **case)

    large = [name for name in graphs if not name.startswith("small")]
    sizes: dict[str, dict[str, Sequence[Any]]] = {
        "cpu": {"graph": large, "D": WIDTHS},
        "reference": {"graph": [name for name in large if "hub" not in name], "D": (1, 7)},
        "triton": {
            "graph": [name for name, g in graphs.items() if g.num_nodes <= 64 or name.startswith("small")],
            "D": TRITON_WIDTHS,
        },
    }
    shared = {"R": (None, 1, 3), "layout": (torch.Tensor.contiguous, strided), **axes}
    return backend_cases(op, {name: own | shared for name, own in sizes.items()}, small_enough, modes)


def backend_cases(
    op: str, axes: dict[str, dict[str, Sequence[Any]]], valid: Callable[..., bool], modes: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """pairwise() over the dtypes of a backend and its `axes`, first the graph and the width, for each backend.

    In a process with Triton's interpreter the cases are those of backend triton, none if it lacks the operator. There
    graphs and widths meet in the cases of several operators together; with whole_product graph, width, dtype and the
    axes called `modes` are multiplied, and others drawn.
    """
    if not _interpreting():
        dtypes = (torch.float32, torch.float64, torch.bfloat16)
        each = ({"backend": [name], **axes[name], "dtype": dtypes} for name in ("cpu", "reference"))
        return [case for own in each for case in pairwise(own, valid)]
    if op not in backends()["triton"].ops:
        return []
    own = {"backend": ["triton"], **axes["triton"], "dtype": (torch.float32, torch.float16, torch.bfloat16)}
    _, graph, D, *_ = own
    if whole_product:
        multiplied = {name: own[name] for name in ("backend", graph, D, "dtype", *modes)}
        return product_of(multiplied, {name: axis for name, axis in own.items() if name not in multiplied}, valid)

    sharing = [name for name in _GRAPH_BY_WIDTH if name in backends()["triton"].ops]

    def asked(**pair: Any) -> bool:
        if set(pair) != {"graph", "D"}:
            return True
        turn = (own["graph"].index(pair["graph"]) + own["D"].index(pair["D"])) % len(sharing)
        return op in sharing and turn == sharing.index(op)

    return pairwise(own, valid, asked=asked)


def case_id(case: dict[str, Any]) -> str:
    """A readable name of a case: cpu-star-D33-float32."""
    words = []
    for name, value in case.items():
        number = isinstance(value, (int, float)) or value is None
        words.append(f"{name}{value}" if number else getattr(value, "__name__", str(value)))
    return "-".join(words).replace("torch.", "")


def assert_no_worse_than_torch(
    got: Tensor,
    plain: Tensor,
    exact: Tensor,
    *,
    dtype: torch.dtype | None = None,
    factor: float = 2.0,
    units: float = 4.0,
    name: str = "result",
) -> None:
    """|got - exact| <= factor |plain - exact| + units eps max(1, |exact|), by element and as a vector.

    exact is the float64 result, plain that of plain torch in the same dtype. |.| is the largest element, and
    the root mean square, so that neither one sum can be far off nor all sums a little. eps is that of dtype,
    the type in which values are stored (by default that of got). Where exact is not finite, got is the same.
    """
    if got.shape != exact.shape:
        raise AssertionError(f"{name} must be {list(exact.shape)}, got {list(got.shape)}")
    if exact.dtype != torch.float64:
        raise TypeError(f"exact must be float64, got {exact.dtype}")
    finite = exact.isfinite()
    g, p, e = (t.detach().double() for t in (got, plain, exact))
    if not torch.equal(g[~finite].nan_to_num(0.5), e[~finite].nan_to_num(0.5)):
        raise AssertionError(
            f"{name} must be {e[~finite][:5].tolist()} at {_first(~finite)}, got {g[~finite][:5].tolist()}"
        )
    if not g[finite].isfinite().all():
        bad = finite & ~g.isfinite()
        raise AssertionError(
            f"{name} must be finite, got {g[bad][0].item()} at {_first(bad)}, expected {e[bad][0].item()}"
        )
    off, off_plain = torch.where(finite, g - e, 0).abs(), torch.where(finite, p - e, 0).abs().nan_to_num()
    e = torch.where(finite, e, 0)
    if e.numel() == 0:
        return
    dtype = dtype or got.dtype
    # both sides are float64 then, and differ by the order of their sums
    unit = torch.finfo(dtype).eps * (units if dtype != torch.float64 else max(units, 500.0))
    for measure, of in (
        ("largest", lambda t: t.abs().max()),
        ("root mean square", lambda t: t.square().mean().sqrt()),
    ):
        error, allowed = of(off).item(), (factor * of(off_plain) + unit * of(e).clamp(min=1)).item()
        if error > allowed:
            at = tuple(torch.unravel_index(off.argmax(), off.shape))
            raise AssertionError(
                f"{name}: {measure} error {error:.3g}, allowed {allowed:.3g} "
                f"(plain torch {of(off_plain):.3g}); worst at {[int(k) for k in at]}: "
                f"got {g[at]:.8g}, exact {e[at]:.8g}, plain torch {p[at]:.8g}; "
                f"as vectors: norm ratio {_ratio(g, e):.6f}, cosine {_cosine(g, e):.6f}"
            )


def _first(mask: Tensor) -> list[int]:
    return mask.nonzero()[0].tolist()


def _ratio(got: Tensor, exact: Tensor) -> float:
    return (got.nan_to_num().norm() / exact.norm()).item()


def _cosine(got: Tensor, exact: Tensor) -> float:
    return torch.nn.functional.cosine_similarity(got.nan_to_num().flatten(), exact.flatten(), dim=0).item()


def check_operator(
    operator: Callable[..., Tensor],
    statement: Callable[..., Tensor],
    inputs: dict[str, Tensor],
    *,
    wrt: Sequence[str] = (),
    dtype: torch.dtype | None = None,
    **tolerance: float,
) -> None:
    """operator(**inputs), and its gradients in the inputs named by wrt, are no worse than the statement.

    statement(store=, **inputs) computes in the dtype of its inputs and calls store(h) on values that a kernel
    would store: for 16-bit types store rounds, and everything else is computed in float32. dtype: by default
    that of inputs["x"]. tolerance: factor and units of assert_no_worse_than_torch. A gradient of fewer than FEW numbers
    is taken for several cotangents: one sum that happens to cancel says neither how large its terms are nor what
    rounding does to such a sum.
    """
    dtype = dtype or inputs["x"].dtype
    computing = torch.float64 if dtype == torch.float64 else torch.float32

    few = min((inputs[name].numel() for name in wrt if inputs[name].numel()), default=FEW)
    cotangents = -(-FEW // few)

    def run(function: Callable[..., Tensor], to: Callable[[Tensor], Tensor], **options: Any) -> list[Tensor]:
        """The result, and the gradients for each cotangent, stacked."""
        leaves = {name: to(value.detach()).requires_grad_(name in wrt) for name, value in inputs.items()}
        out = function(**leaves, **options)
        wanted = [leaves[name] for name in wrt]
        if not out.requires_grad:
            return [out, *(leaf.new_zeros(cotangents, *leaf.shape) for leaf in wanted)]
        generator = torch.Generator().manual_seed(0)
        grads = []
        for _ in range(cotangents):
            # the same for all, and of values that every dtype has
            cotangent = torch.randn(out.shape, generator=generator).bfloat16().to(out.dtype)
            grads.append(torch.autograd.grad(out, wanted, cotangent, materialize_grads=True, retain_graph=True))
        return [out.detach(), *map(torch.stack, zip(*grads, strict=True))]

    got = run(operator, lambda value: value.clone())
    exact = run(statement, lambda value: value.double(), store=lambda value: value)
    plain = run(statement, lambda value: value.to(computing), store=lambda value: value.to(dtype).to(computing))
    for name, g, p, e in zip(("result", *wrt), got, plain, exact, strict=True):
        if name in wrt and g.dtype != inputs[name].dtype:
            raise AssertionError(f"gradient of {name} must be {inputs[name].dtype}, got {g.dtype}")
        text = f"gradient of {name}" if name in wrt else name
        assert_no_worse_than_torch(g, p, e, dtype=dtype, name=text, **tolerance)

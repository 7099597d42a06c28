"""propagate in all its modes against the recurrence in dense float64, forward and gradients."""

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast.testing import (
    HUB_TOLERANCE,
    case_id,
    check_operator,
    degrees,
    entries,
    operator_cases,
    product,
    sample_graphs,
)

pytestmark = pytest.mark.needs("propagate")
GRAPHS = sample_graphs()
COEFFICIENTS = ("agg", "skip", "keep", "prev")


def statement(*, g, K, x, norm="sym", out="last", clamp=None, store=lambda h: h, **given):
    """H_{k+1} = clamp(keep H_k + agg left (A o W) right H_k + skip X + prev H_{k-1}), H_0 = X, H_{-1} = 0."""
    if x.dim() == 3:
        runs = []
        for r in range(x.shape[1]):
            own = {
                n: v[:, r] if n == "c" and isinstance(v, torch.Tensor) and v.dim() == 2 else v for n, v in given.items()
            }
            runs.append(statement(g=g, K=K, x=x[:, r], norm=norm, out=out, clamp=clamp, store=store, **own))
        return torch.stack(runs, dim=-2)
    i, j, w = entries(g, x.dtype)
    d = degrees(g, x.dtype)
    inverse = torch.where(d > 0, 1 / d, 0)
    left = right = torch.ones_like(d)
    if "left" in given or "right" in given:
        left, right = given.get("left", left), given.get("right", right)
    elif norm == "sym":
        left = right = inverse.sqrt()
    elif norm == "row":
        left = inverse
    if "c" in given:
        c = torch.as_tensor(given["c"], dtype=x.dtype).expand(g.num_nodes)
        w = w * (c[i] + c[j])
    elif "edge_value" in given:
        w = w * given["edge_value"]
    M = left[i] * w * right[j]

    def at(name, k):
        value = given.get(name, 1.0 if name == "agg" else 0.0)
        if not isinstance(value, torch.Tensor) or value.dim() == 0:
            return value
        value = value[k] if value.dim() == 2 else value
        return value if value.shape == (1,) else value[:, None]

    states = [x]
    for k in range(K):
        h = at("keep", k) * states[k] + at("agg", k) * product(g, M, states[k]) + at("skip", k) * x
        if k > 0:
            h = h + at("prev", k) * states[k - 1]
        states.append(store(h if clamp is None else h.clamp(*clamp)))
    if out == "all":
        return torch.stack(states)
    return sum(y * h for y, h in zip(given["gamma"], states, strict=True)) if out == "sum" else states[-1]


def random_input(form, N, K, dtype):
    """A coefficient of one of the allowed shapes, of size about 1/2."""
    shape = {"number": (), "scalar": (), "node": (N,), "step": (K, 1), "step_node": (K, N)}[form]
    return torch.rand(shape, dtype=dtype) - 0.25


FORMS = ("number", "scalar", "node", "step", "step_node")
CLAMPS = (None, (-0.5, 0.75), (0.1, None), (None, 0.2))


def valid(graph, R, W, K, dtype, clamp, wrt, **_):
    if W == "c_replica" and R is None:
        return False
    # a rounded value may fall on the other side of a bound: no gradient to compare
    if clamp is not None and wrt != "" and (dtype in (torch.bfloat16, torch.float16) or "hub" in graph):
        return False
    return "hub" not in graph or K <= 3


CASES = operator_cases(
    "propagate",
    valid,
    modes=("W", "out"),
    W=("one", "c_number", "c_node", "c_replica", "edge_value"),
    norm=("sym", "row", "none", "left", "right", "both"),
    K=(0, 1, 2, 3, 5),
    out=("last", "sum", "all"),
    clamp=CLAMPS,
    wrt=("", "x", "all"),
    **dict.fromkeys(COEFFICIENTS, FORMS),
)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_statement(case, use_backend):
    backend = use_backend(case["backend"])
    g, R, K, D = GRAPHS[case["graph"]], case["R"], case["K"], case["D"]
    N, dtype, W = g.num_nodes, case["dtype"], case["W"]
    number = torch.float64 if dtype == torch.float64 else torch.float32
    torch.manual_seed(1)
    inputs = {"x": torch.randn((N, D) if R is None else (N, R, D)).to(dtype)}
    for name in COEFFICIENTS:
        inputs[name] = random_input(case[name], N, K, number)
    if W != "one" and W != "edge_value":
        inputs["c"] = torch.rand({"c_number": (), "c_node": (N,), "c_replica": (N, R)}[W], dtype=number)
    elif W == "edge_value":
        inputs["edge_value"] = torch.randn(g.num_edges, dtype=number)
    for side in ("left", "right"):
        if case["norm"] in (side, "both"):
            inputs[side] = torch.rand(N, dtype=number) / max(1.0, g.degree.max().item() if N else 1.0)
    if case["out"] == "sum":
        inputs["gamma"] = torch.randn(K + 1, dtype=number)
    options = {"out": case["out"], "clamp": case["clamp"]}
    if case["norm"] in ("sym", "row", "none"):
        options["norm"] = case["norm"]
    numbers = {name for name in COEFFICIENTS if case[name] == "number"} | ({"c"} if W == "c_number" else set())
    layout = case["layout"]

    def operator(**tensors):
        given = {name: t.item() if name in numbers else layout(t) for name, t in tensors.items()}
        return uf.propagate(g, steps=K, backend=backend, **given, **options)

    wrt = {"": [], "x": ["x"], "all": [name for name in inputs if name not in numbers]}[case["wrt"]]
    tolerance = HUB_TOLERANCE if "hub" in case["graph"] else {"factor": 3, "units": 8}
    check_operator(operator, lambda **t: statement(g=g, K=K, **options, **t), inputs, wrt=wrt, **tolerance)


@pytest.mark.float64
@pytest.mark.parametrize("coefficient", COEFFICIENTS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("out", ("last", "sum", "all"))
def test_one_coefficient_at_a_time(coefficient, form, out, backend):
    g, K = GRAPHS["weighted"], 4
    torch.manual_seed(0)
    inputs = {"x": torch.randn(g.num_nodes, 3, dtype=torch.float64)}
    if out == "sum":
        inputs["gamma"] = torch.randn(K + 1, dtype=torch.float64)
    inputs[coefficient] = random_input(form, g.num_nodes, K, torch.float64)

    def operator(**t):
        if form == "number":
            t[coefficient] = t[coefficient].item()
        return uf.propagate(g, steps=K, out=out, backend=backend, **t)

    wrt = [name for name in inputs if name != coefficient or form != "number"]
    check_operator(operator, lambda **t: statement(g=g, K=K, out=out, **t), inputs, wrt=wrt)


@pytest.mark.parametrize("clamp", ((0.0, 1.0), (None, 1.0), (0.0, None), (0.5, 0.5), (-0.0, float("inf"))))
def test_gradient_passes_at_the_bounds(clamp, backend):
    # values and sums are exact in float32, so that many results fall on a bound, as torch.clamp sees it
    g = GRAPHS["chain"]
    torch.manual_seed(0)
    x = torch.randint(-4, 9, (g.num_nodes, 6)) / 4
    inputs = {"x": x, "agg": torch.tensor(0.5), "keep": torch.tensor(0.5)}

    def of(function, **options):
        leaves = {name: t.clone().requires_grad_() for name, t in inputs.items()}
        out = function(**leaves, norm="none", clamp=clamp, **options)
        return out, *torch.autograd.grad(out.sum(), list(leaves.values()))

    expected = of(lambda **t: statement(g=g, K=2, **t))
    got = of(lambda **t: uf.propagate(g, steps=2, backend=backend, **t))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.float64
@pytest.mark.parametrize("D", (1, 3, 9))
@pytest.mark.parametrize("out", ("last", "sum", "all"))
@pytest.mark.parametrize("W", ("c", "edge_value"))
def test_gradcheck(D, out, W, backend):
    g, K = GRAPHS["weighted_no_self_loops"], 3
    N = g.num_nodes
    torch.manual_seed(0)
    names = ["x", "agg", "skip", "keep", "prev", "left", "right", W] + (["gamma"] if out == "sum" else [])
    shapes = {
        "x": (N, 2, D),
        "agg": (K, N),
        "skip": (N,),
        "keep": (K, 1),
        "prev": (),
        "left": (N,),
        "right": (N,),
    }
    shapes |= {"c": (N, 2), "edge_value": (g.num_edges,), "gamma": (K + 1,)}
    leaves = [torch.rand(shapes[name], dtype=torch.float64, requires_grad=True) for name in names]

    def function(*tensors):
        return uf.propagate(g, steps=K, out=out, backend=backend, **dict(zip(names, tensors, strict=True)))

    assert torch.autograd.gradcheck(function, leaves, fast_mode=True)


@pytest.mark.float64
@pytest.mark.parametrize("options", (
    {},
    {"norm": "row"},
    {"agg": 0.5, "skip": 0.1, "keep": 0.2, "prev": -0.3},
    {"out": "all", "norm": "row"},
    {"clamp": (-1.0, 1.0), "skip": 0.5},
    {"agg": "node", "c": "node", "norm": "none"},
    {"edge_value": "edge"},
    {"out": "sum", "gamma": "steps"},
), ids=str)  # fmt: skip
def test_double_backward_in_x(options, backend):
    g, K = GRAPHS["weighted"], 2
    torch.manual_seed(0)
    sizes = {"node": g.num_nodes, "edge": g.num_edges, "steps": K + 1}
    values = {
        k: torch.rand(sizes[v], dtype=torch.float64) if v in sizes else v for k, v in options.items() if k != "clamp"
    }
    values |= {k: v for k, v in options.items() if k == "clamp"}
    x = torch.randn(g.num_nodes, 2, dtype=torch.float64, requires_grad=True)
    function = lambda x: uf.propagate(g, x**2, K, backend=backend, **values) ** 2  # noqa: E731
    assert torch.autograd.gradgradcheck(function, x, fast_mode=True)


@pytest.mark.parametrize("argument", ("c", "agg", "skip", "gamma", "left", "edge_value"))
def test_double_backward_in_anything_else_is_refused(argument, cpu):
    g = GRAPHS["star"]
    size = {"gamma": 3, "edge_value": g.num_edges}.get(argument, g.num_nodes)
    value = torch.rand(size, requires_grad=True)
    options = {"out": "sum"} if argument == "gamma" else {}
    x = torch.randn(g.num_nodes, 3, requires_grad=True)
    h = uf.propagate(g, x, 2, **{argument: value}, **options)
    with pytest.raises(RuntimeError, match=r"propagate: double backward is offered for x alone.*reference"):
        (grad,) = torch.autograd.grad(h.square().sum(), value, create_graph=True)
        grad.sum().backward()


def test_edge_value_follows_the_stored_entries(backend):
    g = GRAPHS["duplicates"]
    torch.manual_seed(0)
    value, x = torch.randn(g.num_edges), torch.randn(g.num_nodes, 3)
    dense = torch.zeros(g.num_nodes, g.num_nodes)
    for (i, j), v in zip(g.edge_index.T.tolist(), value.tolist(), strict=True):
        dense[i, j] = v
    torch.testing.assert_close(uf.propagate(g, x, 1, norm="none", edge_value=value, backend=backend), dense @ x)


def test_two_forwards_before_one_backward(backend):
    g = GRAPHS["small_power_law"]
    x, c = torch.randn(g.num_nodes, 5, requires_grad=True), torch.rand(g.num_nodes, requires_grad=True)

    def loss(s):
        return uf.propagate(g, s * x, 3, c=s * c, keep=0.5, out="all", backend=backend).square().sum()

    both = torch.autograd.grad(loss(1.0) + loss(0.5), (x, c))
    alone = [torch.autograd.grad(loss(s), (x, c)) for s in (1.0, 0.5)]
    for got, one, two in zip(both, *alone, strict=True):
        torch.testing.assert_close(got, one + two)


@pytest.mark.parametrize("options", ({}, {"keep": 0.5}, {"edge_value": "random"}, {"clamp": (None, 5.0)}), ids=str)
@pytest.mark.parametrize("D", (1, 3, 9))
def test_nan_stays_within_k_hops(options, D, backend):
    g, K = GRAPHS["chain"], 3
    options = {k: torch.rand(g.num_edges) if v == "random" else v for k, v in options.items()}
    x = torch.randn(g.num_nodes, D)
    x[10, D // 2] = torch.nan
    reached = torch.zeros(g.num_nodes, D, dtype=torch.bool)
    reached[10 - K : 10 + K + 1, D // 2] = True
    assert torch.equal(uf.propagate(g, x, K, backend=backend, **options).isnan(), reached)


@pytest.mark.parametrize("shape", ((0, 4), (5, 0), (5, 0, 3), (5, 3, 0)))
@pytest.mark.parametrize("K", (0, 3))
@pytest.mark.parametrize("out", ("last", "sum", "all"))
def test_nothing_to_compute(shape, K, out, backend):
    g = uf.Graph.from_edge_index([[], []], shape[0])
    x, gamma = torch.ones(shape, requires_grad=True), torch.rand(K + 1, requires_grad=True)
    h = uf.propagate(g, x, K, out=out, gamma=gamma if out == "sum" else None, backend=backend)
    assert h.shape == ((K + 1, *shape) if out == "all" else shape)
    h.sum().backward()
    assert x.grad.shape == shape


def test_result_is_never_x_itself(backend):
    x = torch.randn(20, 3)
    assert uf.propagate(GRAPHS["chain"], x, 0, backend=backend).data_ptr() != x.data_ptr()


def test_only_x_saves_no_state(cpu):
    g, sizes = GRAPHS["power_law"], []
    x = torch.randn(g.num_nodes, 8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append((t.data_ptr(), t.numel())) or t, lambda t: t):
        h = uf.propagate(g, x, 5, agg=0.9, skip=0.1)
    own = {t.data_ptr() for t in (*g.tensors(), x, h) if isinstance(t, torch.Tensor)}
    assert sum(size for address, size in sizes if address not in own) == 0

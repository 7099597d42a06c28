"""ada_c against s sigmoid(<stat, weight> + bias) in float64, forward and gradients."""

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

pytestmark = pytest.mark.needs("ada_c")
GRAPHS = sample_graphs()


def statement(x, weight, bias=None, *, g, s, stat, store):
    if x.dim() == 3:
        R = x.shape[1]
        weights = weight.expand(R, -1)
        biases = [None] * R if bias is None else bias.expand(R)
        runs = [statement(x[:, r], weights[r], biases[r], g=g, s=s, stat=stat, store=store) for r in range(R)]
        return torch.stack(runs, dim=1)
    i, j, a = entries(g, x.dtype)
    d = degrees(g, x.dtype)
    d = torch.where(d > 0, d, 1)[:, None]
    mean = product(g, a, x) / d
    value = mean
    if stat == "var":
        value = torch.zeros_like(x).index_add(0, i, a[:, None] * (x[j] - mean[i]) ** 2) / d
    logits = value @ weight
    return s / (1 + torch.exp(-(logits if bias is None else logits + bias)))


def valid(R, weight, bias, **_):
    return R is not None or "replica" not in (weight, bias)


CASES = operator_cases(
    "ada_c",
    valid,
    modes=("stat", "weight"),
    weight=("shared", "replica"),
    bias=("none", "number", "scalar", "one", "replica"),
    stat=("mean", "var"),
    s=(9.0, 0.5),
    wrt=("x", "weight", "bias", "x weight bias"),
)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_statement(case, use_backend):
    backend = use_backend(case["backend"])
    g, R, D, dtype, s = GRAPHS[case["graph"]], case["R"], case["D"], case["dtype"], case["s"]
    N = g.num_nodes
    number = torch.float64 if dtype == torch.float64 else torch.float32
    torch.manual_seed(1)
    inputs = {
        "x": torch.randn((N, D) if R is None else (N, R, D)).to(dtype),
        "weight": torch.randn((R, D) if case["weight"] == "replica" else (D,), dtype=number) / D**0.5,
    }
    bias_shape = {"none": None, "number": (), "scalar": (), "one": (1,), "replica": (R,)}[case["bias"]]
    if bias_shape is not None:
        inputs["bias"] = torch.randn(bias_shape, dtype=number)
    layout = case["layout"]

    def operator(x, weight, bias=None):
        if bias is not None:
            bias = bias.item() if case["bias"] == "number" else layout(bias)
        return uf.ada_c(g, layout(x), layout(weight), s, bias=bias, stat=case["stat"], backend=backend)

    wrt = [name for name in case["wrt"].split() if name != "bias" or case["bias"] not in ("none", "number")]
    # gradients of weight and bias are sums over all nodes: few numbers, each one draw of rounding
    tolerance = HUB_TOLERANCE if "hub" in case["graph"] else {"units": 16}
    check_operator(operator, lambda **t: statement(**t, g=g, s=s, stat=case["stat"]), inputs, wrt=wrt, **tolerance)


def test_is_in_float32_beside_bfloat16(backend):
    g = GRAPHS["star"]
    c = uf.ada_c(g, torch.randn(g.num_nodes, 3).bfloat16(), torch.rand(3), 2.0, backend=backend)
    assert c.dtype == torch.float32 and c.shape == (g.num_nodes,)


@pytest.mark.parametrize("sign", (-1, 1))
def test_saturated_sigmoid(sign, backend):
    g = GRAPHS["power_law"]
    x = torch.randn(g.num_nodes, 4, requires_grad=True)
    c = uf.ada_c(g, x, torch.zeros(4), 9.0, bias=sign * 1e4, backend=backend)
    assert torch.equal(c, torch.full_like(c, 9.0 if sign > 0 else 0.0))
    c.sum().backward()
    assert x.grad.eq(0).all()


def test_s_zero(backend):
    g = GRAPHS["star"]
    x, weight = torch.randn(g.num_nodes, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    c = uf.ada_c(g, x, weight, 0.0, backend=backend)
    assert c.eq(0).all()
    c.sum().backward()
    assert x.grad.eq(0).all() and weight.grad.eq(0).all()


@pytest.mark.float64
@pytest.mark.parametrize("stat", ("mean", "var"))
@pytest.mark.parametrize("D", (1, 3, 9))
def test_gradcheck(stat, D, backend):
    g = GRAPHS["weighted_no_self_loops"]
    torch.manual_seed(0)
    shapes = ((g.num_nodes, 2, D), (2, D), (2,))
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]

    def function(x, weight, bias):
        return uf.ada_c(g, x, weight, 3.0, bias=bias, stat=stat, backend=backend)

    assert torch.autograd.gradcheck(function, leaves, fast_mode=True)


@pytest.mark.parametrize("shape", ((0, 4), (5, 0), (0, 2, 3), (5, 2, 0), (5, 0, 3)))
@pytest.mark.parametrize("stat", ("mean", "var"))
def test_nothing_to_sum(shape, stat, backend):
    g = uf.Graph.from_edge_index([[], []], shape[0])
    x, weight = torch.ones(shape, requires_grad=True), torch.ones(shape[-1], requires_grad=True)
    c = uf.ada_c(g, x, weight, 2.0, bias=0.0, stat=stat, backend=backend)
    assert c.shape == shape[:-1]
    if shape[-1] == 0:
        assert torch.equal(c, torch.ones(shape[:-1]))
    c.sum().backward()
    assert x.grad.shape == shape and weight.grad.shape == shape[-1:]


@pytest.mark.parametrize("wrt", ("x", "weight"))
def test_double_backward_is_refused(wrt, cpu):
    g = GRAPHS["star"]
    leaves = {"x": torch.randn(g.num_nodes, 3), "weight": torch.randn(3)}
    leaves[wrt].requires_grad_()
    with pytest.raises(RuntimeError, match=r"ada_c: double backward is not offered.*reference"):
        c = uf.ada_c(g, **leaves, s=2.0)
        (grad,) = torch.autograd.grad(c.square().sum(), leaves[wrt], create_graph=True)
        grad.sum().backward()

"""neighbor_mean and neighbor_var against the definition in float64, forward and gradients."""

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast.testing import (
    HUB_TOLERANCE,
    assert_no_worse_than_torch,
    case_id,
    check_operator,
    degrees,
    entries,
    operator_cases,
    product,
    sample_graphs,
)

pytestmark = pytest.mark.needs("neighbor_mean", "neighbor_var")
GRAPHS = sample_graphs()


def mean_of(g, x):
    """sum_j a_ij x_j / d_i, 0 where d_i = 0."""
    _, _, a = entries(g, x.dtype)
    d = degrees(g, x.dtype)
    return product(g, a, x) / torch.where(d > 0, d, 1)[:, None]


def variance_of(g, x):
    """sum_j a_ij (x_j - mean_i)^2 / d_i, one entry after the other."""
    i, j, a = entries(g, x.dtype)
    off = x[j] - mean_of(g, x)[i]
    d = degrees(g, x.dtype)
    total = torch.zeros_like(x).index_add(0, i, a[:, None] * off**2)
    return total / torch.where(d > 0, d, 1)[:, None]


CASES = operator_cases("neighbor_var", modes=("stat",), stat=("mean", "var"))


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_statement(case, use_backend):
    backend = use_backend(case["backend"])
    g, R = GRAPHS[case["graph"]], case["R"]
    torch.manual_seed(1)
    x = torch.randn((g.num_nodes, case["D"]) if R is None else (g.num_nodes, R, case["D"])).to(case["dtype"])
    layout = case["layout"]
    definition = {"mean": mean_of, "var": variance_of}[case["stat"]]
    function = {"mean": uf.neighbor_mean, "var": uf.neighbor_var}[case["stat"]]

    def statement(x, store):
        flat = definition(g, x.flatten(1)) if x.numel() else x
        return store(flat.reshape(x.shape))

    tolerance = HUB_TOLERANCE if "hub" in case["graph"] else {}
    check_operator(lambda x: function(g, layout(x), backend=backend), statement, {"x": x}, wrt=["x"], **tolerance)


@pytest.mark.float64
@pytest.mark.parametrize("D", (1, 3, 9))
@pytest.mark.parametrize("function", (uf.neighbor_mean, uf.neighbor_var), ids=("mean", "var"))
def test_gradcheck(function, D, backend):
    g = GRAPHS["weighted_no_self_loops"]
    torch.manual_seed(0)
    x = torch.randn(g.num_nodes, 2, D, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: function(g, x, backend=backend), x, fast_mode=True)


@pytest.mark.parametrize("graph", ("power_law", "weighted", "star"))
def test_a_large_offset_costs_no_digits(graph, backend):
    g = GRAPHS[graph]
    torch.manual_seed(0)
    x = torch.randn(g.num_nodes, 9) + 1e3
    got = uf.neighbor_var(g, x, backend=backend)
    plain, exact = variance_of(g, x), variance_of(g, x.double())
    assert_no_worse_than_torch(got, plain, exact)
    assert (got - exact).abs().max() < 1e-4 * exact.max()


def test_variance_of_equal_values_is_zero(backend):
    g = GRAPHS["power_law"]
    x = torch.full((g.num_nodes, 5), 3.7)
    assert uf.neighbor_var(g, x, backend=backend).max() < 1e-10


def test_a_node_without_neighbours_has_mean_and_variance_zero(backend):
    g = GRAPHS["no_edges"]
    x = torch.randn(g.num_nodes, 3)
    assert uf.neighbor_mean(g, x, backend=backend).eq(0).all()
    assert uf.neighbor_var(g, x, backend=backend).eq(0).all()


@pytest.mark.parametrize("D", (1, 3, 9))
@pytest.mark.parametrize("function", (uf.neighbor_mean, uf.neighbor_var), ids=("mean", "var"))
def test_nan_stays_among_neighbours(function, D, backend):
    x = torch.randn(20, D)
    x[10, D // 2] = torch.nan
    reached = torch.zeros(20, D, dtype=torch.bool)
    reached[9:12, D // 2] = True
    assert torch.equal(function(GRAPHS["chain"], x, backend=backend).isnan(), reached)


@pytest.mark.parametrize("shape", ((0, 4), (5, 0), (5, 0, 3), (5, 3, 0)))
@pytest.mark.parametrize("function", (uf.neighbor_mean, uf.neighbor_var), ids=("mean", "var"))
def test_nothing_to_compute(function, shape, backend):
    x = torch.ones(shape, requires_grad=True)
    out = function(uf.Graph.from_edge_index([[], []], shape[0]), x, backend=backend)
    assert out.shape == shape
    out.sum().backward()
    assert x.grad.shape == shape


def test_double_backward(cpu):
    g = GRAPHS["star"]
    x = torch.randn(g.num_nodes, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: uf.neighbor_mean(g, x**2), x, fast_mode=True)
    (grad,) = torch.autograd.grad(uf.neighbor_var(g, x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"neighbor_var: double backward is not offered.*reference"):
        grad.sum().backward()
    assert torch.autograd.gradgradcheck(lambda x: uf.neighbor_var(g, x, backend="reference"), x, fast_mode=True)

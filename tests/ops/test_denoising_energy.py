"""denoising_energy against |F - S|^2 + 1/2 sum_i c_i sum_j a_ij |rho_i F_i - rho_j F_j|^2 in float64."""

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
    sample_graphs,
)

pytestmark = pytest.mark.needs("denoising_energy")
GRAPHS = sample_graphs()


def statement(x, s, c, *, g, store):
    """x is F. Entry by entry."""
    if x.dim() == 3:
        runs = [
            statement(x[:, r], s[:, r], c[:, r] if c.dim() == 2 else c, g=g, store=store) for r in range(x.shape[1])
        ]
        return torch.stack(runs)
    i, j, a = entries(g, x.dtype)
    d = degrees(g, x.dtype)
    rho = torch.where(d > 0, d, 1).rsqrt()[:, None]
    off = (rho * x)[i] - (rho * x)[j]
    return ((x - s) ** 2).sum() + 0.5 * (c.expand(g.num_nodes)[i] * a * (off**2).sum(1)).sum()


def valid(R, c, **_):
    return c != "replica" or R is not None


CASES = operator_cases(
    "denoising_energy", valid, c=("number", "scalar", "node", "replica"), wrt=("", "x", "s", "c", "xsc")
)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_statement(case, use_backend):
    backend = use_backend(case["backend"])
    g, R, D, dtype = GRAPHS[case["graph"]], case["R"], case["D"], case["dtype"]
    N = g.num_nodes
    torch.manual_seed(1)
    c_shape = {"number": (), "scalar": (), "node": (N,), "replica": (N, R)}[case["c"]]
    inputs = {
        "x": torch.randn((N, D) if R is None else (N, R, D)).to(dtype),
        "s": torch.randn((N, D) if R is None else (N, R, D)).to(dtype),
        "c": 3 * torch.rand(c_shape, dtype=torch.float64 if dtype == torch.float64 else torch.float32),
    }
    layout = case["layout"]

    def operator(x, s, c):
        c = c.item() if case["c"] == "number" else layout(c)
        return uf.denoising_energy(g, layout(x), layout(s), c, backend=backend)

    wrt = [name for name in case["wrt"] if name != "c" or case["c"] != "number"]
    # the energy is one number for all nodes, and one draw of rounding
    tolerance = HUB_TOLERANCE if "hub" in case["graph"] else {"factor": 4, "units": 16}
    check_operator(operator, lambda **t: statement(**t, g=g), inputs, wrt=wrt, **tolerance)


def test_shape_and_type(backend):
    g = GRAPHS["star"]
    f = torch.randn(g.num_nodes, 2, 3)
    assert uf.denoising_energy(g, f, f, 1.0, backend=backend).shape == (2,)
    energy = uf.denoising_energy(g, f[:, 0], f[:, 1], 1.0, backend=backend)
    assert energy.shape == () and energy.dtype == torch.float32


@pytest.mark.float64
@pytest.mark.parametrize("D", (1, 3, 9))
def test_gradcheck(D, backend):
    g = GRAPHS["weighted_no_self_loops"]
    torch.manual_seed(0)
    f, s = (torch.randn(g.num_nodes, 2, D, dtype=torch.float64, requires_grad=True) for _ in range(2))
    c = torch.rand(g.num_nodes, 2, dtype=torch.float64, requires_grad=True)

    def function(f, s, c):
        return uf.denoising_energy(g, f, s, c, backend=backend)

    assert torch.autograd.gradcheck(function, (f, s, c), fast_mode=True)


@pytest.mark.parametrize("shape", ((0, 4), (5, 0), (0, 2, 3), (5, 2, 0), (5, 0, 3)))
def test_nothing_to_sum(shape, backend):
    g = uf.Graph.from_edge_index([[], []], shape[0])
    f = torch.ones(shape, requires_grad=True)
    energy = uf.denoising_energy(g, f, torch.zeros(shape), 1.0, backend=backend)
    assert energy.shape == shape[1:-1] and energy.eq(0).all()
    energy.sum().backward()
    assert f.grad.shape == shape


@pytest.mark.float64
def test_double_backward(backend):
    g = GRAPHS["weighted"]
    torch.manual_seed(0)
    f, s = (torch.randn(g.num_nodes, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    c = torch.rand(g.num_nodes, dtype=torch.float64, requires_grad=True)
    function = lambda f, s, c: uf.denoising_energy(g, f, s, c, backend=backend)  # noqa: E731
    assert torch.autograd.gradgradcheck(function, (f, s, c), fast_mode=True)

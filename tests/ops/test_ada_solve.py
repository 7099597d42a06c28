"""ada_solve: the minimiser of the denoising problem, against a dense float64 solution and on real graphs."""

import warnings

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast._backend import _interpreting
from ugnn_fast.testing import case_id, degrees, entries, operator_cases, product, sample_graphs

pytestmark = pytest.mark.needs("ada_solve")
GRAPHS = sample_graphs()
INTERPRETING = _interpreting()
TOLERANCE = {
    torch.float64: (1e-13, 1e-10),
    torch.float32: (1e-6, 3e-5),
    torch.bfloat16: (1e-6, 2e-2),
    torch.float16: (1e-6, 3e-3),
}


def parts(g, c):
    """1 / b [N] and W [E] of M = diag(1 / b) - W."""
    i, j, a = entries(g, c.dtype)
    d = degrees(g, c.dtype)
    mean = product(g, a, c[:, None])[:, 0] / torch.where(d > 0, d, 1)
    return torch.where(d > 0, 2 + c + mean, 2), a * (c[i] + c[j]) / (d[i] * d[j]).sqrt()


def statement(g, x, c):
    """M F = 2 X, dense."""
    if x.dim() == 3:
        columns = [c[:, r] if c.dim() == 2 else c for r in range(x.shape[1])]
        return torch.stack([statement(g, x[:, r], columns[r]) for r in range(x.shape[1])], dim=1)
    c = c.expand(g.num_nodes)
    inverse_b, values = parts(g, c)
    i, j = g.edge_index
    W = torch.zeros(g.num_nodes, g.num_nodes, dtype=x.dtype).index_put((i, j), values)
    return torch.linalg.solve(torch.diag(inverse_b) - W, 2 * x)


def valid(graph, R, c, **_):
    return GRAPHS[graph].num_nodes <= 512 and (c != "replica" or R is not None)


CASES = operator_cases("ada_solve", valid, modes=("c",), largest=1300, c=("number", "scalar", "node", "replica"))


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_statement(case, use_backend):
    backend = use_backend(case["backend"])
    g, R, dtype, layout = GRAPHS[case["graph"]], case["R"], case["dtype"], case["layout"]
    N, (tol, limit) = g.num_nodes, TOLERANCE[dtype]
    torch.manual_seed(1)
    number = torch.float64 if dtype == torch.float64 else torch.float32
    x = torch.randn((N, case["D"]) if R is None else (N, R, case["D"])).to(dtype)
    # a step of the interpreter is slow, and few are needed if M is well-conditioned
    c = (0.3 if INTERPRETING else 3) * torch.rand({"node": (N,), "replica": (N, R)}.get(case["c"], ()), dtype=number)

    def run(function, to):
        leaves = [to(x).detach().requires_grad_(), to(c).detach().requires_grad_()]
        f = function(*leaves)
        cotangent = torch.randn(f.shape, generator=torch.Generator().manual_seed(0)).to(dtype).to(f.dtype)
        wanted = leaves[: 1 if case["c"] == "number" else 2]
        return [f.detach(), *torch.autograd.grad(f, wanted, cotangent)]

    def operator(x, c):
        c = c.item() if case["c"] == "number" else layout(c)
        return uf.ada_solve(g, layout(x), c, tol=tol, backend=backend)

    got, exact = run(operator, torch.clone), run(lambda x, c: statement(g, x, c), torch.Tensor.double)
    for name, a, b in zip(("result", "x", "c"), got, exact, strict=False):
        assert a.shape == b.shape and a.dtype == (number if name == "c" else dtype), name
        # the gradient of one number, or of a node alone, may cancel
        assert (a.double() - b).norm() <= limit * (b.norm() + (name == "c")), name


@pytest.mark.float64
@pytest.mark.parametrize("graph", ("one_node", "isolated", "star", "weighted_no_self_loops", "no_edges"))
def test_gradcheck(graph, backend):
    g = GRAPHS[graph]
    torch.manual_seed(0)
    x = torch.randn(g.num_nodes, 2, 3, dtype=torch.float64, requires_grad=True)
    c = (0.1 + torch.rand(g.num_nodes, 2, dtype=torch.float64)).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 1e-15 is where rounding is
        assert torch.autograd.gradcheck(lambda x, c: uf.ada_solve(g, x, c, tol=1e-15, backend=backend), (x, c))


@pytest.mark.float64
@pytest.mark.parametrize("c", (2.5, "node"))
def test_is_the_limit_of_the_steps(c, backend):
    g = GRAPHS["weighted_no_self_loops"]
    torch.manual_seed(0)
    x = torch.randn(g.num_nodes, 4, dtype=torch.float64)
    c = 3 * torch.rand(g.num_nodes, dtype=torch.float64) if c == "node" else c
    f = uf.ada_solve(g, x, c, tol=1e-13, backend=backend)
    torch.testing.assert_close(f, uf.ada_propagate(g, x, c, 500))


@pytest.mark.float64
def test_is_the_minimum_of_the_energy(backend):
    g = GRAPHS["weighted"]
    torch.manual_seed(0)
    x, c = torch.randn(g.num_nodes, 4, dtype=torch.float64), torch.rand(g.num_nodes, dtype=torch.float64)
    f = uf.ada_solve(g, x, c, tol=1e-14, backend=backend).requires_grad_()
    energy = uf.denoising_energy(g, f, x, c)
    (grad,) = torch.autograd.grad(energy, f)
    assert grad.abs().max() < 1e-11
    for scale in (1e-3, -1e-3):
        assert uf.denoising_energy(g, f + scale * torch.randn_like(f), x, c) > energy


@pytest.mark.float64
def test_one_number_is_ppnp(backend):
    g, alpha = GRAPHS["star"], 0.2
    x = torch.randn(g.num_nodes, 3, dtype=torch.float64)
    i, j, a = entries(g)
    d = degrees(g)
    A = torch.zeros(g.num_nodes, g.num_nodes, dtype=torch.float64).index_put((i, j), a / (d[i] * d[j]).sqrt())
    exact = alpha * torch.linalg.solve(torch.eye(g.num_nodes) - (1 - alpha) * A, x)
    torch.testing.assert_close(uf.ada_solve(g, x, 1 / alpha - 1, tol=1e-13, backend=backend), exact)


def test_a_node_without_neighbors_keeps_its_value(backend):
    g = GRAPHS["no_self_loops"]
    alone = g.degree == 0
    assert alone.any()
    x, c = torch.randn(g.num_nodes, 3), torch.rand(g.num_nodes, requires_grad=True)
    f = uf.ada_solve(g, x, c, backend=backend)
    torch.testing.assert_close(f[alone], x[alone])
    (grad,) = torch.autograd.grad(f[alone].sum(), c)
    assert (grad == 0).all()


@pytest.mark.parametrize("c", (-1.0, float("nan"), "negative", "nan"))
def test_c_must_not_be_negative(c, backend):
    g = GRAPHS["chain"]
    if isinstance(c, str):
        values = torch.ones(g.num_nodes)
        values[4] = -0.5 if c == "negative" else torch.nan
        message = r"c must be finite and >= 0 everywhere, got (-0.5|nan) at node 4"
    else:
        values, message = c, "c must be finite and >= 0, got"
    with pytest.raises(ValueError, match=message):
        uf.ada_solve(g, torch.ones(g.num_nodes, 2), values, backend=backend)


def test_too_few_iterations(backend):
    g = GRAPHS["chain"]
    x, c = torch.randn(g.num_nodes, 3), 9 * torch.rand(g.num_nodes)
    with pytest.warns(UserWarning, match=r"residual \S+ after 3 iterations, tol 1e-06"):
        f = uf.ada_solve(g, x, c, max_iter=3, backend=backend)
    same, info = uf.ada_solve(g, x, c, max_iter=3, return_info=True, backend=backend)
    assert torch.equal(f, same) and info.iterations == 3 and not info.converged


@pytest.mark.parametrize("tol", (0, -1.0, float("nan"), float("inf")))
def test_bad_tol(tol):
    with pytest.raises(ValueError, match="tol must be"):
        uf.ada_solve(GRAPHS["chain"], torch.ones(20, 2), 1.0, tol=tol)


def test_autocast_stores_x_alone_in_16_bits(cpu):
    g = GRAPHS["power_law"]
    torch.manual_seed(0)
    x, c = torch.randn(g.num_nodes, 3), 9 * torch.rand(g.num_nodes)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        f = uf.ada_solve(g, x, c)
    assert f.dtype == torch.bfloat16
    # c, and what is computed of it, stay in float32
    torch.testing.assert_close(f, uf.ada_solve(g, x.bfloat16(), c))


@pytest.mark.parametrize("c", (29.0, "node"))
def test_strong_smoothing_in_float32(c, cpu):
    # products with M are small differences of large sums here: without a float64 residual 2e-6 is all that is reached
    g = uf.datasets.load("cora").graph
    torch.manual_seed(0)
    x = torch.rand(g.num_nodes, 7, requires_grad=True)
    c = 40 * torch.rand(g.num_nodes) if c == "node" else c
    f, info = uf.ada_solve(g, x, c, return_info=True)
    inverse_b, W = parts(g, c.double() if isinstance(c, torch.Tensor) else torch.full((g.num_nodes,), c).double())

    def off(f, x):
        residual = 2 * x - (inverse_b[:, None] * f.double() - product(g, W, f.double()))
        return (residual.norm(dim=0) / (2 * x).norm(dim=0)).max().item()

    # 1 / b per node is rounded to float32, too
    limit = 1e-6 if isinstance(c, float) else 1.5e-6
    assert info.converged and off(f.detach(), x.detach()) <= limit
    (grad,) = torch.autograd.grad(f.sum(), x)
    assert off(grad, torch.ones_like(x)) <= limit


@pytest.mark.parametrize("name", ("cora", "citeseer", "pubmed", "coauthor_physics", "flickr", "air_usa"))
def test_real_graphs(name, cpu):
    try:
        g = uf.datasets.load(name).graph
    except (ValueError, OSError) as missing:
        pytest.skip(str(missing))
    torch.manual_seed(0)
    x, c = torch.randn(g.num_nodes, 7), 9 * torch.rand(g.num_nodes)
    f, info = uf.ada_solve(g, x, c, return_info=True)
    inverse_b, W = parts(g, c.double())
    off = 2 * x - (inverse_b[:, None] * f.double() - product(g, W, f.double()))
    relative = (off.norm(dim=0) / (2 * x).norm(dim=0)).max().item()
    assert info.converged and info.residual <= 1e-6 and relative <= 1.2e-6 and info.iterations < 100
    # what the energy is made of was not made worse by stopping
    assert uf.denoising_energy(g, f, x, c) <= uf.denoising_energy(g, uf.ada_propagate(g, x, c, 10), x, c) * (1 + 1e-6)

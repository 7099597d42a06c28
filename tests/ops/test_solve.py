"""solve against a dense float64 solution, forward and gradients; how it ends, and what it refuses."""

import warnings

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast._backend import _interpreting
from ugnn_fast.testing import case_id, degrees, entries, operator_cases, product, sample_graphs

pytestmark = pytest.mark.needs("solve")
GRAPHS = sample_graphs()
INTERPRETING = _interpreting()
FLOAT64 = pytest.param(torch.float64, marks=pytest.mark.float64)
# what is left of the solution's digits with the tol beside it
TOLERANCE = {
    torch.float64: (1e-13, 1e-10),
    torch.float32: (1e-6, 2e-5),
    torch.bfloat16: (1e-6, 2e-2),
    torch.float16: (1e-6, 3e-3),
}


def entry_values(g, c, edge_value, norm):
    """N_i a_ij W_ij N_j of every stored entry, [E], for c [N] or edge_value [E] or neither."""
    i, j, a = entries(g)
    d = degrees(g)
    d = torch.where(d > 0, d, 1)
    if c is not None:
        a = a * (c[i] + c[j])
    if edge_value is not None:
        a = a * edge_value
    return a / (d[i] * d[j]).sqrt() if norm == "sym" else a


def statement(g, x, diag, c, edge_value, norm):
    """Dense float64 solution; a coefficient is [N] or [N, R]."""
    if x.dim() == 3:
        of = [[t if t is None or t.dim() == 1 else t[:, r] for t in (diag, c)] for r in range(x.shape[1])]
        runs = [statement(g, x[:, r], *of[r], edge_value, norm) for r in range(x.shape[1])]
        return torch.stack(runs, dim=1) if runs else x
    i, j = g.edge_index
    W = torch.zeros(g.num_nodes, g.num_nodes, dtype=x.dtype).index_put((i, j), entry_values(g, c, edge_value, norm))
    return torch.linalg.solve(torch.diag(diag) - W, x)


def dominant_diag(g, c, edge_value, norm):
    """[N] or [N, R], with which M is diagonally dominant and so positive definite."""
    if c is not None and c.dim() == 2:
        return torch.stack([dominant_diag(g, c[:, r], edge_value, norm) for r in range(c.shape[1])], dim=1)
    sums = torch.zeros(g.num_nodes, dtype=torch.float64)
    sums = sums.index_add(0, g.edge_index[0], entry_values(g, c, edge_value, norm).abs())
    # a step of the interpreter is slow, and few are needed if M is well-conditioned
    return (6 if INTERPRETING else 1) * sums + 0.3 + torch.rand(g.num_nodes, dtype=torch.float64)


def assert_near(got, exact, limit, name):
    assert got.shape == exact.shape, name
    off = (got.double() - exact).norm().item()
    assert off <= limit * exact.norm().item(), f"{name}: off by {off} of {exact.norm().item()}"


def valid(graph, R, W, diag, **_):
    return GRAPHS[graph].num_nodes <= 512 and (R is not None or "replica" not in (W, diag))


CASES = operator_cases(
    "solve",
    valid,
    modes=("W",),
    largest=1300,
    W=("one", "number", "node", "replica", "edge"),
    diag=("number", "node", "replica"),
    norm=("sym", "none"),
)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_statement(case, use_backend):
    backend = use_backend(case["backend"])
    g, R, D, dtype, norm = GRAPHS[case["graph"]], case["R"], case["D"], case["dtype"], case["norm"]
    N, layout = g.num_nodes, case["layout"]
    tol, limit = TOLERANCE[dtype]
    torch.manual_seed(1)
    number = torch.float64 if dtype == torch.float64 else torch.float32
    leaves = {"x": torch.randn((N, D) if R is None else (N, R, D)).to(dtype)}
    if case["W"] in ("node", "replica"):
        leaves["c"] = torch.randn(N if case["W"] == "node" else (N, R)).to(number)
    constant = torch.full((N,), 0.35, dtype=torch.float64) if case["W"] == "number" else None
    if case["W"] == "edge":
        value = torch.randn(g.num_edges)
        leaves["edge_value"] = (value + value[g.reverse]).to(number)
    edge_value = leaves["edge_value"].double() if "edge_value" in leaves else None
    dominant = dominant_diag(g, leaves["c"].double() if "c" in leaves else constant, edge_value, norm)
    if case["diag"] == "node":
        leaves["diag"] = (dominant if dominant.dim() == 1 else dominant.amax(1)).to(number)
    elif case["diag"] == "replica":
        leaves["diag"] = (dominant if dominant.dim() == 2 else torch.stack([dominant] * R, dim=1)).to(number)
    largest = dominant.max().item() if dominant.numel() else 1.0

    def run(function, to):
        tensors = {name: to(t).detach().requires_grad_() for name, t in leaves.items()}
        f = function(**tensors)
        cotangent = torch.randn(f.shape, generator=torch.Generator().manual_seed(0)).to(dtype).to(f.dtype)
        return [f.detach(), *torch.autograd.grad(f, list(tensors.values()), cotangent)]

    def operator(x, diag=None, c=None, edge_value=None):
        options = {"c": 0.35 if case["W"] == "number" else None if c is None else layout(c)}
        if edge_value is not None:
            options["edge_value"] = layout(edge_value)
        diag = largest if diag is None else layout(diag)
        return uf.solve(g, layout(x), diag, **options, norm=norm, tol=tol, backend=backend)

    def dense(x, diag=None, c=constant, edge_value=None):
        diag = torch.full((N,), largest, dtype=x.dtype) if diag is None else diag
        return statement(g, x, diag, c, edge_value, norm)

    got, exact = run(operator, torch.clone), run(dense, torch.Tensor.double)
    for name, a, b in zip(("result", *leaves), got, exact, strict=True):
        assert a.dtype == (dtype if name in ("result", "x") else number), name
        assert_near(a, b, limit, name)


def matrix_product(g, f, diag, c=None, norm="sym"):
    """M f in float64 for f [N, D]."""
    return diag.double()[:, None] * f.double() - product(g, entry_values(g, c, None, norm), f.double())


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("graph", ("hub", "weighted_hub"))
def test_hubs(graph, dtype, cpu):
    g, tol = GRAPHS[graph], TOLERANCE[dtype][0]
    torch.manual_seed(0)
    x = torch.randn(g.num_nodes, 5, dtype=dtype, requires_grad=True)
    c = torch.rand(g.num_nodes, dtype=dtype, requires_grad=True)
    diag = (2.2 + torch.rand(g.num_nodes, dtype=dtype)).requires_grad_()
    f = uf.solve(g, x, diag, c=c, tol=tol)
    off = x.double() - matrix_product(g, f, diag, c.double())
    assert (off.norm(dim=0) <= 1.5 * tol * x.norm(dim=0)).all()
    exact = [t.detach().double().requires_grad_() for t in (x, diag, c)]
    expected = uf.solve(g, exact[0], exact[1], c=exact[2], tol=1e-13, backend="reference")
    cotangent = torch.randn(f.shape, dtype=dtype)
    got = torch.autograd.grad(f, (x, diag, c), cotangent)
    for a, b in zip(got, torch.autograd.grad(expected, exact, cotangent.double()), strict=True):
        assert_near(a, b, TOLERANCE[dtype][1], "gradient")


@pytest.mark.float64
@pytest.mark.parametrize("norm", ("sym", "none"))
@pytest.mark.parametrize("graph", ("one_node", "isolated", "star", "weighted", "weighted_no_self_loops", "no_edges"))
def test_gradcheck(graph, norm, backend):
    g = GRAPHS[graph]
    torch.manual_seed(0)
    x = torch.randn(g.num_nodes, 2, 3, dtype=torch.float64, requires_grad=True)
    c = torch.rand(g.num_nodes, 2, dtype=torch.float64)
    diag = dominant_diag(g, c, None, norm).requires_grad_()
    c.requires_grad_()
    value = torch.rand(g.num_edges, dtype=torch.float64, requires_grad=True)
    options = {"norm": norm, "tol": 1e-14, "backend": backend}

    def with_edges(x, diag, value):
        return uf.solve(g, x, 2 * diag, edge_value=(value + value[g.reverse]) / 2, **options)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 1e-14 is where rounding is
        assert torch.autograd.gradcheck(lambda x, d, c: uf.solve(g, x, d, c=c, **options), (x, diag, c), fast_mode=True)
        assert torch.autograd.gradcheck(with_edges, (x, diag, value), fast_mode=True)


@pytest.mark.float64
def test_one_number_for_diag_and_c_has_a_gradient(backend):
    g = GRAPHS["weighted"]
    x = torch.randn(g.num_nodes, 3, dtype=torch.float64)
    diag, c = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (3.0, 0.4))
    f = uf.solve(g, x, diag, c=c, tol=1e-13, backend=backend)
    torch.testing.assert_close(f, uf.solve(g, x, 3.0, c=0.4, tol=1e-13, backend=backend))
    exact = statement(g, x, diag.expand(g.num_nodes), c.expand(g.num_nodes), None, "sym")
    for a, b in zip(torch.autograd.grad(f.sum(), (diag, c)), torch.autograd.grad(exact.sum(), (diag, c)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.long
def test_replicas_are_solved_as_if_alone(backend):
    g = GRAPHS["power_law"]
    torch.manual_seed(0)
    x, c = torch.randn(g.num_nodes, 3, 5), torch.rand(g.num_nodes, 3)
    together = uf.solve(g, x, 2.5, c=c, backend=backend)
    for r in range(3):
        alone = uf.solve(g, x[:, r], 2.5, c=c[:, r], backend=backend)
        torch.testing.assert_close(together[:, r], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("dtype", (torch.float32, FLOAT64))
@pytest.mark.parametrize("tol", (1e-2, 1e-5))
def test_info(tol, dtype, backend):
    g = GRAPHS["power_law"]
    torch.manual_seed(0)
    # columns that end at different times, and one that has nothing to do
    x = torch.randn(g.num_nodes, 6, dtype=dtype) * 10.0 ** torch.arange(-3, 3)
    x[:, 2] = torch.ones(g.num_nodes) * g.degree.sqrt()
    x[:, 4] = 0
    f, info = uf.solve(g, x, 1.1, tol=tol, return_info=True, backend=backend)
    assert isinstance(info, uf.SolveInfo) and [type(v) for v in info] == [int, float, bool]
    off = (x - matrix_product(g, f, torch.full((g.num_nodes,), 1.1, dtype=torch.float64))).norm(dim=0)
    largest = (off / x.norm(dim=0).clamp(min=1e-30)).max().item()
    assert info.converged and 0 < info.residual <= tol
    assert abs(info.residual - largest) <= 0.1 * largest + 1e-6 * (dtype == torch.float32)
    assert (f[:, 4] == 0).all()
    assert 1 < info.iterations < 60
    _, fewer = uf.solve(g, x, 1.1, tol=tol, max_iter=info.iterations - 1, return_info=True, backend=backend)
    assert not fewer.converged and fewer.residual > tol and fewer.iterations == info.iterations - 1


@pytest.mark.long
def test_a_column_that_has_arrived_is_left_alone(backend):
    g = GRAPHS["power_law"]
    torch.manual_seed(0)
    x = torch.randn(g.num_nodes, 4)
    x[:, 1] = g.degree.sqrt()  # an eigenvector of the normalised adjacency: one step
    slow, one = uf.solve(g, x, 1.01, tol=1e-5, backend=backend), uf.solve(g, x[:, 1:2], 1.01, tol=1e-5, backend=backend)
    # sums of another width have another order, and either may stop an iteration earlier
    torch.testing.assert_close(slow[:, 1:2], one, rtol=2e-5, atol=0)


def test_too_few_iterations(backend):
    g = GRAPHS["chain"]
    x = torch.randn(g.num_nodes, 3, requires_grad=True)
    message = r"solve did not converge: residual \S+ after 2 iterations, tol 1e-06; raise max_iter"
    with pytest.warns(UserWarning, match=message):
        f = uf.solve(g, x, 1.01, max_iter=2, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same, info = uf.solve(g, x, 1.01, max_iter=2, return_info=True, backend=backend)
    assert torch.equal(f, same) and info.iterations == 2 and not info.converged and info.residual > 1e-6


def test_backward_says_if_it_did_not_converge(cpu):
    g = GRAPHS["chain"]
    x, diag = torch.randn(g.num_nodes, 3, requires_grad=True), torch.full((g.num_nodes,), 1.01, requires_grad=True)
    for leaves in ((x,), (x, diag)):
        f, _ = uf.solve(g, x, diag if len(leaves) == 2 else 1.01, max_iter=2, return_info=True)
        with pytest.warns(UserWarning, match="solve did not converge"):
            torch.autograd.grad(f.sum(), leaves)


@pytest.mark.long
def test_rounding_is_the_limit(backend):
    # 1e-12 is out of reach in float32: the end is near the best that there is, soon, and says so
    g = GRAPHS["power_law"]
    x = torch.randn(g.num_nodes, 3)
    _, info = uf.solve(g, x, 1.2, tol=1e-12, return_info=True, backend=backend)
    assert not info.converged and info.residual < 2e-6 and info.iterations < 300


@pytest.mark.float64
def test_nearly_singular(backend):
    g = GRAPHS["power_law"]
    torch.manual_seed(0)
    x = torch.randn(g.num_nodes, 3, dtype=torch.float64)
    f, info = uf.solve(g, x, 1 + 1e-7, tol=1e-8, return_info=True, backend=backend)
    exact = statement(g, x, torch.full((g.num_nodes,), 1 + 1e-7, dtype=torch.float64), None, None, "sym")
    assert info.converged and (f - exact).norm() < 1e-3 * exact.norm()


@pytest.mark.parametrize("diag", (0.3, "node"))
def test_indefinite_matrix(diag, backend):
    g = GRAPHS["power_law"]
    x = torch.randn(g.num_nodes, 3)
    if diag == "node":
        diag = torch.full((g.num_nodes,), 2.0)
        diag[7] = 1e-3
    with pytest.raises(ValueError, match=r"must be positive definite, got <p, M p> = -"):
        uf.solve(g, x, diag, backend=backend)


@pytest.mark.parametrize("bad", (torch.nan, torch.inf, -torch.inf))
def test_a_column_that_is_not_finite(bad, backend):
    g = GRAPHS["two_components"]
    torch.manual_seed(0)
    x = torch.randn(g.num_nodes, 5)
    good = uf.solve(g, x, 2.0, backend=backend)
    x[3, 2] = bad
    with pytest.warns(UserWarning, match=r"solve did not converge: residual nan.*x or the matrix is not finite"):
        f = uf.solve(g, x, 2.0, backend=backend)
    assert f[:, 2].isnan().all()
    others = [0, 1, 3, 4]
    torch.testing.assert_close(f[:, others], good[:, others])
    _, info = uf.solve(g, x, 2.0, return_info=True, backend=backend)
    assert info.residual != info.residual and not info.converged


@pytest.mark.long
@pytest.mark.parametrize("dtype", (torch.float32, FLOAT64))
@pytest.mark.parametrize("large", (False, True))
def test_very_small_and_large_values(dtype, large, backend):
    scale = 10.0 ** ((36 if dtype == torch.float32 else 290) * (1 if large else -1))
    # their squares are no numbers any more
    g = GRAPHS["power_law"]
    torch.manual_seed(0)
    x = torch.randn(g.num_nodes, 3, dtype=dtype)
    f, info = uf.solve(g, scale * x, 1.5, return_info=True, backend=backend)
    assert info.converged and info.iterations > 3
    torch.testing.assert_close(f / scale, uf.solve(g, x, 1.5, backend=backend), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", ((0, 4), (5, 0), (5, 0, 3), (5, 3, 0), (0, 2, 3)))
def test_nothing_to_compute(shape, backend):
    g = uf.Graph.from_edge_index([[], []], shape[0])
    x = torch.ones(shape, requires_grad=True)
    diag = torch.full((shape[0],), 3.0, requires_grad=True)
    f, info = uf.solve(g, x, diag, c=torch.rand(shape[0]), return_info=True, backend=backend)
    assert f.shape == shape and info == (0, 0.0, True)
    f.sum().backward()
    assert x.grad.shape == shape and diag.grad.shape == (shape[0],)


def test_zero_x(backend):
    g = GRAPHS["star"]
    f, info = uf.solve(g, torch.zeros(g.num_nodes, 3), 2.0, return_info=True, backend=backend)
    assert (f == 0).all() and info == (0, 0.0, True)


def test_the_result_of_a_constant_matrix_may_be_changed(cpu):
    g = GRAPHS["chain"]
    x = torch.randn(g.num_nodes, 3, requires_grad=True)
    f = uf.solve(g, x, 2.0)
    loss = f.sum()
    f.detach().zero_()
    (grad,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(grad, uf.solve(g, torch.ones_like(x), 2.0).detach())


def test_memory_does_not_grow_with_iterations(cpu):
    g = GRAPHS["power_law"]
    x = torch.randn(g.num_nodes, 16, requires_grad=True)
    diag, c = torch.full((g.num_nodes,), 2.001, requires_grad=True), torch.ones(g.num_nodes, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        _, info = uf.solve(g, x, diag, c=c, return_info=True)
    assert info.iterations > 20 and sum(kept) <= x.numel() + diag.numel() + c.numel()


def test_float16_falls_back_to_the_reference(cpu, monkeypatch):
    monkeypatch.setattr(uf._backend, "_warned", set())
    g = GRAPHS["chain"]
    x = torch.randn(g.num_nodes, 3, dtype=torch.float16)
    with pytest.warns(UserWarning, match=r"solve.*float16.*reference"):
        f = uf.solve(g, x, 2.0)
    assert f.dtype == torch.float16
    torch.testing.assert_close(f, uf.solve(g, x.float(), 2.0).half(), atol=1e-3, rtol=1e-3)


G = GRAPHS["chain"]
X, ONES, VALUE = torch.ones(G.num_nodes, 3), torch.ones(G.num_nodes), torch.ones(G.num_edges)
REFUSED = {
    "graph": (TypeError, "g must be a ugnn_fast.Graph", (None, X, 2.0), {}),
    "x": (ValueError, r"x must be \[N, D\]", (G, ONES, 2.0), {}),
    "diag zero": (ValueError, "diag must be > 0, got 0", (G, X, 0), {}),
    "diag nan": (ValueError, "diag must be finite, got nan", (G, X, float("nan")), {}),
    "diag list": (TypeError, "diag must be a number, got list", (G, X, [2.0]), {}),
    "diag shape": (ValueError, r"diag must be \[N\] = \[20\], got \[19\]", (G, X, ONES[1:]), {}),
    "diag dtype": (TypeError, "diag must be torch.float32", (G, X, ONES.double()), {}),
    "diag values": (ValueError, r"diag must be finite and > 0 everywhere, got -?0.0 at node 0", (G, X, 0 * ONES), {}),
    "diag inf": (ValueError, r"diag must be finite and > 0 everywhere, got inf", (G, X, torch.inf * ONES), {}),
    "c values": (ValueError, "c must be finite everywhere, got nan", (G, X, 2.0), {"c": torch.nan * ONES}),
    "c replicas": (ValueError, r"c must be \[N\]", (G, X, 2.0), {"c": ONES[:, None].expand(-1, 2)}),
    "both": (ValueError, "c and edge_value both give W", (G, X, 2.0), {"c": 1.0, "edge_value": VALUE}),
    "edge shape": (ValueError, r"edge_value must be \[E\]", (G, X, 2.0), {"edge_value": VALUE[1:]}),
    "edge nan": (ValueError, "edge_value must be finite and the same", (G, X, 2.0), {"edge_value": torch.nan * VALUE}),
    "edge inf": (ValueError, "edge_value must be finite and the same", (G, X, 2.0), {"edge_value": torch.inf * VALUE}),
    "edge order": (
        ValueError,
        r"the same for \(i, j\) and \(j, i\), got 1.0 at \(0, 1\) and 2.0 at \(1, 0\)",
        (G, X, 9.0),
        {"edge_value": torch.arange(float(G.num_edges))},
    ),
    "norm row": (ValueError, r'norm must be "sym" or "none", as M must be symmetric', (G, X, 2.0), {"norm": "row"}),
    "norm": (ValueError, "norm must be one of sym, none, got 'both'", (G, X, 2.0), {"norm": "both"}),
    "tol zero": (ValueError, "tol must be > 0, got 0", (G, X, 2.0), {"tol": 0.0}),
    "tol negative": (ValueError, "tol must be > 0, got -1", (G, X, 2.0), {"tol": -1e-6}),
    "tol nan": (ValueError, "tol must be finite, got nan", (G, X, 2.0), {"tol": float("nan")}),
    "tol text": (TypeError, "tol must be a number, got str", (G, X, 2.0), {"tol": "1e-6"}),
    "max_iter zero": (ValueError, "max_iter must be >= 1, got 0", (G, X, 2.0), {"max_iter": 0}),
    "max_iter float": (TypeError, "max_iter must be an int, got float", (G, X, 2.0), {"max_iter": 10.0}),
    "backend": (ValueError, "backend must be auto or one of", (G, X, 2.0), {"backend": "gpu"}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    error, message, arguments, options = REFUSED[name]
    with pytest.raises(error, match=message):
        uf.solve(*arguments, **options)


@pytest.mark.long
def test_symmetric_up_to_rounding(backend):
    g = GRAPHS["power_law"]
    torch.manual_seed(0)
    value = torch.rand(g.num_edges)
    value = (value + value[g.reverse]) / 3
    nearly = value * (1 + 2e-7 * torch.rand(g.num_edges))
    x = torch.randn(g.num_nodes, 2)
    got, exact = (uf.solve(g, x, 2.0, edge_value=v, backend=backend) for v in (nearly, value))
    torch.testing.assert_close(got, exact, rtol=1e-4, atol=1e-5)

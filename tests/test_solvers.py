"""Every solver against the minimiser of the same problem in dense float64; its gradients, report and warnings."""

import itertools
import warnings

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast import regularizers as reg
from ugnn_fast import solvers
from ugnn_fast.testing import degrees, entries, sample_graphs

GRAPHS = {name: g for name, g in sample_graphs().items() if "hub" not in name}


def signal(g, *shape, dtype=torch.float64):
    return torch.randn(g.num_nodes, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def node_weights(g):
    return 3 * torch.rand(g.num_nodes, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def edge_weights(g):
    values = torch.rand(g.num_edges, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return values + values[g.reverse]


def dense_form(g, values, normalized):
    """Q with r = <F, Q F> = 1/2 sum_ij values_ij a_ij |N_i F_i - N_j F_j|^2, values symmetric; summed by entry."""
    i, j, a = entries(g)
    d = degrees(g)
    side = torch.where(d > 0, d, torch.inf).rsqrt() if normalized else torch.ones_like(d)
    rows = torch.zeros(g.num_edges, g.num_nodes, dtype=torch.float64)
    e = torch.arange(g.num_edges)
    rows = rows.index_put((e, i), side[i], accumulate=True).index_put((e, j), -side[j], accumulate=True)
    return rows.T @ ((values * a / 2)[:, None] * rows)


def pair_form(g, cp, cn):
    N = g.num_nodes
    apart = N * torch.eye(N, dtype=torch.float64) - torch.ones(N, N, dtype=torch.float64)
    return (cp + cn) * dense_form(g, torch.ones(g.num_edges, dtype=torch.float64), False) - cn * apart


def node_form(g, c, normalized):
    i, j = g.edge_index
    return dense_form(g, (c[i] + c[j]) / 2, normalized)


def scaled(g, c):
    """c times one, per stored entry."""
    return c * torch.ones(g.num_edges, dtype=torch.float64)


# name: (regulariser of (graph, scale), Q of (graph, scale)); cn stays under 1 / N
QUADRATIC = {
    "laplacian": (lambda g, a: reg.Laplacian(2 * a), lambda g, a: dense_form(g, scaled(g, 2 * a), True)),
    "laplacian-plain": (lambda g, a: reg.Laplacian(2 * a, False), lambda g, a: dense_form(g, scaled(g, 2 * a), False)),
    "adaptive": (
        lambda g, a: reg.AdaptiveLaplacian(a * node_weights(g)), lambda g, a: node_form(g, a * node_weights(g), True)
    ),
    "adaptive-plain": (
        lambda g, a: reg.AdaptiveLaplacian(a * node_weights(g), False),
        lambda g, a: node_form(g, a * node_weights(g), False),
    ),
    "edge": (
        lambda g, a: reg.EdgeLaplacian(a * edge_weights(g)), lambda g, a: dense_form(g, a * edge_weights(g), True)
    ),
    "edge-plain": (
        lambda g, a: reg.EdgeLaplacian(a * edge_weights(g), False),
        lambda g, a: dense_form(g, a * edge_weights(g), False),
    ),
    "pairnorm": (
        lambda g, a: reg.PairNorm(a, 0.5 * a / max(g.num_nodes, 1)),
        lambda g, a: pair_form(g, a, 0.5 * a / max(g.num_nodes, 1)),
    ),
}  # fmt: skip


def minimiser(g, s, form):
    """argmin |F - S|^2 + <F, Q F>."""
    return torch.linalg.solve(torch.eye(g.num_nodes, dtype=torch.float64) + form, s.flatten(1)).reshape(s.shape)


ENOUGH = {
    "descent": solvers.GradientDescent(3000),
    "chebyshev": solvers.Chebyshev(300),
    "cg": solvers.ConjugateGradient(1e-12),
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", QUADRATIC)
@pytest.mark.parametrize("solver", ENOUGH)
def test_minimiser(solver, name, graph):
    g = GRAPHS[graph]
    make, form = QUADRATIC[name]
    s = signal(g, 3)
    f, info = ENOUGH[solver](g, s, make(g, 1.0), return_info=True)
    Q = form(g, 1.0)
    expected = minimiser(g, s, Q)
    torch.testing.assert_close(f, expected, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(info.energy, (expected - s).square().sum() + (expected * (Q @ expected)).sum())
    assert info.residual < 1e-7


def slope(f, s, Q):
    return 2 * (f - s) + 2 * Q @ f


@pytest.mark.parametrize("graph", ("power_law", "weighted_no_self_loops", "isolated", "empty"))
@pytest.mark.parametrize("step", ("none", "number", "node"))
@pytest.mark.parametrize("name", QUADRATIC)
def test_descent_takes_the_gradient_step(name, step, graph):
    g = GRAPHS[graph]
    make, form = QUADRATIC[name]
    s, Q = signal(g, 3), form(g, 1.0)
    given = {"none": None, "number": 0.03, "node": 0.05 * torch.rand(g.num_nodes, dtype=torch.float64)}[step]
    f, info = solvers.GradientDescent(4, given)(g, s, make(g, 1.0), return_info=True)
    b = given
    if step == "none" and name == "pairnorm":
        largest = (degrees(g) - float(g.self_loops)).max().item() if g.num_nodes else 0
        N = max(g.num_nodes, 1)
        b = 1 / (2 + 4 * (1 + 0.5 / N) * largest - 1)
    elif step == "none":
        # 1 / (2 + t) with t from P = diag(t) - 2 Q, whose diagonal has the self loops that cancel in Q
        b = 1 / (2 + diagonal(g, make(g, 1.0)))
    b = b[:, None] if isinstance(b, torch.Tensor) else b
    expected = s
    for _ in range(4):
        expected = expected - b * slope(expected, s, Q)
    torch.testing.assert_close(f, expected, rtol=1e-10, atol=1e-10)
    assert info.iterations == 4 and info.converged is None and info.gap is None
    if g.num_nodes:
        relative = (slope(f, s, Q).norm(dim=0) / (2 * s).norm(dim=0)).max().item()
        assert info.residual == pytest.approx(relative, rel=1e-6, abs=1e-12)


def diagonal(g, regularizer):
    """t_i = N_i^2 sum_j a_ij W_ij, entry by entry."""
    i, j, a = entries(g)
    d = degrees(g)
    if isinstance(regularizer, reg.EdgeLaplacian):
        W = 2 * regularizer.c_ij
    elif isinstance(regularizer, reg.Laplacian):
        W = 2 * scaled(g, regularizer.c)
    else:
        W = regularizer.c[i] + regularizer.c[j]
    side = torch.where(d > 0, d, torch.inf).reciprocal() if regularizer.normalized else torch.ones_like(d)
    return side * torch.zeros_like(d).index_add(0, i, a * W)


@pytest.mark.parametrize("name", QUADRATIC)
@pytest.mark.parametrize("graph", ("power_law", "star", "weighted_no_self_loops"))
def test_energy_falls(name, graph):
    g = GRAPHS[graph]
    s, regularizer = signal(g, 3), QUADRATIC[name][0](g, 1.0)
    energies = [
        solvers.GradientDescent(K)(g, s, regularizer, return_info=True)[1].energy.item() for K in (0, 1, 2, 3, 5, 8, 20)
    ]
    assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(energies))
    assert energies[-1] < 0.99 * energies[0]


def test_chebyshev_is_ahead_of_descent():
    g = GRAPHS["chain"]
    s, regularizer = signal(g, 3), reg.Laplacian(20.0)
    best = minimiser(g, s, dense_form(g, scaled(g, 20.0), True))
    for K in (20, 40, 60):
        off = {
            kind: (kind(K)(g, s, regularizer) - best).norm() for kind in (solvers.Chebyshev, solvers.GradientDescent)
        }
        assert off[solvers.Chebyshev] < 0.5 * off[solvers.GradientDescent]
        rate = (41**0.5 - 1) / (41**0.5 + 1)
        assert off[solvers.Chebyshev] <= 2 * rate**K / (1 + rate ** (2 * K)) * (s - best).norm() * (1 + 1e-9)


@pytest.mark.parametrize("steps", (0, 1, 2))
@pytest.mark.parametrize("kind", (solvers.GradientDescent, solvers.Chebyshev))
def test_few_steps(kind, steps):
    g = GRAPHS["weighted"]
    s = signal(g, 2)
    f = kind(steps)(g, s, reg.Laplacian(1.0))
    if steps == 0:
        assert torch.equal(f, s) and f.data_ptr() != s.data_ptr()
    if steps == 1:
        torch.testing.assert_close(f, uf.ada_propagate(g, s, 1.0, 1))


ANY = {
    "descent": solvers.GradientDescent(5),
    "step": solvers.GradientDescent(3, 0.02),
    "chebyshev": solvers.Chebyshev(5),
    "cg": solvers.ConjugateGradient(1e-13),
}


@pytest.mark.parametrize("name", QUADRATIC)
@pytest.mark.parametrize("solver", ANY)
def test_gradcheck(solver, name):
    g = GRAPHS["weighted_no_self_loops"]
    s = signal(g, 2).requires_grad_()
    a = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    function = lambda s, a: ANY[solver](g, s, QUADRATIC[name][0](g, a))  # noqa: E731
    assert torch.autograd.gradcheck(function, (s, a), fast_mode=True)
    assert torch.autograd.gradcheck(lambda s: function(s, a.detach()), (s,), fast_mode=True)


@pytest.mark.parametrize("name", QUADRATIC)
@pytest.mark.parametrize("solver", ANY)
def test_replicas_and_float32(solver, name):
    g = GRAPHS["two_components"]
    regularizer, s = QUADRATIC[name][0](g, 1.0), signal(g, 3, 4)
    f = ANY[solver](g, s, regularizer)
    for r in range(3):
        torch.testing.assert_close(f[:, r], ANY[solver](g, s[:, r], regularizer), rtol=1e-9, atol=1e-9)
    loose = solvers.ConjugateGradient(1e-5) if solver == "cg" else ANY[solver]
    single = loose(g, s.float(), regularizer.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), f, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("normalized", (True, False))
@pytest.mark.parametrize("solver", ANY)
def test_replicas_with_weights_of_their_own(solver, normalized):
    g = GRAPHS["weighted"]
    c = torch.stack([node_weights(g), node_weights(g).flip(0)], dim=1)
    s = signal(g, 2, 3)
    f, info = ANY[solver](g, s, reg.AdaptiveLaplacian(c, normalized), return_info=True)
    assert info.energy.shape == (2,)
    for r in range(2):
        single, one = ANY[solver](g, s[:, r], reg.AdaptiveLaplacian(c[:, r], normalized), return_info=True)
        torch.testing.assert_close(f[:, r], single)
        torch.testing.assert_close(info.energy[r], one.energy)


def test_one_call_of_an_operator(monkeypatch):
    calls = []

    def counted(module, name):
        function = getattr(module, name)

        def call(g, x, steps, *args, **kwargs):
            # what prepares the coefficients has one column
            calls.extend([name] if x.shape[-1] > 1 else [])
            return function(g, x, steps, *args, **kwargs)

        monkeypatch.setattr(module, name, call)

    counted(solvers, "propagate")
    counted(solvers, "ada_propagate")
    g = GRAPHS["weighted"]
    for name, (make, _) in QUADRATIC.items():
        for solver in (solvers.GradientDescent(7), solvers.GradientDescent(7, 0.1), solvers.Chebyshev(7)):
            calls.clear()
            solver(g, signal(g, 3), make(g, 1.0))
            fused = isinstance(solver, solvers.GradientDescent) and solver.step_size is None
            assert calls == ["ada_propagate" if fused and name in ("laplacian", "adaptive") else "propagate"]


@pytest.fixture(scope="module")
def tight():
    """A connected graph, and cn beyond 1 / N that it still allows with cp = 1."""
    g = GRAPHS["duplicates"]
    ring = torch.stack([torch.arange(30), (torch.arange(30) + 1) % 30])
    g = uf.Graph.from_edge_index(torch.cat([g.edge_index, ring], dim=1), 30, symmetrize=True)
    second = torch.linalg.eigvalsh(dense_form(g, scaled(g, 1.0), False))[1].item()
    return g, 0.8 * (1 + second) / (30 - second)


def test_pairnorm_beyond_one_over_n(tight):
    g, cn = tight
    assert cn * g.num_nodes > 1.2
    s, regularizer = signal(g, 3) + 5, reg.PairNorm(1.0, cn)
    expected = minimiser(g, s, pair_form(g, 1.0, cn))
    f, info = solvers.ConjugateGradient(1e-12)(g, s, regularizer, return_info=True)
    torch.testing.assert_close(f, expected, rtol=1e-9, atol=1e-9)
    assert info.converged and info.residual <= 1e-12
    f = solvers.GradientDescent(5000)(g, s, regularizer)
    torch.testing.assert_close(f, expected, rtol=1e-6, atol=1e-6)
    replicas = solvers.ConjugateGradient(1e-12)(g, torch.stack([s, -s], 1), regularizer)
    torch.testing.assert_close(replicas, torch.stack([expected, -expected], 1), rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="Chebyshev needs cn N < 1"):
        solvers.Chebyshev(3)(g, s, regularizer)
    with pytest.warns(RuntimeWarning, match="ConjugateGradient: relative residual .* after 2 iterations"):
        solvers.ConjugateGradient(1e-12, max_iter=2)(g, s, regularizer)


def test_pairnorm_beyond_one_over_n_gradcheck(tight):
    g, cn = tight
    cn = torch.tensor(cn, dtype=torch.float64, requires_grad=True)
    cp = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    s = signal(g, 2).requires_grad_()
    for solver in (solvers.ConjugateGradient(1e-13), solvers.GradientDescent(4)):
        assert torch.autograd.gradcheck(
            lambda s, cp, cn, solver=solver: solver(g, s, reg.PairNorm(cp, cn)), (s, cp, cn), fast_mode=True
        )


def test_dropedge_solves_on_what_is_kept():
    g = GRAPHS["power_law"]
    s = signal(g, 2)
    drop = reg.DropEdge(2.0, 0.4, seed=3)
    kept = uf.drop_edges(g, 0.4, seed=3)
    for solver in ANY.values():
        torch.testing.assert_close(solver(g, s, drop), solver(kept, s, reg.Laplacian(2.0)))
    drop.eval()
    torch.testing.assert_close(ENOUGH["cg"](g, s, drop), ENOUGH["cg"](g, s, reg.Laplacian(2.0)))


def test_report_is_of_the_mask_of_the_solve():
    g = GRAPHS["power_law"]
    torch.manual_seed(0)
    _, info = solvers.GradientDescent(2000)(g, signal(g, 2), reg.DropEdge(2.0, 0.5), return_info=True)
    assert info.residual < 1e-10


def laplacian_matrix(g):
    return dense_form(g, scaled(g, 1.0), False)


@pytest.mark.parametrize("graph", [name for name, g in GRAPHS.items() if g.num_nodes])
def test_trend_filter_meets_its_gap(graph):
    g = GRAPHS[graph]
    s, L = signal(g, 3), laplacian_matrix(g)
    f, info = solvers.PrimalDual(5000, tol=1e-9, on_fail="raise")(g, s, reg.TrendFilter(0.4), return_info=True)
    objective = lambda f: (f - s).square().sum() + 0.4 * (L @ f).abs().sum()  # noqa: E731
    torch.testing.assert_close(info.energy, objective(f))
    assert info.converged and info.gap >= -1e-12 and info.residual <= 1e-9
    # no point nearby is better by more than the gap
    generator = torch.Generator().manual_seed(0)
    for size in (1e-1, 1e-3, 1e-5):
        other = f + size * torch.randn(f.shape, generator=generator, dtype=f.dtype)
        assert objective(other) >= info.energy - info.gap - 1e-12


@pytest.mark.parametrize("graph", ("chain", "star", "isolated", "weighted", "two_components"))
def test_trend_filter_is_that_of_cvxpy(graph):
    cvxpy = pytest.importorskip("cvxpy")
    g = GRAPHS[graph]
    s, L = signal(g, 2), laplacian_matrix(g)
    for c in (0.05, 0.7):
        f = solvers.PrimalDual(20000, tol=1e-11)(g, s, reg.TrendFilter(c))
        F = cvxpy.Variable(s.shape)
        problem = cvxpy.Problem(
            cvxpy.Minimize(cvxpy.sum_squares(F - s.numpy()) + c * cvxpy.sum(cvxpy.abs(L.numpy() @ F)))
        )
        problem.solve(solver="CLARABEL")
        torch.testing.assert_close(f, torch.from_numpy(F.value), rtol=1e-4, atol=1e-4)


def test_trend_filter_hub_does_not_slow_the_rest():
    # a chain and a star side by side: the chain converges as fast as alone
    chain = GRAPHS["chain"]
    star = torch.stack([torch.zeros(2000, dtype=torch.long), torch.arange(1, 2001)]) + 20
    both = uf.Graph.from_edge_index(torch.cat([chain.edge_index, star], dim=1), 2021, symmetrize=True)
    s = signal(both, 1)
    solver, regularizer = solvers.PrimalDual(200), reg.TrendFilter(0.4)
    exact = solvers.PrimalDual(20000, tol=1e-12)(chain, s[:20], regularizer)
    torch.testing.assert_close(solver(both, s, regularizer)[:20], exact, rtol=1e-3, atol=1e-3)


def test_trend_filter_gradcheck_and_types():
    g = GRAPHS["weighted_no_self_loops"]
    s = signal(g, 2).requires_grad_()
    c = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    for steps in (1, 6):
        function = lambda s, c, steps=steps: solvers.PrimalDual(steps)(g, s, reg.TrendFilter(c))  # noqa: E731
        assert torch.autograd.gradcheck(function, (s, c), fast_mode=True)
    replicas = solvers.PrimalDual(30)(g, signal(g, 2, 3), reg.TrendFilter(0.3))
    for r in range(2):
        single = solvers.PrimalDual(30)(g, signal(g, 2, 3)[:, r], reg.TrendFilter(0.3))
        torch.testing.assert_close(replicas[:, r], single, rtol=1e-12, atol=1e-12)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 5e-2)):
        low = solvers.PrimalDual(30)(g, signal(g, 2, 3, dtype=dtype), reg.TrendFilter(0.3))
        assert low.dtype == dtype
        torch.testing.assert_close(low.double(), replicas, rtol=tolerance, atol=tolerance)
    assert torch.equal(solvers.PrimalDual(0)(g, s, reg.TrendFilter(0.3)), s)


def test_energy_function_descends():
    g = GRAPHS["power_law"]
    s = signal(g, 2).requires_grad_()
    smooth = reg.Energy(lambda f, graph: reg.Laplacian(1.5).energy(graph, f))
    f = solvers.GradientDescent(6, 0.1)(g, s, smooth)
    expected = solvers.GradientDescent(6, 0.1)(g, s, reg.Laplacian(1.5))
    torch.testing.assert_close(f, expected)
    grads = [torch.autograd.grad(h.square().sum(), s)[0] for h in (f, expected)]
    torch.testing.assert_close(*grads)
    with pytest.raises(ValueError, match="step_size must be given for Energy"):
        solvers.GradientDescent(6)(g, s, smooth)


def test_what_happens_when_the_tolerance_is_not_met():
    g = GRAPHS["chain"]
    s = signal(g, 2)
    for solver, regularizer in (
        (lambda how: solvers.PrimalDual(20, tol=1e-10, on_fail=how), reg.TrendFilter(5.0)),
        (lambda how: solvers.ConjugateGradient(1e-12, max_iter=2, on_fail=how), reg.Laplacian(5.0)),
    ):
        name = type(solver("warn")).__name__
        with pytest.warns(RuntimeWarning, match=rf"{name}: .* [0-9.e-]+ .*after (20|2) (steps|iterations), tol = 1e-1"):
            solver("warn")(g, s, regularizer)
        with pytest.raises(RuntimeError, match="after"):
            solver("raise")(g, s, regularizer)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _, info = solver("ignore")(g, s, regularizer, return_info=True)
        assert not info.converged and info.residual > 1e-10


def test_bad_arguments_are_refused():
    g = GRAPHS["chain"]
    s = signal(g, 2)
    for make, error, message in (
        (lambda: solvers.GradientDescent(-1), ValueError, "steps must be >= 0, got -1"),
        (lambda: solvers.GradientDescent(1.5), TypeError, "steps must be an int, got float"),
        (lambda: solvers.GradientDescent(1, -0.1), ValueError, "step_size must be finite and >= 0"),
        (lambda: solvers.ConjugateGradient(tol=-1), ValueError, "tol must be > 0"),
        (lambda: solvers.ConjugateGradient(max_iter=1.0), TypeError, "max_iter must be an int, got float"),
        (lambda: solvers.PrimalDual(3, on_fail="cry"), ValueError, "on_fail must be one of warn, raise, ignore"),
        (lambda: solvers.GradientDescent(2, torch.ones(3).double())(g, s, reg.Laplacian(1.0)), ValueError, "step_size"),
        (lambda: solvers.PrimalDual(2)(g, s, reg.Laplacian(1.0)), TypeError, "must be GradientDescent or .* for Lap"),
        (lambda: solvers.Chebyshev(2)(g, s, reg.TrendFilter(1.0)), TypeError, "must be PrimalDual for TrendFilter"),
        (lambda: solvers.Chebyshev(2)(g, s[:3], reg.Laplacian(1.0)), ValueError, "s must have N = 20 rows"),
        (lambda: solvers.Chebyshev(2)(g, s, None), TypeError, "regularizer must be one of .*, got None"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            make()


def test_step_size_is_a_parameter_or_a_buffer():
    b = torch.nn.Parameter(torch.tensor(0.1, dtype=torch.float64))
    solver = solvers.GradientDescent(3, b)
    assert list(solver.parameters()) == [b]
    g = GRAPHS["chain"]
    solver(g, signal(g, 2), reg.Laplacian(1.0)).sum().backward()
    assert b.grad is not None and b.grad != 0
    assert list(solvers.GradientDescent(3, b.detach()).state_dict()) == ["step_size"]

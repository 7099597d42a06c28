"""What must hold on any graph, tried on random ones."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ugnn_fast as uf

pytestmark = pytest.mark.float64

# the fixtures that hypothesis warns about (backend, poisoned memory) hold for all examples of a test
on_random_graphs = settings(
    deadline=None,
    max_examples=50,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@st.composite
def problems(draw):
    """(graph, x, c, K) in float64."""
    N = draw(st.integers(1, 24))
    M = draw(st.integers(0, 3 * N))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    weight = rng.uniform(0.05, 4, M) if draw(st.booleans()) else None
    edges = rng.integers(0, N, (2, M))
    g = uf.Graph.from_edge_index(edges, N, weight, symmetrize=True, self_loops=draw(st.booleans()))
    D = draw(st.sampled_from((1, 2, 3, 5, 9)))
    x, c = torch.from_numpy(rng.normal(size=(N, D))), torch.from_numpy(rng.uniform(0, 10, N))
    return g, x, c, draw(st.integers(0, 6))


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@given(problem=problems())
@on_random_graphs
def test_no_weight_leaves_x(problem, backend):
    g, x, c, K = problem
    close(uf.ada_propagate(g, x, 0.0, K, backend=backend), x)
    close(uf.ada_propagate(g, x, torch.zeros_like(c), K, backend=backend), x)


@given(problem=problems(), value=st.floats(0, 20))
@on_random_graphs
def test_constant_c_is_appnp(problem, value, backend):
    g, x, c, K = problem
    alpha = 1 / (1 + value)
    h = uf.ada_propagate(g, x, value, K, backend=backend)
    close(h, uf.ada_propagate(g, x, torch.full_like(c, value), K, backend=backend))
    # APPNP has no rule for a node without neighbours
    connected = g.degree > 0
    appnp = uf.propagate(g, x, K, agg=1 - alpha, skip=alpha, backend=backend)
    close(h[connected], appnp[connected])
    close(h[~connected], x[~connected])


@given(problem=problems())
@on_random_graphs
def test_energy_never_rises(problem, backend):
    g, x, c, _ = problem
    energies = []
    for K in range(6):
        h = uf.ada_propagate(g, x, c, K, backend=backend)
        energies.append(uf.denoising_energy(g, h, x, c, backend=backend).item())
    for before, after in itertools.pairwise(energies):
        assert after <= before * (1 + 1e-9) + 1e-9


@given(problem=problems())
@on_random_graphs
def test_many_steps_reach_the_minimum(problem, backend):
    g, x, c, _ = problem
    h = uf.ada_propagate(g, x, c, 400, backend=backend).requires_grad_()
    (gradient,) = torch.autograd.grad(uf.denoising_energy(g, h, x, c, backend=backend), h)
    assert gradient.abs().max() < 1e-6 * (1 + x.abs().max())


OPTIONS = st.fixed_dictionaries(
    {
        "norm": st.sampled_from(("sym", "row", "none")),
        "agg": st.floats(-1, 1),
        "skip": st.floats(-1, 1),
        "keep": st.floats(-1, 1),
        "prev": st.floats(-1, 1),
    }
)


@given(problem=problems(), options=OPTIONS, edges=st.booleans())
@on_random_graphs
def test_backward_is_the_adjoint(problem, options, edges, backend):
    # <P u, v> = <u, P^T v>, and P^T v is the gradient of <P u, v>
    g, u, _, K = problem
    torch.manual_seed(0)
    if edges:
        options = {**options, "edge_value": torch.randn(g.num_edges, dtype=torch.float64)}
    u.requires_grad_()
    h = uf.propagate(g, u, K, backend=backend, **options)
    v = torch.randn_like(h)
    (adjoint,) = torch.autograd.grad(h, u, v)
    other = torch.randn_like(u)
    close((uf.propagate(g, other, K, backend=backend, **options) * v).sum(), (other * adjoint).sum())


@given(problem=problems(), seed=st.integers(0, 1000))
@on_random_graphs
def test_relabelling_permutes(problem, seed, backend):
    g, x, c, K = problem
    order = torch.from_numpy(np.random.default_rng(seed).permutation(g.num_nodes))
    place = order.argsort()
    g2 = uf.Graph.from_edge_index(place[g.edge_index], g.num_nodes, g.weight, self_loops=g.self_loops)
    x2, c2 = x[order], c[order]
    weight = torch.ones(x.shape[1], dtype=x.dtype)
    for function in (
        lambda g, x, c: uf.ada_propagate(g, x, c, K, backend=backend),
        lambda g, x, c: uf.propagate(g, x, min(K, 3), c=c, norm="row", keep=0.5, backend=backend),
        lambda g, x, c: uf.neighbor_mean(g, x, backend=backend),
        lambda g, x, c: uf.neighbor_var(g, x, backend=backend),
        lambda g, x, c: uf.ada_c(g, x, weight, 3.0, backend=backend),
        lambda g, x, c: uf.local_smoothness(g, c.long() % 3, backend=backend).nan_to_num(-1.0),
    ):
        close(function(g2, x2, c2), function(g, x, c)[order])
    energies = [uf.denoising_energy(*problem, backend=backend) for problem in ((g, x, 2 * x, c), (g2, x2, 2 * x2, c2))]
    close(*energies)


@given(problem=problems())
@on_random_graphs
def test_k_steps_are_k_calls(problem, backend):
    g, x, _, K = problem
    options = {"agg": 0.7, "keep": 0.2, "clamp": (-1.0, 1.5), "backend": backend}
    h, states = x, [x]
    for _ in range(K):
        h = uf.propagate(g, h, 1, **options)
        states.append(h)
    close(uf.propagate(g, x, K, **options), h)
    close(uf.propagate(g, x, K, out="all", **options), torch.stack(states))
    gamma = torch.linspace(-1, 1, K + 1, dtype=torch.float64)
    total = uf.propagate(g, x, K, out="sum", gamma=gamma, **options)
    close(total, (gamma[:, None, None] * torch.stack(states)).sum(0))


@given(problem=problems(), s=st.floats(-3, 3))
@on_random_graphs
def test_linear_in_x(problem, s, backend):
    g, x, c, K = problem
    y = torch.randn_like(x)
    for function in (
        lambda x: uf.ada_propagate(g, x, c, K, backend=backend),
        lambda x: uf.propagate(g, x, min(K, 3), c=c, skip=0.5, prev=0.1, backend=backend),
        lambda x: uf.neighbor_mean(g, x, backend=backend),
    ):
        close(function(s * x + y), s * function(x) + function(y))
    close(uf.neighbor_var(g, s * x + 7, backend=backend), s**2 * uf.neighbor_var(g, x, backend=backend))


@given(problem=problems())
@on_random_graphs
def test_replicas_are_single_runs(problem, backend):
    g, x, c, K = problem
    xs, cs = torch.stack([x, -x, x**2], dim=1), torch.stack([c, c / 2, 0 * c], dim=1)
    h = uf.ada_propagate(g, xs, cs, K, backend=backend)
    energy = uf.denoising_energy(g, xs, 2 * xs, cs, backend=backend)
    for r in range(3):
        close(h[:, r], uf.ada_propagate(g, xs[:, r], cs[:, r], K, backend=backend))
        close(energy[r], uf.denoising_energy(g, xs[:, r], 2 * xs[:, r], cs[:, r], backend=backend))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_backends_agree_on_cora(dtype, cpu):
    data = uf.datasets.load("cora")
    torch.manual_seed(0)
    x, c = torch.randn(data.graph.num_nodes, 7).to(dtype), 9 * torch.rand(data.graph.num_nodes)
    results = [uf.ada_propagate(data.graph, x, c, 10, backend=backend) for backend in ("cpu", "reference")]
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)

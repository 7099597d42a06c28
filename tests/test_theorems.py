"""What Ma et al. 2021 prove of graph networks as denoising, in float64, on random graphs and on Cora.

Each theorem is checked twice: the model by its own formula in dense torch, and the framework, against the denoising
problem stated from the paper: |F - S|^2 + c tr(F^T L F), or with weights C_i per node.
"""

import itertools

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast import regularizers as reg
from ugnn_fast import solvers
from ugnn_fast.testing import entries

NAMES = ("sparse", "dense", "weighted", "isolated", "cora")


def random_graph(name):
    generator = torch.Generator().manual_seed(len(name))
    N, M = {"sparse": (60, 90), "dense": (25, 200), "weighted": (40, 120), "isolated": (30, 20)}[name]
    edges = torch.randint(0, N, (2, M), generator=generator)
    weight = torch.rand(M, generator=generator) + 0.1 if name == "weighted" else None
    return uf.Graph.from_edge_index(edges, N, weight, symmetrize=True)


@pytest.fixture(scope="module", params=NAMES)
def problem(request):
    """(graph, A dense with self loops, D^-1/2 A D^-1/2, S)."""
    g = uf.datasets.load("cora").graph if request.param == "cora" else random_graph(request.param)
    i, j, a = entries(g)
    A = torch.zeros(g.num_nodes, g.num_nodes, dtype=torch.float64).index_put((i, j), a)
    S = torch.randn(g.num_nodes, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rho = A.sum(1).rsqrt()
    return g, A, rho[:, None] * A * rho[None, :], S


def objective(F, S, smooth, c):
    """|F - S|^2 + c tr(F^T L F), L = I - D^-1/2 A D^-1/2."""
    return (F - S).square().sum() + c * (F * (F - smooth @ F)).sum()


def node_objective(F, S, A, C, normalize=True):
    """|F - S|^2 + 1/2 sum_i C_i sum_j a_ij |F_i / sqrt(d_i) - F_j / sqrt(d_j)|^2, by distances."""
    U = F * A.sum(1).rsqrt()[:, None] if normalize else F
    squares = U.square().sum(1)
    distances = squares[:, None] + squares[None, :] - 2 * U @ U.T
    return (F - S).square().sum() + 0.5 * (C[:, None] * A * distances).sum()


def gradient(function, at):
    F = at.detach().clone().requires_grad_()
    return torch.autograd.grad(function(F), F)[0]


def weights(g):
    return 4 * torch.rand(g.num_nodes, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def close(a, b, tolerance=1e-9):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("alpha", (0.1, 0.5))
def test_theorem_1_ppnp_is_the_minimiser(problem, alpha):
    g, A, smooth, S = problem
    ppnp = alpha * torch.linalg.solve(torch.eye(len(A), dtype=torch.float64) - (1 - alpha) * smooth, S)
    c = 1 / alpha - 1
    assert gradient(lambda F: objective(F, S, smooth, c), ppnp).abs().max() < 1e-10
    close(solvers.ConjugateGradient(1e-12)(g, S, reg.Laplacian(c)), ppnp)


@pytest.mark.parametrize("alpha, K", ((0.1, 10), (0.5, 3)))
def test_theorem_2_appnp_is_descent(problem, alpha, K):
    g, _A, smooth, S = problem
    c = 1 / alpha - 1
    b = 1 / (2 + 2 * c)
    appnp = descent = S
    for _ in range(K):
        appnp = (1 - alpha) * smooth @ appnp + alpha * S
        descent = descent - b * gradient(lambda F: objective(F, S, smooth, c), descent)
    close(appnp, descent)
    close(solvers.GradientDescent(K)(g, S, reg.Laplacian(c)), appnp)
    close(solvers.GradientDescent(K, step_size=b)(g, S, reg.Laplacian(c)), appnp)


@pytest.mark.parametrize("c", (0.3, 1.0, 7.0))
def test_theorem_3_gcn_is_one_step(problem, c):
    g, _A, smooth, S = problem
    b = 1 / (2 * c)
    close(S - b * gradient(lambda F: objective(F, S, smooth, c), S), smooth @ S)
    close(solvers.GradientDescent(1, step_size=b)(g, S, reg.Laplacian(c)), smooth @ S)


def test_algorithm_1_a_gcn_is_ugnn_layers_in_a_row(problem):
    g, _A, smooth, S = problem
    torch.manual_seed(0)
    linears = [torch.nn.Linear(3, 5), torch.nn.Linear(5, 4), torch.nn.Linear(4, 2)]
    h = expected = S
    for k, linear in enumerate(linears):
        layer = uf.nn.UGNN(linear.double(), reg.Laplacian(1.0), solvers.GradientDescent(1, step_size=0.5))
        h, expected = layer(h, g), smooth @ linear(expected)
        if k < 2:
            h, expected = h.relu(), expected.relu()
    close(h, expected)
    ours, theirs = (torch.autograd.grad(out.square().sum(), linears[0].weight)[0] for out in (h, expected))
    close(ours, theirs, 1e-8)


def test_theorem_4_gat_is_one_step_with_weights_per_node(problem):
    g, A, _smooth, S = problem
    c = 0.1 + weights(g)
    W = A * (c[:, None] + c[None, :])
    b = 1 / W.sum(1)  # 1 / sum_j (c_i + c_j)
    attention = b[:, None] * W
    close(attention.sum(1), torch.ones_like(c))
    close(S - b[:, None] * gradient(lambda F: node_objective(F, S, A, c, False), S), attention @ S, 1e-8)
    close(uf.propagate(g, S, 1, norm="none", c=c, agg=b), attention @ S)
    descent = solvers.GradientDescent(1, step_size=b)
    close(descent(g, S, reg.AdaptiveLaplacian(c, normalized=False)), attention @ S, 1e-8)


def test_theorem_5_ada_ugnn_is_descent(problem):
    g, A, _smooth, S = problem
    C, d = weights(g), A.sum(1)
    b = 1 / (2 + (A * (C[:, None] + C[None, :])).sum(1) / d)
    F = descent = S
    for _ in range(4):
        rho = d.rsqrt()
        F = b[:, None] * (2 * S + (rho[:, None] * A * (C[:, None] + C[None, :]) * rho[None, :]) @ F)
        descent = descent - b[:, None] * gradient(lambda F: node_objective(F, S, A, C), descent)
    close(F, descent, 1e-8)
    close(uf.ada_propagate(g, S, C, 4), F)
    close(solvers.GradientDescent(4)(g, S, reg.AdaptiveLaplacian(C)), F)
    close(solvers.GradientDescent(4, step_size=b)(g, S, reg.AdaptiveLaplacian(C)), F)


def test_the_solver_reaches_the_minimum_of_ada_ugnn(problem):
    g, A, _smooth, S = problem
    C = weights(g)
    F = solvers.ConjugateGradient(1e-12)(g, S, reg.AdaptiveLaplacian(C))
    assert gradient(lambda F: node_objective(F, S, A, C), F).abs().max() < 1e-8
    close(solvers.GradientDescent(600)(g, S, reg.AdaptiveLaplacian(C)), F, 1e-7)
    close(solvers.Chebyshev(150)(g, S, reg.AdaptiveLaplacian(C)), F, 1e-7)


def test_energy_falls_along_descent(problem):
    g, A, _smooth, S = problem
    C = weights(g)
    energies = [node_objective(uf.ada_propagate(g, S, C, K), S, A, C).item() for K in range(8)]
    assert all(after < before for before, after in itertools.pairwise(energies))
    found = solvers.GradientDescent(7)(g, S, reg.AdaptiveLaplacian(C), return_info=True)[1].energy
    assert found.item() == pytest.approx(energies[-1])


def test_node_centric_is_edge_centric(problem):
    g, A, _smooth, S = problem
    C = weights(g)
    i, j = g.edge_index
    edge = reg.EdgeLaplacian((C[i] + C[j]) / 2)
    close(edge.energy(g, S), node_objective(S, S, A, C))
    close(solvers.GradientDescent(5)(g, S, edge), solvers.GradientDescent(5)(g, S, reg.AdaptiveLaplacian(C)))


def test_constant_weights_are_appnp(problem):
    g, _A, smooth, S = problem
    constant = torch.full((g.num_nodes,), 4.0, dtype=torch.float64)
    expected = S
    for _ in range(6):
        expected = 0.8 * smooth @ expected + 0.2 * S
    close(solvers.GradientDescent(6)(g, S, reg.AdaptiveLaplacian(constant)), expected)

"""Every regulariser against its formula in float64, entry by entry or pair by pair, its gradient against autograd."""

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast import _quadratic, _random
from ugnn_fast import regularizers as reg
from ugnn_fast.testing import degrees, entries, sample_graphs

GRAPHS = {name: g for name, g in sample_graphs().items() if "hub" not in name}


def sides(g, normalized):
    """N_i: rho_i, or 1."""
    d = degrees(g)
    return torch.where(d > 0, d, torch.inf).rsqrt() if normalized else torch.ones_like(d)


def entry_energy(g, f, values, normalized):
    """1/2 sum_ij values_ij a_ij |N_i F_i - N_j F_j|^2."""
    i, j, a = entries(g)
    u = sides(g, normalized)[:, None] * f
    return 0.5 * (values * a * (u[i] - u[j]).square().sum(1)).sum()


def adjacency(g):
    i, j, a = entries(g)
    dense = torch.zeros(g.num_nodes, g.num_nodes, dtype=torch.float64).index_put((i, j), a)
    return dense - dense.diag().diag()  # no loops


def laplacian(g):
    dense = adjacency(g)
    return dense.sum(1).diag() - dense


def pair_energy(g, f, cp, cn):
    """Over all pairs i < j, one by one."""
    dense = adjacency(g)
    total = 0 * f.sum()
    for i in range(g.num_nodes):
        for j in range(i):
            total = total + (cp * dense[i, j] - cn * (1 - dense[i, j])) * (f[i] - f[j]).square().sum()
    return total


def kept(g, q, seed):
    """g without what the mask of DropEdge drops, built anew."""
    i, j = g.edge_index
    word = _random.philox(seed, torch.minimum(i, j), torch.maximum(i, j), 0, _random.DROP_EDGE)[0]
    stays = (word >= _random.keep_from(q)) & (i != j)
    weight = None if g.weight is None else g.weight[stays]
    return uf.Graph.from_edge_index(g.edge_index[:, stays], g.num_nodes, weight, self_loops=g.self_loops)


def node_weights(g, *more):
    return 3 * torch.rand(g.num_nodes, *more, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def edge_weights(g):
    values = torch.rand(g.num_edges, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return values + values[g.reverse]


def one(g):
    return torch.ones(g.num_edges, dtype=torch.float64)


# name: (regulariser of a graph, energy of (graph, f [N, D]))
CASES = {
    "laplacian": (lambda g: reg.Laplacian(1.7), lambda g, f: entry_energy(g, f, 1.7 * one(g), True)),
    "laplacian-plain": (lambda g: reg.Laplacian(1.7, False), lambda g, f: 1.7 * (f.T @ laplacian(g) @ f).trace()),
    "adaptive": (
        lambda g: reg.AdaptiveLaplacian(node_weights(g)),
        lambda g, f: entry_energy(g, f, node_weights(g)[g.edge_index[0]], True),
    ),
    "adaptive-plain": (
        lambda g: reg.AdaptiveLaplacian(node_weights(g), normalized=False),
        lambda g, f: entry_energy(g, f, node_weights(g)[g.edge_index[0]], False),
    ),
    "edge": (lambda g: reg.EdgeLaplacian(edge_weights(g)), lambda g, f: entry_energy(g, f, edge_weights(g), True)),
    "edge-plain": (
        lambda g: reg.EdgeLaplacian(edge_weights(g), False),
        lambda g, f: entry_energy(g, f, edge_weights(g), False),
    ),
    "pairnorm": (lambda g: reg.PairNorm(0.8, 0.3), lambda g, f: pair_energy(g, f, 0.8, 0.3)),
    "dropedge": (
        lambda g: reg.DropEdge(1.7, 0.5, seed=11),
        lambda g, f: entry_energy(kept(g, 0.5, 11), f, 1.7 * one(kept(g, 0.5, 11)), True),
    ),
    "dropedge-plain": (
        lambda g: reg.DropEdge(1.7, 0.5, False, seed=11),
        lambda g, f: entry_energy(kept(g, 0.5, 11), f, 1.7 * one(kept(g, 0.5, 11)), False),
    ),
    "trend": (lambda g: reg.TrendFilter(0.6), lambda g, f: 0.6 * (laplacian(g) @ f).abs().sum()),
    "function": (
        lambda g: reg.Energy(lambda f, graph: (1 + f.square()).log().sum((0, -1)) * graph.num_nodes),
        lambda g, f: (1 + f.square()).log().sum() * g.num_nodes,
    ),
}


def signal(g, *shape, dtype=torch.float64, seed=1):
    return torch.randn(g.num_nodes, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
        dtype
    )


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", CASES)
def test_energy_and_gradient(name, graph):
    g = GRAPHS[graph]
    make, statement = CASES[name]
    regularizer, f = make(g), signal(g, 3).requires_grad_()
    expected = statement(g, f)
    energy = regularizer.energy(g, f)
    assert energy.shape == ()
    torch.testing.assert_close(energy, expected, rtol=1e-9, atol=1e-9)
    (slope,) = torch.autograd.grad(expected, f, materialize_grads=True)
    gradient = regularizer.gradient(g, f.detach())
    torch.testing.assert_close(gradient, slope, rtol=1e-9, atol=1e-9)
    # autograd of energy is the same gradient
    (through,) = torch.autograd.grad(energy, f, materialize_grads=True)
    torch.testing.assert_close(through, slope, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("graph", ("power_law", "weighted_no_self_loops", "isolated"))
@pytest.mark.parametrize("name", CASES)
def test_float32(name, graph):
    g = GRAPHS[graph]
    make, statement = CASES[name]
    regularizer, f = make(g).float(), signal(g, 5, dtype=torch.float32)
    exact = f.double().requires_grad_()
    expected = statement(g, exact)
    (slope,) = torch.autograd.grad(expected, exact)
    energy, gradient = regularizer.energy(g, f), regularizer.gradient(g, f)
    assert energy.dtype == gradient.dtype == torch.float32
    torch.testing.assert_close(energy.double(), expected.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gradient.double(), slope, rtol=1e-4, atol=1e-4 * slope.abs().max().item())


@pytest.mark.parametrize("graph", ("two_components", "weighted"))
@pytest.mark.parametrize("name", CASES)
def test_replicas_are_single_runs(name, graph):
    g = GRAPHS[graph]
    regularizer, f = CASES[name][0](g), signal(g, 3, 4)
    energy, gradient = regularizer.energy(g, f), regularizer.gradient(g, f)
    assert energy.shape == (3,) and gradient.shape == f.shape
    for r in range(3):
        torch.testing.assert_close(energy[r], regularizer.energy(g, f[:, r]), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient[:, r], regularizer.gradient(g, f[:, r]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("normalized", (True, False))
def test_replicas_with_weights_of_their_own(normalized):
    g = GRAPHS["weighted"]
    c, f = node_weights(g, 2), signal(g, 2, 3)
    both = reg.AdaptiveLaplacian(c, normalized)
    for r in range(2):
        single = reg.AdaptiveLaplacian(c[:, r], normalized)
        torch.testing.assert_close(both.energy(g, f)[r], single.energy(g, f[:, r]))
        torch.testing.assert_close(both.gradient(g, f)[:, r], single.gradient(g, f[:, r]))


@pytest.mark.parametrize("name", ("laplacian-plain", "adaptive-plain", "edge-plain", "pairnorm"))
def test_a_common_offset_costs_no_digits(name):
    g = GRAPHS["power_law"]
    regularizer, f = CASES[name][0](g).float(), signal(g, 3, dtype=torch.float32)
    torch.testing.assert_close(regularizer.energy(g, f + 1e3), regularizer.energy(g, f), rtol=1e-3, atol=0)


def test_edge_form_is_node_form_is_constant_form():
    g = GRAPHS["weighted"]
    c, f = node_weights(g), signal(g, 3)
    i, j = g.edge_index
    for normalized in (True, False):
        edge = reg.EdgeLaplacian((c[i] + c[j]) / 2, normalized)
        node = reg.AdaptiveLaplacian(c, normalized)
        torch.testing.assert_close(edge.energy(g, f), node.energy(g, f))
        torch.testing.assert_close(edge.gradient(g, f), node.gradient(g, f))
        same = reg.AdaptiveLaplacian(torch.full_like(c, 1.7), normalized)
        torch.testing.assert_close(reg.Laplacian(1.7, normalized).energy(g, f), same.energy(g, f))


PARAMETERS = {
    "laplacian": lambda g, c: reg.Laplacian(c),
    "laplacian-plain": lambda g, c: reg.Laplacian(c, False),
    "adaptive": lambda g, c: reg.AdaptiveLaplacian(c * node_weights(g)),
    "adaptive-plain": lambda g, c: reg.AdaptiveLaplacian(c * node_weights(g), False),
    "edge": lambda g, c: reg.EdgeLaplacian(c * edge_weights(g)),
    "pairnorm": lambda g, c: reg.PairNorm(c, c**2),
    "trend": lambda g, c: reg.TrendFilter(c),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_gradients_of_the_weights(name):
    g = GRAPHS["weighted"]
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    f = signal(g, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda c, f: PARAMETERS[name](g, c).energy(g, f), (c, f), fast_mode=True)
    assert torch.autograd.gradcheck(lambda c, f: PARAMETERS[name](g, c).gradient(g, f), (c, f), fast_mode=True)


def test_parameters_are_registered():
    c = torch.nn.Parameter(torch.tensor(2.0))
    regularizer = reg.Laplacian(c)
    assert list(regularizer.parameters()) == [c] and list(regularizer.state_dict()) == ["c"]
    assert list(reg.AdaptiveLaplacian(torch.ones(3)).state_dict()) == ["c"]
    assert reg.PairNorm(1.0, torch.tensor(0.1)).double().cn.dtype == torch.float64
    assert not reg.Laplacian(2.0).state_dict()
    assert repr(regularizer) == "Laplacian(normalized=True, c=[])"


def test_a_learned_edge_weight_stays_symmetric():
    g = GRAPHS["weighted"]
    c = torch.nn.Parameter(1 + edge_weights(g))
    regularizer = reg.EdgeLaplacian(c)
    optimizer = torch.optim.Adam([c], lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        uf.solvers.GradientDescent(3)(g, signal(g, 2), regularizer).square().sum().backward()
        optimizer.step()
    assert torch.equal(c[g.reverse], c) and not torch.equal(c, 1 + edge_weights(g))


def test_dropedge_draws_in_training_only():
    g = GRAPHS["power_law"]
    f, full = signal(g, 2), reg.Laplacian(1.0)
    drop = reg.DropEdge(1.0, 0.5)
    torch.manual_seed(0)
    energies = [drop.energy(g, f).item() for _ in range(3)]
    assert len(set(energies)) == 3
    torch.manual_seed(0)
    assert [drop.energy(g, f).item() for _ in range(3)] == energies
    drop.eval()
    assert drop.energy(g, f) == full.energy(g, f)
    assert reg.DropEdge(1.0, 0.0).energy(g, f) == full.energy(g, f)
    fixed = reg.DropEdge(1.0, 0.5, seed=5)
    assert fixed.energy(g, f) == fixed.energy(g, f)
    assert fixed.energy(g, f) != reg.DropEdge(1.0, 0.5, seed=6).energy(g, f)


def test_energy_function_with_parameters():
    g = GRAPHS["chain"]

    class Fit(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

        def forward(self, f, graph):
            return self.weight * f.pow(4).sum()

    regularizer = reg.Energy(Fit())
    assert [name for name, _ in regularizer.named_parameters()] == ["fn.weight"]
    f = signal(g, 2).requires_grad_()
    gradient = regularizer.gradient(g, f)
    torch.testing.assert_close(gradient, 8 * f**3)
    gradient.sum().backward()
    torch.testing.assert_close(f.grad, 24 * f.detach() ** 2)
    torch.testing.assert_close(regularizer.fn.weight.grad, (4 * f.detach() ** 3).sum())
    with torch.no_grad():
        torch.testing.assert_close(regularizer.gradient(g, f), 8 * f**3)
    assert reg.Energy(lambda f, graph: f.new_tensor(3.0)).gradient(g, f).eq(0).all()
    assert regularizer.gradient(g, f.detach()).requires_grad
    assert not reg.Energy(lambda f, graph: f.pow(4).sum()).gradient(g, f.detach()).requires_grad


@pytest.mark.parametrize("graph", [name for name, g in GRAPHS.items() if g.num_nodes > 1])
def test_lambda_2(graph, monkeypatch):
    g = GRAPHS[graph]
    expected = torch.linalg.eigvalsh(laplacian(g))[1].item()
    _quadratic._lambda_2.pop(g, None)
    assert _quadratic.lambda_2(g) == pytest.approx(expected, abs=1e-9)
    monkeypatch.setattr(_quadratic, "_DENSE", 0)
    _quadratic._lambda_2.pop(g)
    assert _quadratic.lambda_2(g) == pytest.approx(expected, abs=1e-6)
    assert _quadratic.lambda_2(g) <= expected + 1e-12


def complete(N):
    i, j = torch.triu_indices(N, N, 1)
    return uf.Graph.from_edge_index(torch.stack([i, j]), N, symmetrize=True)


@pytest.mark.parametrize("cn, works", ((0.0, True), (0.099, True), (0.101, False), (5.0, False)))
def test_pairnorm_without_edges_needs_cn_below_one_over_n(cn, works):
    g = uf.Graph.from_edge_index([[], []], 10)
    regularizer, s = reg.PairNorm(1.0, cn), signal(g, 2)
    if works:
        regularizer.check(g)
    else:
        with pytest.raises(ValueError, match=r"cn must be < .* = 0\.1, so that .* N = 10, lambda_2\(D - A\) = 0"):
            uf.solvers.GradientDescent(3)(g, s, regularizer)


def test_pairnorm_bound_is_that_of_the_eigenvalues():
    g = GRAPHS["two_components"]
    connected = uf.Graph.from_edge_index(torch.cat([g.edge_index, torch.tensor([[0], [20]])], 1), 24, symmetrize=True)
    L, N = laplacian(connected), connected.num_nodes
    second = torch.linalg.eigvalsh(L)[1]
    bound = ((1 + 0.5 * second) / (N - second)).item()
    assert bound * N > 1
    for cn, works in ((0.999 * bound, True), (1.001 * bound, False)):
        hessian = torch.eye(N) + (0.5 + cn) * L - cn * (N * torch.eye(N) - torch.ones(N, N))
        assert (torch.linalg.eigvalsh(hessian)[0] > 0) == works
        regularizer = reg.PairNorm(0.5, cn)
        if works:
            regularizer.check(connected)
        else:
            with pytest.raises(ValueError, match="cn must be <"):
                regularizer.check(connected)
    # all pairs are edges: nothing is pushed apart
    reg.PairNorm(0.0, 1e6).check(complete(6))
    reg.PairNorm(0.0, 1e6).check(uf.Graph.from_edge_index([[], []], 1))


BAD = {
    "c < 0": (lambda g: reg.Laplacian(-1.0), ValueError, "c must be finite and >= 0, got -1"),
    "c nan": (lambda g: reg.TrendFilter(float("nan")), ValueError, "c must be finite and >= 0"),
    "c text": (lambda g: reg.Laplacian("1"), TypeError, "c must be a number, got str"),
    "c per node": (lambda g: reg.Laplacian(torch.ones(3)), ValueError, r"c must be .* a 0-d tensor, got \[3\]"),
    "c number": (lambda g: reg.AdaptiveLaplacian(1.0), TypeError, "c must be a tensor or a function .*got float"),
    "edge number": (lambda g: reg.EdgeLaplacian(1.0), TypeError, "c_ij must be a tensor, got float"),
    "cn < 0": (lambda g: reg.PairNorm(1.0, -0.1), ValueError, "cn must be finite and >= 0"),
    "q = 1": (lambda g: reg.DropEdge(1.0, 1.0), ValueError, "q must be < 1, got 1"),
    "seed": (lambda g: reg.DropEdge(1.0, 0.5, seed=0.5), TypeError, "seed must be an int or None, got float"),
    "no function": (lambda g: reg.Energy(3), TypeError, "fn must be a function of .*got int"),
    "negative scalar": (
        lambda g: reg.Laplacian(torch.tensor(-2.0, dtype=torch.float64)), ValueError, "c must be .* >= 0, got -2"
    ),
    "negative node": (
        lambda g: reg.AdaptiveLaplacian(torch.where(torch.arange(g.num_nodes) == 4, -1.0, 2.0).double()),
        ValueError, r"c must be finite and >= 0, got -1.0 at \[4\]",
    ),
    "length": (lambda g: reg.AdaptiveLaplacian(torch.ones(3).double()), ValueError, r"c must be \[N\] = \[20\].*\[3\]"),
    "edge length": (lambda g: reg.EdgeLaplacian(torch.ones(3).double()), ValueError, r"c_ij must be \[E\] .*got \[3\]"),
    "asymmetric": (
        lambda g: reg.EdgeLaplacian(torch.arange(g.num_edges).double()),
        ValueError, r"c_ij must be the same in both directions, got 1.0 at \(0, 1\) and 2.0 at \(1, 0\)",
    ),
    "dtype": (lambda g: reg.AdaptiveLaplacian(torch.ones(20)), TypeError, "c must be torch.float64"),
    "shape of fn": (lambda g: reg.Energy(lambda f, g: f), ValueError, r"fn must give a tensor \[\] for f \[20, 2\]"),
    "c of s": (lambda g: reg.AdaptiveLaplacian(lambda g, s: s[:, 0]), TypeError, "c is a function of S"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_parameters_are_refused(name):
    g = GRAPHS["chain"]
    make, error, message = BAD[name]
    with pytest.raises(error, match=message):
        make(g).energy(g, signal(g, 2))


def test_bad_input_is_refused():
    g = GRAPHS["chain"]
    with pytest.raises(ValueError, match="f must have N = 20 rows"):
        reg.Laplacian(1.0).energy(g, torch.zeros(3, 2))
    with pytest.raises(TypeError, match=r"g must be a ugnn_fast.Graph"):
        reg.Laplacian(1.0).gradient(None, torch.zeros(20, 2))

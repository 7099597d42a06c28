"""DropEdge: every operator on a view with dropped edges equals itself on a graph built from the kept edges."""

import copy
import pickle

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast._random import kept_entries
from ugnn_fast.testing import sample_graphs

GRAPHS = sample_graphs()
Q = 0.4


def rebuilt(g, seed):
    """The kept edges as a graph of their own."""
    i, j = g.edge_index
    kept = kept_entries(i, j, seed, int(Q * 2**32)) & (i != j)
    weight = None if g.weight is None else g.weight[kept]
    return uf.Graph.from_edge_index(g.edge_index[:, kept], g.num_nodes, weight, self_loops=g.self_loops)


def operators(g, x, c, backend):
    """Results of all operators that the backend has, and the gradients of x and c through them."""
    N, D = x.shape
    heads, scores = x.reshape(N, 1, D).tile(1, 2, 1), x.new_ones(N, 2) * c.unsqueeze(1)
    # iterations on the same matrix are the same, however few
    solve = {"tol": 1e-10} if x.dtype == torch.float64 else {"max_iter": 3}
    has = uf.backends()[backend].ops
    calls = {
        "ada_propagate": [
            lambda: uf.ada_propagate(g, x, c, 3, backend=backend),
            lambda: uf.ada_propagate(g, x, 0.7, 3, backend=backend),
        ],
        "propagate": [
            lambda: uf.propagate(g, x, 2, agg=0.9, skip=0.1, backend=backend),
            lambda: uf.propagate(g, x, 2, keep=0.3, c=c, norm="row", backend=backend),
        ],
        "neighbor_mean": [lambda: uf.neighbor_mean(g, x, backend=backend)],
        "neighbor_var": [lambda: uf.neighbor_var(g, x, backend=backend)],
        "ada_c": [lambda: uf.ada_c(g, x, x.new_ones(D), 2.0, backend=backend)],
        "gat_aggregate": [
            lambda: uf.gat_aggregate(g, heads, scores, 0.5 * scores, dropout=0.3, seed=5, backend=backend)
        ],
        "denoising_energy": [lambda: uf.denoising_energy(g, x, 2 * x, c, backend=backend)],
        "ada_solve": [lambda: uf.ada_solve(g, x, c, **solve, return_info=True, backend=backend)[0]],
    }
    results = [call() for op, of_op in calls.items() if op in has for call in of_op]
    loss = sum(result.square().sum() for result in results)
    gradients = torch.autograd.grad(loss, (x, c)) if N and D else ()
    if "local_smoothness" in has:
        results.append(uf.local_smoothness(g, torch.arange(N) % 3, backend=backend))
    return [*results, *gradients]


SOME = ("isolated", "star", "weighted_no_self_loops", "small_hub")


@pytest.mark.needs("drop_edges")
@pytest.mark.filterwarnings("ignore:.*residual")
@pytest.mark.parametrize("name", SOME if uf._backend._interpreting() else GRAPHS)
def test_operators_see_the_kept_edges_only(backend, name):
    triton = backend == "triton"
    g = GRAPHS[name]
    seed = 2**63 + 11
    view, expected = uf.drop_edges(g, Q, seed=seed, backend=backend), rebuilt(g, seed)
    torch.testing.assert_close(view.degree, expected.degree, rtol=1e-6, atol=0)
    torch.manual_seed(0)
    dtype, tolerance = (torch.float32, 1e-4) if triton else (torch.float64, 1e-7)
    x = torch.randn(g.num_nodes, 5, dtype=dtype, requires_grad=True)
    c = torch.rand(g.num_nodes, dtype=dtype, requires_grad=True)
    # the interpreter is slow; other backends must agree with themselves, which says more
    other = "reference" if triton else backend
    for found, right in zip(operators(view, x, c, backend), operators(expected, x, c, other), strict=True):
        torch.testing.assert_close(found, right, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("isa_dtype", [torch.float32, torch.bfloat16])
def test_kernels_agree_with_the_reference(cpu, isa_dtype):
    g = uf.drop_edges(GRAPHS["power_law"], Q, seed=3)
    x = torch.randn(g.num_nodes, 9).to(isa_dtype)
    found, right = (uf.propagate(g, x, 2, agg=0.9, skip=0.1, backend=b) for b in ("cpu", "reference"))
    torch.testing.assert_close(found, right, rtol=2e-2 if isa_dtype == torch.bfloat16 else 1e-5, atol=1e-2)


def test_share_loops_and_directions():
    g = uf.Graph.from_edge_index(torch.combinations(torch.arange(200)).t(), symmetrize=True)
    i, j = g.edge_index
    for q in (0.1, 0.5, 0.9):
        kept = kept_entries(i, j, 7, int(q * 2**32))
        assert kept[i == j].all() and torch.equal(kept, kept[g.reverse])
        edges = kept[i < j].double()
        assert abs(edges.mean() - (1 - q)) < 5 * (0.25 / len(edges)) ** 0.5
        assert uf.drop_edges(g, q, seed=7).degree.sum() == kept.sum()


def test_seeds():
    g = GRAPHS["power_law"]
    same = [uf.drop_edges(g, 0.5, seed=4).degree for _ in range(2)]
    assert torch.equal(*same) and not torch.equal(same[0], uf.drop_edges(g, 0.5, seed=5).degree)
    torch.manual_seed(1)
    drawn = [uf.drop_edges(g, 0.5).degree for _ in range(2)]
    torch.manual_seed(1)
    assert torch.equal(drawn[0], uf.drop_edges(g, 0.5).degree) and not torch.equal(*drawn)


def test_threads_do_not_change_a_bit(cpu):
    g = GRAPHS["hub"]
    x = torch.randn(g.num_nodes, 3)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            view = uf.drop_edges(g, 0.3, seed=9)
            results.append((view.degree, uf.propagate(view, x, 2)))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_the_view_is_a_graph():
    g = GRAPHS["weighted"]
    view = uf.drop_edges(g, 0.25, seed=1)
    assert view.num_edges == g.num_edges and view.col is g.col and "25% of edges dropped" in repr(view)
    assert uf.drop_edges(g, 0) is g
    for other in (pickle.loads(pickle.dumps(view)), copy.deepcopy(view), view.to("cpu")):
        assert repr(other) == repr(view) and other.drop_seed == 1
        x = torch.rand(g.num_nodes, 2)
        assert torch.equal(uf.propagate(other, x, 2), uf.propagate(view, x, 2))


@pytest.mark.needs("propagate")
def test_nan_does_not_pass_a_dropped_edge(backend):
    g = uf.Graph.from_edge_index([[0, 1], [1, 0]], 2)
    seed = next(s for s in range(100) if uf.drop_edges(g, 0.5, seed=s).degree.sum() == 2)
    x = torch.tensor([[torch.nan], [1.0]])
    assert not uf.propagate(uf.drop_edges(g, 0.5, seed=seed), x, 3, backend=backend)[1].isnan()


def test_module_drops_in_training_only():
    g, drop = GRAPHS["power_law"], uf.nn.DropEdge(0.5)
    assert drop(g).drop == 0.5 and drop.eval()(g) is g
    model = uf.nn.GAT(6, 4, 3)
    model(torch.rand(g.num_nodes, 6), drop.train()(g)).sum().backward()
    assert model.layer1.att_src.grad.isfinite().all()


def test_bad_input():
    g = GRAPHS["power_law"]
    for q in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="q must be"):
            uf.drop_edges(g, q)
    with pytest.raises(TypeError, match="seed must be an int"):
        uf.drop_edges(g, 0.5, seed=0.5)
    with pytest.raises(ValueError, match="seed must be one int, got 2"):
        uf.drop_edges(g, 0.5, seed=[1, 2])
    view = uf.drop_edges(g, 0.5, seed=1)
    with pytest.raises(ValueError, match="all of its edges"):
        uf.drop_edges(view, 0.5)
    x, value = torch.rand(g.num_nodes, 2), torch.ones(g.num_edges)
    with pytest.raises(ValueError, match="edge_value must go with all edges"):
        uf.propagate(view, x, 1, edge_value=value)
    with pytest.raises(TypeError, match=r"g must be a ugnn_fast\.Graph"):
        uf.drop_edges(x, 0.5)

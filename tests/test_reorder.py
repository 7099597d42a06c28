"""Graph.reorder: the same graph in another order, and results that are brought back."""

import pickle

import numpy as np
import pytest
import torch

import ugnn_fast as uf
from ugnn_fast import _reorder
from ugnn_fast.testing import sample_graphs

GRAPHS = sample_graphs()


@pytest.mark.parametrize("method", _reorder.METHODS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_results_are_those_of_the_graph(graph, method):
    g = GRAPHS[graph]
    other = g.reorder(method)
    assert sorted(other.perm.tolist()) == list(range(g.num_nodes))
    assert (other.num_edges, other.self_loops) == (g.num_edges, g.self_loops)
    torch.manual_seed(0)
    x, c = torch.randn(g.num_nodes, 3, dtype=torch.float64), torch.rand(g.num_nodes, dtype=torch.float64)
    h = uf.ada_propagate(other, other.permute(x), other.permute(c), 3)
    torch.testing.assert_close(other.unpermute(h), uf.ada_propagate(g, x, c, 3))
    assert torch.equal(other.degree, g.degree[other.perm])
    # edges and their weights are the same pairs of nodes
    i, j = other.perm[other.edge_index]
    entries = g.entry_of((i, j))
    assert len(set(entries.tolist())) == g.num_edges
    if g.weight is not None:
        assert torch.equal(other.weight, g.weight[entries])


def test_there_and_back():
    g = GRAPHS["power_law"].reorder("rcm")
    x = torch.randn(g.num_nodes, 2, 3)
    assert torch.equal(g.unpermute(g.permute(x)), x)
    plain = GRAPHS["power_law"]
    assert plain.perm is None and plain.permute(x) is x and plain.unpermute(x) is x


def test_twice_is_the_order_of_the_first_graph():
    g = GRAPHS["weighted"]
    twice = g.reorder("degree").reorder("community")
    assert torch.equal(twice.degree, g.degree[twice.perm])


def test_degree_is_falling():
    lengths = GRAPHS["power_law"].reorder("degree").rowptr.diff()
    assert (lengths.diff() <= 0).all()


def test_rcm_shortens_the_edges_of_a_shuffled_chain():
    N = 200
    shuffled = np.random.default_rng(0).permutation(N)
    g = uf.Graph.from_edge_index(np.stack([shuffled[:-1], shuffled[1:]]), symmetrize=True)
    i, j = g.reorder("rcm").edge_index
    assert (i - j).abs().max() == 1


def test_communities_lie_side_by_side():
    rng = np.random.default_rng(0)
    groups, size = 20, 30
    number = rng.permutation(groups * size)  # node -> place in its group's block
    inside = [(k * size + a, k * size + b) for k in range(groups) for a in range(size) for b in range(a)]
    across = rng.integers(0, groups * size, (100, 2)).tolist()
    edges = np.array(inside + across).T
    g = uf.Graph.from_edge_index(number[edges], groups * size, symmetrize=True)
    group = torch.empty(groups * size, dtype=torch.int64)
    group[torch.from_numpy(number)] = torch.arange(groups * size) // size
    found = group[g.reorder("community").perm]
    assert (found.diff() != 0).sum() == groups - 1


def test_is_carried_along():
    g = GRAPHS["power_law"].reorder("degree")
    assert torch.equal(pickle.loads(pickle.dumps(g)).perm, g.perm)
    assert torch.equal(uf.drop_edges(g, 0.5, seed=1).perm, g.perm)
    assert g.to("meta").perm.device.type == "meta"


def test_the_same_order_every_time():
    g = GRAPHS["power_law"]
    assert torch.equal(g.reorder("community").perm, g.reorder("community").perm)


def test_bad_arguments():
    g = GRAPHS["chain"]
    with pytest.raises(ValueError, match=r"method must be one of degree, rcm, community, got 'metis'"):
        g.reorder("metis")
    with pytest.raises(ValueError, match="reorder the graph, then drop edges"):
        uf.drop_edges(g, 0.5, seed=1).reorder("degree")
    for name in ("permute", "unpermute"):
        with pytest.raises(ValueError, match=rf"must be \[N, ...\] with N = {g.num_nodes}, got \[{g.num_nodes + 1}\]"):
            getattr(g, name)(torch.ones(g.num_nodes + 1))

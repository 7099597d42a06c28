"""What a graph has and does: its reverse, near form and hubs, copies, devices, repr."""

import copy
import pickle

import numpy as np
import pytest
import torch

from ugnn_fast import _graph_build
from ugnn_fast.graph import Graph


def small_graph():
    return Graph.from_edge_index([[0, 1, 1, 2, 0, 2], [1, 0, 2, 1, 2, 0]], 4, [1, 1, 2, 2, 3, 3])


def test_reverse_and_entry_of(builder):
    rng = np.random.default_rng(3)
    row, col = rng.integers(0, 300, (2, 3000))
    g = Graph.from_edge_index((row, col), 300, symmetrize=True)
    assert g.reverse.dtype == torch.int64 and g.reverse is g.reverse
    assert g.edge_index is g.edge_index
    assert torch.equal(g.edge_index[:, g.reverse], g.edge_index.flip(0))
    entries = g.entry_of(np.stack([row, col]))
    assert entries.dtype == torch.int64
    np.testing.assert_array_equal(g.edge_index[:, entries], np.stack([row, col]))
    assert torch.equal(g.entry_of(g.edge_index), torch.arange(g.num_edges))
    assert g.entry_of([[], []]).shape == (0,)


@pytest.mark.parametrize("pair", [(0, 3), (3, 0), (4, 0), (0, 4), (-1, 0), (0, -1), (2**40, 0), (0, 2**40)])
def test_entry_of_names_the_pair_that_is_no_edge(builder, pair):
    with pytest.raises(ValueError, match=rf"got \({pair[0]}, {pair[1]}\) at edge_index\[:, 1\]"):
        small_graph().entry_of([[0, pair[0]], [1, pair[1]]])
    with pytest.raises(ValueError, match=r"got \(0, 0\)"):
        Graph.from_edge_index([[], []]).entry_of([[0], [0]])


def test_near_form(builder):
    rng = np.random.default_rng(4)
    N = 2500
    row = np.concatenate([rng.integers(0, N, 6000), np.full(2400, 7)])
    col = np.concatenate([rng.integers(0, N, 6000), np.arange(2400)])
    for weight in (None, rng.random(len(row)) + 0.5):
        g = Graph.from_edge_index((row, col), N, weight, symmetrize=True)
        length = g.rowptr.diff().tolist()
        assert g.order.dtype == torch.int32 and g.order.tolist() == sorted(range(N), key=length.__getitem__)
        assert g.near_rowptr.diff().tolist() == sorted(length)
        # row p of the near form is row order[p], entry by entry, with columns renumbered the same way
        order, start = g.order.long(), g.rowptr
        entries = torch.cat([torch.arange(start[i], start[i + 1]) for i in order])
        assert torch.equal(order[g.near_col.long()], g.col[entries].long())
        assert (g.near_weight is None) if weight is None else torch.equal(g.near_weight, g.weight[entries])
        assert g.hubs.dtype == torch.int32 and g.hubs.tolist() == []


def test_large_graphs_have_no_near_form(builder):
    N = _graph_build.NEAR_NODES + 1
    g = Graph.from_edge_index([[0, 5], [5, 0]], N)
    assert len(g.order) == len(g.near_rowptr) == len(g.near_col) == 0 and g.near_weight is None


def test_one_hub_with_100000_neighbours(builder):
    leaves = np.random.default_rng(5).permutation(100_000) + 1
    g = Graph.from_edge_index((np.zeros_like(leaves), leaves), symmetrize=True)
    assert g.num_nodes == 100_001 and g.num_edges == 300_001
    assert g.degree[0] == 100_001 and (g.degree[1:] == 2).all()
    assert torch.equal(g.col[:100_001], torch.arange(100_001, dtype=torch.int32))
    assert g.hubs.tolist() == [0]
    assert torch.equal(g.edge_index[:, g.reverse], g.edge_index.flip(0))


def test_pickle_and_deepcopy():
    for g in (small_graph(), Graph.from_edge_index([[], []], self_loops=False)):
        for other in (pickle.loads(pickle.dumps(g)), copy.deepcopy(g)):
            assert repr(other) == repr(g) and other.self_loops == g.self_loops
            pairs = [(getattr(g, name), getattr(other, name)) for name in ("edge_index", "reverse")]
            for a, b in (*zip(g._own_tensors(), other._own_tensors(), strict=True), *pairs):
                assert (a is None and b is None) or (torch.equal(a, b) and a is not b)


def test_immutable():
    g = small_graph()
    for name in ("rowptr", "weight", "num_nodes", "anything"):
        with pytest.raises(AttributeError, match=f"immutable: cannot set {name}"):
            setattr(g, name, None)
    with pytest.raises(AttributeError, match="immutable: cannot delete col"):
        del g.col


def test_to_another_device():
    g = small_graph()
    assert g.to("cpu") is g and g.to(torch.device("cpu")) is g
    meta = g.to("meta")
    assert meta.device.type == meta.col.device.type == meta.weight.device.type == "meta"
    assert (meta.num_nodes, meta.num_edges, g.device.type) == (4, 10, "cpu")
    with pytest.raises(ValueError, match="edge_weight must be on cpu or the CPU, got meta"):
        Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), None, torch.ones(2, device="meta"))


def test_repr():
    assert repr(small_graph()) == (
        "Graph(num_nodes=4, num_edges=10, entries per row: mean 2.5, max 3, weighted, with self loops, cpu, 272 B)"
    )
    assert "unweighted, without self loops" in repr(Graph.from_edge_index([[], []], self_loops=False))


def test_compiles_without_a_graph_break():
    def read(g, x):
        total = g.rowptr.sum() + g.col.sum() + g.near_col.sum() + g.hubs.sum() + g.num_edges
        return (x * g.degree + total + g.weight.sum()) * g.num_nodes

    g, x = small_graph(), torch.rand(4)
    torch.testing.assert_close(torch.compile(read, fullgraph=True, backend="eager")(g, x), read(g, x))

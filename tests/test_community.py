"""The near form of a large graph, by community: when it is made, and that no bit of a result shows it."""

import itertools
import pickle

import numpy as np
import pytest
import torch

import ugnn_fast as uf
from ugnn_fast import _graph_build
from ugnn_fast._native import native
from ugnn_fast.graph import _MANY_STEPS
from ugnn_fast.testing import sample_graphs

N, SIZE = 70_000, 70  # nodes, and nodes of a community
NAMES = ("order", "near_rowptr", "near_col", "near_weight")


def communities(weighted=False):
    """Nodes at random places that know their own kind, some others, and a hub that half of them know."""
    rng = np.random.default_rng(0)
    place = rng.permutation(N)
    inside = rng.integers(0, N, 5 * N)
    other = inside // SIZE * SIZE + rng.integers(0, SIZE, 5 * N)
    across = rng.integers(0, N, (2, N // 4))
    hub = np.stack([np.full(N // 2, 11), rng.integers(0, N, N // 2)])
    edges = np.concatenate([np.stack([inside, other]), across, hub], axis=1)
    weight = rng.random(edges.shape[1]) + 0.5 if weighted else None
    return uf.Graph.from_edge_index(place[edges], N, weight, symmetrize=True)


@pytest.fixture(scope="module")
def graphs():
    return {weighted: communities(weighted) for weighted in (False, True)}


def fresh(graph):
    """The same graph, never used."""
    return pickle.loads(pickle.dumps(graph))


@pytest.mark.skipif(native is None, reason="needs the native module")
@pytest.mark.parametrize("threads", (1, 2, 5))
@pytest.mark.parametrize("graph", sample_graphs())
def test_the_order_is_that_of_the_numpy_statement(graph, threads):
    g = sample_graphs()[graph]
    arrays = g.rowptr.numpy(), g.col.numpy()
    order = native.community_order(*arrays, threads)
    assert order.dtype == np.int32 and sorted(order.tolist()) == list(range(g.num_nodes))
    np.testing.assert_array_equal(order, _graph_build.community_order(*arrays))


@pytest.mark.parametrize("weighted", (False, True))
def test_it_is_the_same_matrix(weighted, graphs, cpu):
    g = fresh(graphs[weighted])
    assert len(g.order) == 0
    x = torch.ones(N, 1)
    uf.propagate(g, x, _MANY_STEPS - 1)
    assert len(g.order) == 0
    uf.propagate(g, x, 5)
    assert sorted(g.order.tolist()) == list(range(N))
    order = g.order.long()
    assert torch.equal(g.near_rowptr.diff(), g.rowptr.diff()[order])
    entries = torch.cat([torch.arange(g.rowptr[i], g.rowptr[i + 1]) for i in order.tolist()])
    assert torch.equal(order[g.near_col.long()], g.col[entries].long())
    assert torch.equal(g.near_weight, g.weight[entries]) if weighted else g.near_weight is None
    # kept, and carried along
    near = [getattr(g, name) for name in NAMES]
    uf.propagate(g, x, 50)
    assert all(a is b for a, b in zip(near, (getattr(g, name) for name in NAMES), strict=True))
    assert torch.equal(fresh(g).order, g.order)


CALLS = {
    "ada_propagate": lambda g, x, c: uf.ada_propagate(g, x, c, 7),
    "ada_propagate, recompute": lambda g, x, c: uf.ada_propagate(g, x, c, 7, memory="recompute"),
    "ada_propagate, checkpoint": lambda g, x, c: uf.ada_propagate(g, x, c, 7, memory="checkpoint"),
    "ada_propagate, constant c": lambda g, x, c: uf.ada_propagate(g, x, 1.5, 7) + 0 * c.sum(),
    "propagate": lambda g, x, c: uf.propagate(g, x, 7, agg=0.8, skip=0.2) + 0 * c.sum(),
    "propagate with c": lambda g, x, c: uf.propagate(g, x, 7, agg=0.2, c=c.detach()) + 0 * c.sum(),
}
TYPES = (torch.float32, torch.bfloat16, torch.float64)
CASES = [
    (call, D, dtype, weighted)
    for call, D, dtype, weighted in itertools.product(CALLS, (5, 16, 40, 70), TYPES, (False, True))
    if D == 16 or call == "ada_propagate"
]


@pytest.mark.parametrize(("call", "D", "dtype", "weighted"), CASES)
def test_no_bit_changes(call, D, dtype, weighted, graphs, cpu):
    before, after = fresh(graphs[weighted]), fresh(graphs[weighted])
    uf.propagate(after, torch.ones(N, 1), _MANY_STEPS)
    assert len(before.order) == 0 and len(after.order) == N
    assert 7 * after.num_edges > _graph_build.NEAR_WORK * N  # kernels take the near form
    torch.manual_seed(0)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x, c, grad = torch.randn(N, D).to(dtype), torch.rand(N, dtype=wide), torch.randn(N, D).to(dtype)
    results = []
    for g in (before, after):
        leaves = x.clone().requires_grad_(), c.clone().requires_grad_()
        out = CALLS[call](g, *leaves)
        results.append((out.detach(), *torch.autograd.grad(out, leaves, grad)))
    for a, b in zip(*results, strict=True):
        assert a.isfinite().all() and torch.equal(a, b)


@pytest.mark.parametrize("weighted", (False, True))
def test_solve_makes_it_at_once(weighted, graphs, cpu):
    g = fresh(graphs[weighted])
    torch.manual_seed(0)
    x, c, grad = torch.randn(N, 5, dtype=torch.float64), torch.rand(N, dtype=torch.float64), torch.randn(N, 5).double()
    results = []
    for backend in ("cpu", "reference"):
        leaves = x.clone().requires_grad_(), c.clone().requires_grad_()
        out = uf.solve(g, leaves[0], 3.0, c=leaves[1], tol=1e-10, backend=backend)
        results.append((out.detach(), *torch.autograd.grad(out, leaves, grad)))
        assert len(g.order) == N
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-7, atol=1e-7)
    edge_value = torch.ones(g.num_edges, dtype=torch.float64)
    torch.testing.assert_close(
        uf.solve(g, x, 3.0, edge_value=edge_value), uf.solve(g, x, 3.0, c=0.5), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("own", (False, True))
def test_replicas(own, graphs, cpu):
    g = fresh(graphs[False])
    torch.manual_seed(0)
    x = torch.randn(N, 2, 9, requires_grad=True)
    c = torch.rand((N, 2) if own else N, requires_grad=True)
    grad = torch.randn(N, 2, 9)

    def results():
        out = uf.ada_propagate(g, x, c, 5)
        return out, *torch.autograd.grad(out, (x, c), grad)

    expected = results()
    uf.propagate(g, x.detach()[:, 0], _MANY_STEPS)
    assert len(g.order) == N
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert all(torch.equal(a, b) for a, b in zip(results(), expected, strict=True))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("call", [*CALLS.values(), lambda g, x, c: uf.solve(g, x, 3.0, c=c)], ids=[*CALLS, "solve"])
def test_kernels_take_it(call, graphs, cpu):
    g = fresh(graphs[False])
    x, c = torch.randn(N, 5), torch.rand(N)
    uf.propagate(g, x, _MANY_STEPS)
    right = call(g, x, c)
    tensors = [getattr(g, name) for name in ("rowptr", "col", "weight", "degree", "hubs", *NAMES)]
    tensors[-2] = tensors[-2].flip(0)  # other neighbours
    assert not torch.equal(call(uf.Graph._from_tensors(tensors, True, g._longest_row), x, c), right)


def test_backward_keeps_the_form_of_its_forward(graphs, cpu):
    g = fresh(graphs[False])
    x, c = torch.randn(N, 9, requires_grad=True), torch.rand(N, requires_grad=True)
    out = uf.ada_propagate(g, x, c, 7)
    uf.propagate(g, x.detach(), _MANY_STEPS)
    assert len(g.order) == N
    late = torch.autograd.grad(out.sum(), (x, c))
    again = torch.autograd.grad(uf.ada_propagate(g, x, c, 7).sum(), (x, c))
    assert all(torch.equal(a, b) for a, b in zip(late, again, strict=True))


def test_not_where_it_brings_nothing(graphs, cpu):
    x = torch.ones(N, 1)
    torch.manual_seed(0)
    without = uf.Graph.from_edge_index(torch.randint(0, N, (2, 8 * N)), N, symmetrize=True)
    uf.propagate(without, x, 2 * _MANY_STEPS)
    assert len(without.order) == 0
    # few steps in a call do not make up for two changes of order
    g = fresh(graphs[False])
    for _ in range(2 * _MANY_STEPS):
        uf.propagate(g, x, 1)
    assert len(g.order) == 0
    # these read values in the order of the graph
    for options in ({"keep": 0.2}, {"out": "all"}, {"clamp": (0.0, 1.0)}, {"edge_value": torch.ones(g.num_edges)}):
        uf.propagate(g, x, 2 * _MANY_STEPS, **options)
        assert len(g.order) == 0
    view = uf.drop_edges(g, 0.5, seed=1)
    uf.propagate(view, x, 2 * _MANY_STEPS)
    assert len(view.order) == 0


def test_not_without_memory_for_it(graphs, cpu, monkeypatch):
    g = fresh(graphs[False])
    with monkeypatch.context() as patch:
        patch.setattr(uf.graph._memory, "free_bytes", lambda device: 1 << 20)
        uf.propagate(g, torch.ones(N, 1), 2 * _MANY_STEPS)
    assert len(g.order) == 0

    class Builder:
        def near_by_community(self, *args):
            raise MemoryError

    g = fresh(graphs[False])
    monkeypatch.setattr(uf.graph, "_builder", Builder())
    assert uf.propagate(g, torch.ones(N, 1), 2 * _MANY_STEPS).isfinite().all()
    assert len(g.order) == 0


def test_made_in_inference_mode(graphs, cpu):
    g = fresh(graphs[False])
    with torch.inference_mode():
        uf.propagate(g, torch.ones(N, 1), _MANY_STEPS)
    assert len(g.order) == N and not any(tensor.is_inference() for tensor in g.tensors()[:8] if tensor is not None)


def test_not_carried_to_another_device(graphs, cpu):
    g = fresh(graphs[True])
    uf.propagate(g, torch.ones(N, 1), _MANY_STEPS)
    other = g.to("meta")
    assert len(other.order) == len(other.near_rowptr) == len(other.near_col) == 0 and other.near_weight is None


def test_compiled_calls(graphs, cpu):
    g = fresh(graphs[False])
    x, c = torch.randn(N, 9), torch.rand(N)
    expected = uf.ada_propagate(fresh(g), x, c, 7)
    compiled = torch.compile(lambda x, c: uf.ada_propagate(g, x, c, 7), fullgraph=True)
    assert torch.equal(compiled(x, c), expected)
    uf.propagate(g, x, _MANY_STEPS)
    assert len(g.order) == N and torch.equal(compiled(x, c), expected)

"""Graphs whose values per node are beyond a core's caches take paths of their own."""

import pytest
import torch

import ugnn_fast as uf

pytestmark = pytest.mark.plain_memory
N = 1_100_000  # floats of more than twice 2 MB


def make_graph(weighted=False):
    torch.manual_seed(0)
    tail = torch.randint(0, N, (2, N))
    hub = torch.stack([torch.randint(0, N, (50_000,)), torch.full((50_000,), 7)])
    weight = torch.rand(N + 50_000) + 0.5 if weighted else None
    return uf.Graph.from_edge_index(torch.cat([tail, hub], 1), N, weight, symmetrize=True)


@pytest.fixture(scope="module")
def graph():
    return make_graph()


# rows of 4 floats have no room for c
CALLS = {
    "ada_propagate": lambda g, x, c, **k: uf.ada_propagate(g, x, c, 2, **k),
    "ada_propagate, checkpoint": lambda g, x, c, **k: uf.ada_propagate(g, x, c, 3, memory="checkpoint", **k),
    "propagate": lambda g, x, c, **k: uf.propagate(g, x, 2, agg=0.2, c=c, **k),
    "propagate with keep": lambda g, x, c, **k: uf.propagate(g, x, 2, agg=0.2, keep=0.5, c=c, **k),
    "solve": lambda g, x, c, **k: uf.solve(g, x, 8.0, c=c, **k),
}


def assert_as_reference(graph, call, x, c):
    torch.manual_seed(1)
    grad = torch.randn(x.shape).to(x.dtype)
    results = []
    for backend in ("cpu", "reference"):
        leaves = x.clone().requires_grad_(), c.clone().requires_grad_()
        out = CALLS[call](graph, *leaves, backend=backend)
        results.append((out.detach(), *torch.autograd.grad(out, leaves, grad)))
    tolerance = {torch.float32: 2e-4, torch.float64: 1e-10, torch.bfloat16: 3e-2}[x.dtype]
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("replicas", (None, 2))
def test_c_beyond_the_caches(call, replicas, graph, cpu):
    torch.manual_seed(2)
    shape = (N,) if replicas is None else (N, replicas)
    assert_as_reference(graph, call, torch.randn(*shape, 4), torch.rand(shape))


@pytest.mark.parametrize("D", (7, 16))  # with room for c, and without
def test_tables_written_past_the_caches(D, graph, cpu):
    torch.manual_seed(2)
    assert_as_reference(graph, "ada_propagate", torch.randn(N, D), torch.rand(N))


def test_one_c_for_several_slices(graph, cpu):
    torch.manual_seed(2)
    assert_as_reference(graph, "ada_propagate", torch.randn(N, 2, 4), torch.rand(N))


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32, torch.float64))
def test_weights_and_types(dtype, cpu):
    torch.manual_seed(2)
    c = torch.rand(N, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    assert_as_reference(make_graph(weighted=True), "ada_propagate", torch.randn(N, 4).to(dtype), c)


def test_memory_of_a_large_result_is_used_again(graph, cpu):
    uf.empty_cache()
    x = torch.randn(N, 4)
    first = uf.propagate(graph, x, 1)
    kept, address = first.clone(), first.data_ptr()
    second = uf.propagate(graph, 2 * x, 1)
    assert second.data_ptr() != address
    assert torch.equal(first, kept)
    del first
    assert uf.propagate(graph, x, 1).data_ptr() == address


def test_changes_in_place(graph, cpu):
    x = torch.randn(N, 4, requires_grad=True)
    out = uf.neighbor_var(graph, x)
    assert not out._is_view()
    out.add_(1).sum().backward()
    assert x.grad is not None
    with torch.no_grad():
        plain = uf.propagate(graph, x, 1)
    plain.mul_(torch.ones(4, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("D", (65, 67))
def test_tables_behind_a_narrow_slice(dtype, D, cpu):
    # of D columns 64 make a slice, and the tables of the next replica start where those of one column end
    torch.manual_seed(0)
    nodes = 20_001
    g = uf.Graph.from_edge_index(torch.randint(0, nodes, (2, 3 * nodes)), nodes, symmetrize=True)
    x, c = torch.randn(nodes, 3, D).to(dtype), torch.rand(nodes)
    results = []
    for memory in ("save", "recompute"):
        leaves = x.clone().requires_grad_(), c.clone().requires_grad_()
        h = uf.ada_propagate(g, *leaves, 3, memory=memory)
        results.append((h, *torch.autograd.grad(h.float().square().sum(), leaves)))
    # where u alone is kept slices are narrower: the gradient of c is a sum over columns, and of float32 they are one
    # vector wide, where products are rounded on their own
    same = 1e-6 if dtype == torch.float32 else 0
    for saved, again, tolerance in zip(*results, (same, same, 1e-6), strict=True):
        torch.testing.assert_close(saved, again, rtol=tolerance, atol=tolerance * saved.abs().max().item())

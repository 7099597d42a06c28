"""The near form of small graphs, by length: no bit shows it, and small tables of bfloat16 x are floats."""

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast.ops import _native_call

OPERATORS = {
    "save": lambda g, x, c: uf.ada_propagate(g, x, c, 4, memory="save"),
    "recompute": lambda g, x, c: uf.ada_propagate(g, x, c, 4, memory="recompute"),
    "checkpoint": lambda g, x, c: uf.ada_propagate(g, x, c, 4, memory="checkpoint"),
    "constant": lambda g, x, c: uf.ada_propagate(g, x, 0.7, 4) + 0 * c.sum(),
    "propagate": lambda g, x, c: uf.propagate(g, x, 4, c=c, skip=0.3),
    "propagate_sum": lambda g, x, c: uf.propagate(g, x, 4, gamma=torch.ones(5), out="sum") + 0 * c.sum(),
    "propagate_all": lambda g, x, c: uf.propagate(g, x, 4, c=c, skip=0.3, out="all"),
}


@pytest.fixture(scope="module")
def graph():
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(3000, (2, 20000), generator=generator)
    return uf.Graph.from_edge_index(edges, 3000, symmetrize=True)


def outcome(function, graph, x, c):
    x, c = x.clone().requires_grad_(), c.clone().requires_grad_()
    out = function(graph, x, c)
    cotangent = torch.linspace(-1, 1, out.numel()).view(out.shape).to(torch.bfloat16).to(out.dtype)
    return out.detach(), *torch.autograd.grad(out, (x, c), cotangent)


def in_the_order_of_the_user(g):
    none = [g.hubs[:0], g.rowptr[:0], g.col[:0], None]
    return uf.Graph._from_tensors([g.rowptr, g.col, g.weight, g.degree, g.hubs, *none], g.self_loops, g._longest_row)


@pytest.fixture(scope="module")
def long_rows():
    """Rows of one entry to several blocks, on both sides of where a block ends, and a hub."""
    generator = torch.Generator().manual_seed(1)
    N, parts = 12000, [torch.randint(12000, (2, 15000), generator=generator)]
    lengths = [9000, *range(230, 280, 7), *range(500, 2400, 61), 2040, 2041, 2042]
    for node, length in enumerate(lengths):
        others = torch.randperm(N - 100, generator=generator)[:length] + 100
        parts.append(torch.stack([torch.full_like(others, node), others]))
    return uf.Graph.from_edge_index(torch.cat(parts, 1), N, symmetrize=True)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("D", (1, 2, 3, 4, 5, 7, 8, 9, 16, 17))
@pytest.mark.parametrize("name", ("save", "recompute", "constant", "propagate"))
def test_no_bit_changes(name, D, dtype, long_rows, cpu):
    x, c = torch.randn(long_rows.num_nodes, D).to(dtype), torch.rand(long_rows.num_nodes)
    assert len(long_rows.order) == long_rows.num_nodes
    near, plain = (outcome(OPERATORS[name], g, x, c) for g in (long_rows, in_the_order_of_the_user(long_rows)))
    for got, expected in zip(near, plain, strict=True):
        assert torch.equal(got, expected)


@pytest.mark.near_tables
@pytest.mark.parametrize("shape", ((3,), (7,), (70,), (2, 9)), ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_rounded_once(name, shape, graph, cpu):
    x = torch.randn(graph.num_nodes, *shape).to(torch.bfloat16)
    c = torch.rand(graph.num_nodes)
    (h, grad_x, grad_c), (exact, exact_x, exact_c) = (outcome(OPERATORS[name], graph, t, c) for t in (x, x.float()))
    assert h.dtype == grad_x.dtype == torch.bfloat16
    assert torch.equal(h, exact.to(torch.bfloat16))
    if "propagate" in name:  # whose gradient is that of states, which are kept as x is
        torch.testing.assert_close(grad_x.float(), exact_x, rtol=2e-2, atol=2e-2)
    else:
        assert torch.equal(grad_x, exact_x.to(torch.bfloat16))
    torch.testing.assert_close(grad_c, exact_c, rtol=2e-2, atol=2e-2 * float(exact_c.abs().max()))


@pytest.mark.near_tables
def test_larger_tables_have_the_type_of_x(graph, monkeypatch, cpu):
    x, c = torch.randn(graph.num_nodes, 7).to(torch.bfloat16), torch.rand(graph.num_nodes)
    expected = uf.ada_propagate(graph, x.float(), c, 4).to(torch.bfloat16)
    monkeypatch.setattr(_native_call, "NEAR_BYTES", graph.num_nodes * 7 * 4)
    assert torch.equal(uf.ada_propagate(graph, x, c, 4), expected)
    monkeypatch.setattr(_native_call, "NEAR_BYTES", graph.num_nodes * 7 * 4 - 1)
    assert not torch.equal(uf.ada_propagate(graph, x, c, 4), expected)
    monkeypatch.setattr(_native_call, "NEAR_BYTES", 1 << 20)
    dtypes = [_native_call.table_dtype(torch.bfloat16, 2**16 + more, 1, "cpu") for more in (0, 1)]
    assert dtypes == [torch.float32, torch.bfloat16]


@pytest.mark.near_tables
@pytest.mark.parametrize("shape", ((0, 3), (4, 0), (4, 0, 3), (1, 3)), ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_without_nodes_columns_or_neighbours(name, shape, cpu):
    g = uf.Graph.from_edge_index(torch.empty(2, 0, dtype=torch.long), shape[0])
    x = torch.ones(shape, dtype=torch.bfloat16)
    h, grad_x, _ = outcome(OPERATORS[name], g, x, torch.ones(shape[0]))
    assert h.dtype == grad_x.dtype == torch.bfloat16 and h.shape[-len(shape) :] == grad_x.shape == shape


@pytest.mark.near_tables
@pytest.mark.parametrize("name", ("save", "propagate"))
def test_compiled(name, graph, cpu):
    x, c = torch.randn(graph.num_nodes, 7).to(torch.bfloat16), torch.rand(graph.num_nodes)
    eager = outcome(OPERATORS[name], graph, x, c)
    torch._dynamo.reset()
    compiled = torch.compile(OPERATORS[name], backend="aot_eager", fullgraph=True)
    for got, expected in zip(outcome(compiled, graph, x, c), eager, strict=True):
        assert torch.equal(got, expected)

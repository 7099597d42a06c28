"""On small graphs tables of bfloat16 x are floats: results are those of float32, rounded once."""

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast.ops import _native_call

pytestmark = pytest.mark.near_tables

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


def test_larger_tables_have_the_type_of_x(graph, monkeypatch, cpu):
    x, c = torch.randn(graph.num_nodes, 7).to(torch.bfloat16), torch.rand(graph.num_nodes)
    expected = uf.ada_propagate(graph, x.float(), c, 4).to(torch.bfloat16)
    monkeypatch.setattr(_native_call, "NEAR_BYTES", graph.num_nodes * 7 * 4)
    assert torch.equal(uf.ada_propagate(graph, x, c, 4), expected)
    monkeypatch.setattr(_native_call, "NEAR_BYTES", graph.num_nodes * 7 * 4 - 1)
    assert not torch.equal(uf.ada_propagate(graph, x, c, 4), expected)
    dtypes = [_native_call.table_dtype(torch.bfloat16, 2**16 + more, 1, "cpu") for more in (0, 1)]
    assert dtypes == [torch.bfloat16] * 2


@pytest.mark.parametrize("name", ("save", "propagate"))
def test_compiled(name, graph, cpu):
    x, c = torch.randn(graph.num_nodes, 7).to(torch.bfloat16), torch.rand(graph.num_nodes)
    eager = outcome(OPERATORS[name], graph, x, c)
    torch._dynamo.reset()
    compiled = torch.compile(OPERATORS[name], backend="aot_eager", fullgraph=True)
    for got, expected in zip(outcome(compiled, graph, x, c), eager, strict=True):
        assert torch.equal(got, expected)

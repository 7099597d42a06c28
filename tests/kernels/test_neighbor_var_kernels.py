"""neighbor_var and ada_c by the Triton kernels: rows of every kind of the plan, views with dropped edges, offsets."""

import numpy as np
import pytest
import torch

import ugnn_fast as uf
from ugnn_fast.testing import HUB_TOLERANCE, check_operator, strided

pytestmark = pytest.mark.triton

N = 302  # node 0 has 301 entries, two pieces; node 1 has a program of its own; the last node is isolated


def graph(weighted, self_loops=True):
    rng = np.random.default_rng(0)
    star = np.stack([np.zeros(300, np.int64), np.arange(1, 301)])
    middle = np.stack([np.ones(50, np.int64), np.arange(2, 52)])
    edges = np.concatenate([star, middle], axis=1)
    weight = rng.uniform(0.1, 3, edges.shape[1]) if weighted else None
    return uf.Graph.from_edge_index(edges, N, weight, symmetrize=True, self_loops=self_loops)


def kept(g):
    """The graph of the edges that a view keeps, as a graph of its own."""
    if g.drop == 0:
        return g
    part = uf.propagate(g, torch.eye(g.num_nodes), 1, norm="none", backend="reference")
    i, j = part.nonzero().t()
    weight = None if g.weight is None else part[i, j]
    return uf.Graph.from_edge_index(torch.stack([i, j]), g.num_nodes, weight, self_loops=g.self_loops)


def stats_of(g, x):
    """Mean and variance over the neighbours, dense."""
    A = torch.zeros(g.num_nodes, g.num_nodes, dtype=x.dtype)
    i, j = g.edge_index
    A[i, j] = 1 if g.weight is None else g.weight.to(x.dtype)
    A = A / A.sum(1).clamp(min=1e-30)[:, None]
    mean = A @ x
    off = x[None] - mean[:, None]  # [N, N, D]
    return mean, torch.einsum("ij,ijd->id", A, off**2)


CASES = [
    # weighted, self loops, dropped share, D, R, dtype
    (False, True, 0.0, 3, None, torch.float32),
    (True, False, 0.4, 2, 2, torch.float32),
    (True, True, 0.0, 8, None, torch.bfloat16),
    (False, False, 0.4, 1, None, torch.float16),
]


@pytest.mark.parametrize(("weighted", "self_loops", "drop", "D", "R", "dtype"), CASES)
@pytest.mark.parametrize("stat", ("neighbor_var", "var", "mean"))
def test_statement(stat, weighted, self_loops, drop, D, R, dtype):
    g = graph(weighted, self_loops)
    g = uf.drop_edges(g, drop, seed=3) if drop else g
    plain = kept(g)
    lead = () if R is None else (R,)
    torch.manual_seed(1)
    inputs = {"x": torch.randn(N, *lead, D).to(dtype)}
    if stat != "neighbor_var":
        inputs |= {"weight": torch.randn(*lead, D), "bias": torch.randn(lead)}

    def operator(x, **rest):
        if stat == "neighbor_var":
            return uf.neighbor_var(g, strided(x), backend="triton")
        return uf.ada_c(g, strided(x), rest["weight"], 3.0, bias=rest["bias"], stat=stat, backend="triton")

    def statement(x, store, **rest):
        mean, var = (t.reshape(x.shape) for t in stats_of(plain, x.flatten(1)))
        if stat == "neighbor_var":
            return store(var)
        return 3 / (1 + torch.exp(-((mean if stat == "mean" else var) * rest["weight"]).sum(-1) - rest["bias"]))

    check_operator(operator, statement, inputs, wrt=list(inputs), **HUB_TOLERANCE)


@pytest.mark.parametrize("weighted", (False, True))
def test_a_large_offset_costs_a_hub_no_digits(weighted):
    g = graph(weighted)
    torch.manual_seed(0)
    x = torch.randn(N, 3) + 1e3
    # the two pieces of the hub differ in their means as well
    x[150:] += 1
    exact = stats_of(g, x.double())[1]
    got = uf.neighbor_var(g, x, backend="triton")
    assert (got - exact).abs().max() < 2e-6 * exact.max()


def test_columns_in_several_blocks():
    g = graph(False)
    torch.manual_seed(0)
    x, weight = torch.randn(N, 130), torch.randn(130)
    got, expected = (uf.ada_c(g, x, weight, 2.0, backend=backend) for backend in ("triton", "reference"))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("shape", ((0, 4), (5, 0), (0, 2, 3), (5, 2, 0), (5, 0, 3)))
def test_nothing_to_sum(shape):
    g = uf.Graph.from_edge_index([[], []], shape[0])
    x, weight = torch.ones(shape, requires_grad=True), torch.ones(shape[-1], requires_grad=True)
    c = uf.ada_c(g, x, weight, 2.0, bias=0.0, backend="triton")
    assert torch.equal(c, torch.ones(shape[:-1]))
    c.sum().backward()
    assert x.grad.shape == shape and weight.grad.shape == shape[-1:]


def test_the_same_bits_again():
    g = graph(True)
    torch.manual_seed(0)
    x = torch.randn(N, 3)
    first, second = (uf.neighbor_var(g, x, backend="triton") for _ in range(2))
    assert torch.equal(first, second)

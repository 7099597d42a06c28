"""What only a GPU can show: the launches themselves. Skipped where there is none."""

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast.testing import sample_graphs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not uf.backends()["cuda"].runs, reason=str(uf.backends()["cuda"].reason)),
]


@pytest.mark.parametrize("steps", ("together", "apart"))
@pytest.mark.parametrize("graph", ("power_law", "weighted_hub"))
def test_results(graph, steps, monkeypatch):
    monkeypatch.setenv("UGNN_CUDA_STEPS", steps)
    g = sample_graphs()[graph].to("cuda")
    torch.manual_seed(0)
    x, c = torch.randn(g.num_nodes, 12).double().cuda(), torch.rand(g.num_nodes).double().cuda()
    results = []
    for backend in ("reference", "cuda"):
        leaves = x.clone().requires_grad_(), c.clone().requires_grad_()
        h = uf.ada_propagate(g, *leaves, 5, backend=backend)
        results.append((h, *torch.autograd.grad(h.square().sum(), leaves)))
    for got, expected in zip(*reversed(results), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("graph", ("power_law", "weighted_hub"))
def test_attention_and_solutions(graph):
    g = sample_graphs()[graph].to("cuda")
    torch.manual_seed(0)
    x, src, dst = (torch.randn(g.num_nodes, 3, *more).double().cuda() for more in ((4,), (), ()))
    results = []
    for backend in ("reference", "cuda"):
        leaves = [t.clone().requires_grad_() for t in (x, src, dst)]
        y = uf.gat_aggregate(g, *leaves, dropout=0.4, seed=1, backend=backend)
        f = uf.ada_solve(g, x[:, 0], 2.0, tol=1e-12, backend=backend)
        results.append((f, y, *torch.autograd.grad(y.square().sum(), leaves)))
    for got, expected in zip(*reversed(results), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("steps", ("together", "apart"))
def test_a_cuda_graph_repeats_it(steps, monkeypatch):
    monkeypatch.setenv("UGNN_CUDA_STEPS", steps)
    g = sample_graphs()["power_law"].to("cuda")
    x = torch.randn(g.num_nodes, 8, device="cuda")
    expected = uf.propagate(g, x, 5, backend="cuda")
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        h = uf.propagate(g, x, 5, backend="cuda")
    h.zero_()
    recorded.replay()
    torch.testing.assert_close(h, expected, rtol=0, atol=0)


def test_the_current_stream_is_used():
    g = sample_graphs()["power_law"].to("cuda")
    x = torch.randn(g.num_nodes, 8, device="cuda")
    expected = uf.propagate(g, x, 5, backend="cuda")
    stream = torch.cuda.Stream()
    late = torch.zeros_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        late.copy_(x)
        h = uf.propagate(g, late, 5, backend="cuda")
    stream.synchronize()
    torch.testing.assert_close(h, expected, rtol=0, atol=0)

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


def one_launch(g, x, c, backend, device):
    """Results of the operators that are one launch, and the gradients of x and c through them."""
    features = x.detach().to_sparse_csr()
    view = uf.drop_edges(g, 0.4, seed=3, backend=backend)
    results = [
        uf.neighbor_var(g, c[:, None] * x, backend=backend),
        uf.ada_c(view, x, c[: x.shape[1]], 2.0, backend=backend),
        uf.denoising_energy(view, x, 2 * x.detach(), c, backend=backend),
        uf.sparse_linear(features, c[: x.shape[1], None] * x[:3].t(), dropout=0.4, seed=7, backend=backend),
    ]
    labels = torch.arange(g.num_nodes, device=device) % 3
    gradients = torch.autograd.grad(sum(result.square().sum() for result in results), (x, c))
    return [*results, *gradients, view.degree, uf.local_smoothness(view, labels, backend=backend)]


def check_one_launch(graph, backend, device):
    g = sample_graphs()[graph].to(device)
    torch.manual_seed(0)
    leaves = [torch.randn(g.num_nodes, 12), torch.rand(g.num_nodes)]
    leaves = [leaf.double().to(device).requires_grad_() for leaf in leaves]
    found, right = (one_launch(g, *leaves, name, device) for name in (backend, "reference"))
    for got, expected in zip(found, right, strict=True):
        torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.parametrize("graph", ("power_law", "weighted_hub"))
def test_operators_of_one_launch(graph):
    check_one_launch(graph, "cuda", "cuda")


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

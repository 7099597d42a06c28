"""The conjugate gradients of ugnn_fast/device/solve.py: hubs, when the host looks, and the residual in float64."""

import importlib

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast import _backend, solving
from ugnn_fast.testing import degrees, entries, product, sample_graphs

pytestmark = pytest.mark.triton
DEVICE = "cpu" if _backend._interpreting() or not torch.cuda.is_available() else "cuda"
WEIGHTED = sample_graphs()["weighted"].to(DEVICE)


def hub(weighted):
    """One row of 300 entries, in two pieces."""
    torch.manual_seed(0)
    ends = torch.stack([torch.zeros(299, dtype=torch.int64), torch.arange(1, 300)])
    edges = torch.cat([ends, torch.randint(1, 300, (2, 40))], dim=1)
    return uf.Graph.from_edge_index(edges, 300, torch.rand(339) + 0.1 if weighted else None, symmetrize=True).to(DEVICE)


@pytest.mark.parametrize("weighted, drop", ((False, 0.0), (True, 0.2)))
def test_hub(weighted, drop):
    g = uf.drop_edges(hub(weighted), drop, seed=3)
    x, cotangent = torch.randn(2, g.num_nodes, 2, device=DEVICE)
    diag, c = torch.rand(2, g.num_nodes, device=DEVICE)
    leaves = [x, 2.2 + diag, c]

    def run(backend, dtype, tol):
        x, diag, c = (t.to(dtype).requires_grad_() for t in leaves)
        f = uf.solve(g, x, diag, c=c, tol=tol, backend=backend)
        return [f.detach(), *torch.autograd.grad(f, (x, diag, c), cotangent.to(dtype))]

    for got, exact in zip(run("triton", torch.float32, 1e-6), run("reference", torch.float64, 1e-12), strict=True):
        assert (got - exact).norm() <= 2e-5 * exact.norm()


def test_when_the_host_looks_changes_nothing(monkeypatch):
    torch.manual_seed(0)
    x = torch.randn(WEIGHTED.num_nodes, 4, device=DEVICE)
    x[:, 1], x[:, 2] = WEIGHTED.degree.sqrt(), 0  # an eigenvector, which arrives at once, and nothing to do
    runs = []
    for look in (1, 3, 4):
        monkeypatch.setattr(importlib.import_module("ugnn_fast.device.solve"), "LOOK", look)
        runs.append(uf.solve(WEIGHTED, x, 1.1, return_info=True, backend="triton"))
    assert runs[0][1].converged and runs[0][1].iterations % 12
    for f, info in runs[1:]:
        assert torch.equal(f, runs[0][0]) and info == runs[0][1]


def test_strong_smoothing():
    # without the residual in float64 more than tol is left
    torch.manual_seed(0)
    g, x, c = WEIGHTED.to("cpu"), torch.rand(WEIGHTED.num_nodes, 3), 30.0
    f, info = uf.ada_solve(WEIGHTED, x.to(DEVICE), c, return_info=True, backend="triton")
    f = f.cpu().double()
    i, j, a = entries(g)
    d = degrees(g)
    left = x - ((1 + c) * f - c * product(g, a / (d[i] * d[j]).sqrt(), f))
    assert info.converged and (left.norm(dim=0) / x.norm(dim=0)).max() <= 1.01e-6


def test_ppnp(monkeypatch):
    # as if the tensors were on a GPU
    monkeypatch.setattr(solving, "choose", lambda op, backend, x: "triton")
    torch.manual_seed(0)
    model = uf.nn.PPNP(5, 4, 3, dropout=0.0).to(DEVICE)
    x = torch.rand(WEIGHTED.num_nodes, 5, device=DEVICE)
    got = model(x, WEIGHTED)
    grads = torch.autograd.grad(got.square().sum(), list(model.parameters()))
    monkeypatch.undo()
    expected = model(x, WEIGHTED)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    for a, b in zip(grads, torch.autograd.grad(expected.square().sum(), list(model.parameters())), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)

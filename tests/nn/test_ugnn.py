"""UGNN as the models that it contains, and the PairNorm layer."""

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast import regularizers as reg
from ugnn_fast import solvers
from ugnn_fast.nn import APPNP, UGNN, AdaUGNN, PairNorm
from ugnn_fast.testing import sample_graphs

GRAPHS = sample_graphs()


def features(g, *shape, dtype=torch.float64):
    return torch.randn(g.num_nodes, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def test_appnp():
    g = GRAPHS["power_law"]
    torch.manual_seed(0)
    net = APPNP(6, 5, 3, steps=4, s=3.0, dropout=0.0).double()
    model = UGNN(lambda x: net.mlp(x, False), reg.Laplacian(3.0), solvers.GradientDescent(4))
    assert torch.equal(model(features(g, 6), g), net(features(g, 6), g))


def test_ada_ugnn_with_weights_from_the_scores():
    g = GRAPHS["weighted"]
    torch.manual_seed(0)
    net = AdaUGNN(6, 5, 3, steps=4, s=9.0, dropout=0.0, detach=False).double()
    adaptive = reg.AdaptiveLaplacian(lambda graph, s: uf.ada_c(graph, s, net.h1, 9.0))
    model = UGNN(lambda x: net.mlp(x, False), adaptive, solvers.GradientDescent(4))
    x = features(g, 6)
    gradients = []
    for out in (model(x, g), net(x, g)):
        net.zero_grad()
        out.square().sum().backward()
        gradients.append([p.grad.clone() for p in net.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)
    # the same problem, solved
    exact = UGNN(lambda x: net.mlp(x, False), adaptive, solvers.ConjugateGradient(1e-12))(x, g)
    many = UGNN(lambda x: net.mlp(x, False), adaptive, solvers.GradientDescent(2000))(x, g)
    torch.testing.assert_close(exact, many, rtol=1e-6, atol=1e-6)


def test_without_a_transform():
    g = GRAPHS["chain"]
    model = UGNN(None, reg.Laplacian(2.0), solvers.ConjugateGradient())
    s = features(g, 3)
    torch.testing.assert_close(model(s, g), uf.ada_solve(g, s, 2.0))
    assert model(features(g, 2, 3), g).shape == (g.num_nodes, 2, 3)


LEARNED = {
    "laplacian": (lambda p, g: reg.Laplacian(p()), solvers.GradientDescent(5)),
    "adaptive": (lambda p, g: reg.AdaptiveLaplacian(p(g.num_nodes)), solvers.ConjugateGradient(1e-8)),
    "edge": (lambda p, g: reg.EdgeLaplacian(p(g.num_edges)), solvers.Chebyshev(8)),
    "pairnorm": (lambda p, g: reg.PairNorm(p(), 0.1 / g.num_nodes), solvers.ConjugateGradient(1e-8)),
    "dropedge": (lambda p, g: reg.DropEdge(p(), 0.3), solvers.GradientDescent(5)),
    "trend": (lambda p, g: reg.TrendFilter(p()), solvers.PrimalDual(20)),
    "function": (lambda p, g: reg.Energy(Penalty()), solvers.GradientDescent(5, 0.1)),
}


class Penalty(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.c = torch.nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def forward(self, f, graph):
        return self.c * (1 + f.square()).sqrt().sum()


@pytest.mark.parametrize("name", LEARNED)
def test_weights_of_the_regulariser_are_trained(name):
    g = GRAPHS["power_law"]
    make, solver = LEARNED[name]
    torch.manual_seed(0)
    regularizer = make(lambda *shape: torch.nn.Parameter(torch.full(shape, 0.5, dtype=torch.float64)), g)
    model = UGNN(torch.nn.Linear(4, 2).double(), regularizer, solver)
    names = [parameter for parameter, _ in model.named_parameters()]
    assert len(names) == 3 and sum(parameter.startswith("regularizer.") for parameter in names) == 1
    assert set(model.state_dict()) == set(names)
    x, target = features(g, 4), features(g, 2) / 10
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    weight = next(regularizer.parameters())
    before, losses = weight.detach().clone(), []
    for _ in range(15):
        optimizer.zero_grad()
        loss = (model(x, g) - target).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] and not torch.equal(weight, before)
    other = UGNN(
        torch.nn.Linear(4, 2).double(), make(lambda *n: torch.nn.Parameter(torch.zeros(n).double()), g), solver
    )
    other.load_state_dict(model.state_dict())
    model.eval(), other.eval()
    assert torch.equal(model(x, g), other(x, g))


def test_train_and_eval_reach_dropedge():
    g = GRAPHS["power_law"]
    model = UGNN(None, reg.DropEdge(1.0, 0.5), solvers.GradientDescent(3))
    s = features(g, 2)
    assert not torch.equal(model(s, g), model(s, g))
    assert torch.equal(model.eval()(s, g), uf.ada_propagate(g, s, 1.0, 3))


def test_compiles():
    g = GRAPHS["weighted"]
    for solver in (solvers.GradientDescent(3), solvers.GradientDescent(3, 0.1), solvers.Chebyshev(3)):
        model = UGNN(torch.nn.Linear(4, 2), reg.Laplacian(2.0), solver)
        x = features(g, 4, dtype=torch.float32)
        torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(x, g), model(x, g))


def test_bad_parts_are_refused():
    good = reg.Laplacian(1.0), solvers.GradientDescent(2)
    with pytest.raises(TypeError, match="transform must be a module, a function or None, got int"):
        UGNN(3, *good)
    with pytest.raises(TypeError, match=r"regularizer must be one of ugnn_fast.regularizers, got GradientDescent"):
        UGNN(None, good[1], good[0])
    with pytest.raises(TypeError, match=r"solver must be one of ugnn_fast.solvers, got function"):
        UGNN(None, good[0], lambda *_: None)
    with pytest.raises(TypeError, match="solver must be PrimalDual for TrendFilter, got GradientDescent"):
        UGNN(None, reg.TrendFilter(1.0), good[1])


@pytest.mark.parametrize("mode", ("PN", "PN-SI"))
@pytest.mark.parametrize("scale", (1.0, 2.5))
def test_pairnorm_is_that_of_pytorch_geometric(mode, scale):
    geometric = pytest.importorskip("torch_geometric.nn")
    x = (3 + torch.randn(40, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).requires_grad_()
    ours, theirs = PairNorm(scale, mode), geometric.PairNorm(scale, scale_individually=mode == "PN-SI")
    torch.testing.assert_close(ours(x), theirs(x))
    weight = torch.linspace(-1, 1, 7, dtype=torch.float64)
    grads = [torch.autograd.grad((weight * layer(x)).sum(), x)[0] for layer in (ours, theirs)]
    torch.testing.assert_close(*grads)


def test_pairnorm_by_its_definition():
    x = 3 + torch.randn(50, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    out = PairNorm(2.0, eps=0.0)(x)
    # the total squared distance of all pairs is 2 N^2 scale^2, whatever x was
    assert torch.cdist(out, out).square().sum().item() == pytest.approx(2 * 50**2 * 4)
    torch.testing.assert_close(PairNorm(2.0, eps=0.0)(100 * x + 7), out)
    centred = x - x.mean(0)
    torch.testing.assert_close(PairNorm(2.0, "PN-SI", eps=0.0)(x), 2 * centred / centred.norm(dim=1, keepdim=True))
    torch.testing.assert_close(PairNorm(2.0, "PN-SCS", eps=0.0)(x), 2 * x / x.norm(dim=1, keepdim=True) - x.mean(0))


@pytest.mark.parametrize("mode", ("PN", "PN-SI", "PN-SCS"))
def test_pairnorm_replicas_types_and_odd_input(mode):
    x = torch.randn(30, 3, 5, generator=torch.Generator().manual_seed(0))
    layer = PairNorm(mode=mode)
    for r in range(3):
        torch.testing.assert_close(layer(x)[:, r], layer(x[:, r]))
    low = layer(x.bfloat16())
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), layer(x), rtol=0.03, atol=0.03)
    assert layer(torch.zeros(0, 4)).shape == (0, 4)
    same = torch.ones(4, 2, requires_grad=True)
    layer(same).sum().backward()
    assert same.grad.isfinite().all()
    double = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (double,))


def test_pairnorm_refuses_bad_input():
    with pytest.raises(ValueError, match="mode must be one of PN, PN-SI, PN-SCS, got 'pn'"):
        PairNorm(mode="pn")
    with pytest.raises(ValueError, match="scale must be finite and >= 0"):
        PairNorm(-1.0)
    with pytest.raises(TypeError, match=r"x must be a floating tensor, got torch.int64"):
        PairNorm()(torch.ones(3, 2, dtype=torch.long))
    with pytest.raises(ValueError, match=r"x must be \[N, D\] or \[N, R, D\], got \[3\]"):
        PairNorm()(torch.ones(3))

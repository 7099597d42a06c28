"""PPNP against the inverse of a dense matrix, and beside APPNP."""

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast.nn import APPNP, PPNP
from ugnn_fast.testing import degrees, entries, sample_graphs

FEATURES, HIDDEN, CLASSES = 11, 6, 4


def model(**options):
    torch.manual_seed(0)
    return PPNP(FEATURES, HIDDEN, CLASSES, **{"tol": 1e-13, **options}).double()


def features(g):
    return torch.rand(g.num_nodes, FEATURES, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def expected_logits(net, x, g):
    mlp = net.mlp
    first, second = mlp.first, mlp.second
    scores = (x @ first.weight + first.bias).relu() @ second.weight + second.bias
    i, j, a = entries(g)
    d = degrees(g)
    A = torch.zeros(g.num_nodes, g.num_nodes, dtype=torch.float64).index_put((i, j), a / (d[i] * d[j]).sqrt())
    return net.alpha * torch.linalg.inv(torch.eye(g.num_nodes) - (1 - net.alpha) * A) @ scores


@pytest.mark.parametrize("alpha", (0.1, 0.5, 1.0))
@pytest.mark.parametrize("graph", ("power_law", "star", "isolated", "weighted"))
def test_forward_and_gradients(graph, alpha):
    g = sample_graphs()[graph]
    net, x = model(alpha=alpha).eval(), features(g)
    logits, expected = net(x, g), expected_logits(net, x, g)
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-11)
    weight = torch.linspace(-1, 2, logits.numel(), dtype=logits.dtype).reshape(logits.shape)
    parameters = list(net.parameters())
    got, exact = (torch.autograd.grad((weight * out).sum(), parameters) for out in (logits, expected))
    for a, b in zip(got, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_is_appnp_with_many_steps():
    g = sample_graphs()["power_law"]
    net, x = model(alpha=0.2).eval(), features(g)
    torch.manual_seed(0)
    other = APPNP(FEATURES, HIDDEN, CLASSES, alpha=0.2, steps=300).double().eval()
    other.load_state_dict(net.state_dict())
    torch.testing.assert_close(net(x, g), other(x, g))


def test_each_replica_is_a_model_of_its_own():
    g = sample_graphs()["weighted"]
    net, x = model(replicas=3).eval(), features(g)
    together = net(x, g)
    assert together.shape == (g.num_nodes, 3, CLASSES)
    alone = model().eval()
    for r in range(3):
        alone.load_state_dict({name: value[r] for name, value in net.state_dict().items()})
        torch.testing.assert_close(together[:, r], alone(x, g))


def test_sparse_features_and_dropout():
    g = sample_graphs()["power_law"]
    net, x = model(dropout=0.5), features(g)
    torch.testing.assert_close(net.eval()(x.to_sparse_csr(), g), net(x, g))
    net.train()
    assert not torch.equal(net(x, g), net(x, g))


def test_too_few_iterations_and_a_coarse_tol():
    g = sample_graphs()["chain"]
    x = features(g)
    with pytest.warns(UserWarning, match="solve did not converge: residual .* after 2 iterations, tol 1e-13"):
        model(max_iter=2).eval()(x, g)
    coarse, fine = model(tol=1e-2).eval()(x, g), model().eval()(x, g)
    assert 1e-6 < (coarse - fine).norm() / fine.norm() < 1e-1


def test_trains_on_cora():
    data = uf.datasets.load("cora")
    x = uf.datasets.row_normalize(data.x)
    torch.manual_seed(0)
    net = PPNP(x.shape[1], 16, int(data.y.max()) + 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05, weight_decay=5e-4)
    train, _, test = data.splits[0]
    # after 40 epochs seeds differ by 0.1, whichever generator makes the masks
    for _ in range(200):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x, data.graph)[train], data.y[train]).backward()
        optimizer.step()
    accuracy = (net.eval()(x, data.graph)[test].argmax(1) == data.y[test]).float().mean().item()
    assert accuracy > 0.75


def test_compiles_without_a_graph_break():
    g = sample_graphs()["power_law"]
    net, x = model().eval(), features(g)
    torch._dynamo.reset()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, g), net(x, g))


def test_repr():
    assert "alpha=0.1, tol=1e-06, max_iter=1000" in repr(PPNP(3, 2, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    (
        ({"alpha": 0.0}, r"alpha must be in \(0, 1\], got 0"),
        ({"alpha": 1.5}, r"alpha must be in \(0, 1\], got 1.5"),
        ({"tol": 0.0}, "tol must be > 0, got 0"),
        ({"max_iter": 0}, "max_iter must be >= 1, got 0"),
        ({"dropout": 1.0}, "dropout must be < 1, got 1"),
    ),
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        PPNP(3, 2, 2, **options)

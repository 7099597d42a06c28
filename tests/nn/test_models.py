"""AdaUGNN and APPNP against the same models in plain dense torch."""

import pytest
import torch
import torch.nn.functional as F

import ugnn_fast as uf
from tests.nn.gradients import assert_replicas_are_models, assert_same, gradients
from ugnn_fast.nn import APPNP, AdaUGNN
from ugnn_fast.testing import sample_graphs

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")

FEATURES, HIDDEN, CLASSES = 11, 6, 4


def features(N, dtype=torch.float64):
    """[N, FEATURES], mostly zeros; a row and a column of zeros are among them."""
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(N, FEATURES, generator=generator, dtype=dtype)
    x = x * (torch.rand(N, FEATURES, generator=generator) < 0.4)
    x[: N // 4, :] = 0
    x[:, 5] = 0
    return x


def model(kind=AdaUGNN, seed=0, **options):
    torch.manual_seed(seed)
    return kind(FEATURES, HIDDEN, CLASSES, **options).double()


def adjacency(g):
    dense = torch.zeros(g.num_nodes, g.num_nodes, dtype=torch.float64)
    dense[tuple(g.edge_index)] = 1.0 if g.weight is None else g.weight.double()
    return dense


def scores_of(net, x):
    mlp = net.mlp
    return (x @ mlp.first.weight + mlp.first.bias).relu() @ mlp.second.weight + mlp.second.bias


def c_of(net, x, g):
    a = adjacency(g)
    average = a / a.sum(1, keepdim=True)
    scores = scores_of(net, x)
    if net.detach:
        scores = scores.detach()
    if net.soft:
        scores = scores / scores.abs().sum(1, keepdim=True)
    variance = average @ scores**2 - (average @ scores) ** 2
    return net.s * torch.sigmoid(variance @ net.h1)


def aggregated(g, x, c, steps):
    """K times H <- 2 b X + b W H with W_ij = a_ij (c_i + c_j) / sqrt(d_i d_j)."""
    a = adjacency(g)
    d = a.sum(1)
    b = 1 / (2 + c + (a @ c) / d)
    weights = a * (c[:, None] + c[None, :]) / (d[:, None] * d[None, :]).sqrt()
    h = x
    for _ in range(steps):
        h = b[:, None] * (2 * x + weights @ h)
    return h


def expected_logits(net, x, g):
    c = c_of(net, x, g) if isinstance(net, AdaUGNN) else torch.full((g.num_nodes,), net.s, dtype=x.dtype)
    return aggregated(g, scores_of(net, x), c, net.steps)


GRAPHS = ("power_law", "star", "isolated", "two_components", "weighted")
MODELS = {
    "ada": (AdaUGNN, {"steps": 4}),
    "ada-soft": (AdaUGNN, {"steps": 4, "soft": True, "s": 29.0}),
    "ada-attached": (AdaUGNN, {"steps": 3, "detach": False}),
    "ada-soft-attached": (AdaUGNN, {"steps": 3, "soft": True, "detach": False}),
    "ada-no-steps": (AdaUGNN, {"steps": 0}),
    "appnp": (APPNP, {"steps": 4}),
    "appnp-alpha": (APPNP, {"steps": 2, "alpha": 0.3}),
}


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", MODELS)
def test_forward_and_gradients_are_those_of_the_statement(name, graph, layout):
    kind, options = MODELS[name]
    g = sample_graphs()[graph]
    net, x = model(kind, **options).eval(), features(g.num_nodes)
    logits = net(x if layout == "dense" else x.to_sparse_csr(), g)
    expected = expected_logits(net, x, g)
    torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-12)
    if net.steps == 0:
        net.h1.requires_grad_(False)  # nothing is aggregated, so C has no effect and no gradient
        net = net.mlp
    assert_same(gradients(net, logits), gradients(net, expected))


@pytest.mark.parametrize("soft", [False, True])
def test_smoothness_is_c_without_dropout(soft):
    g = sample_graphs()["power_law"]
    net, x = model(soft=soft, dropout=0.5), features(g.num_nodes)
    assert net.training
    found = net.smoothness(x, g)
    torch.testing.assert_close(found, c_of(net, x, g).detach())
    assert not found.requires_grad
    assert found.shape == (g.num_nodes,)
    assert found.std() > 0


def test_detach_is_what_keeps_gradients_of_c_from_the_scores():
    g = sample_graphs()["power_law"]
    x, found = features(g.num_nodes), {}
    for detach in (True, False):
        net = model(steps=4, detach=detach).eval()
        found[detach] = gradients(net, net(x, g))
    torch.testing.assert_close(found[True]["h1"], found[False]["h1"])
    assert (found[True]["mlp.second.weight"] - found[False]["mlp.second.weight"]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", [AdaUGNN, APPNP])
@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_in_training_every_parameter_has_a_gradient(kind, layout):
    g = sample_graphs()["power_law"]
    net, x = model(kind, dropout=0.5), features(g.num_nodes)
    logits = net(x if layout == "dense" else x.to_sparse_csr(), g)
    for name, grad in gradients(net, logits).items():
        assert grad.isfinite().all() and grad.abs().max() > 0, name


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_dropout_is_on_in_training_only(layout):
    g = sample_graphs()["power_law"]
    x = features(g.num_nodes)
    x = x if layout == "dense" else x.to_sparse_csr()
    net = model(dropout=0.5)
    assert not torch.equal(net(x, g), net(x, g))
    net.eval()
    assert torch.equal(net(x, g), net(x, g))
    torch.manual_seed(1)
    first = net.train()(x, g)
    torch.manual_seed(1)
    assert torch.equal(first, net(x, g))


def test_a_dropout_of_zero_draws_nothing():
    g = sample_graphs()["chain"]
    net, x = model(dropout=0.0), features(g.num_nodes)
    state = torch.get_rng_state()
    assert torch.equal(net(x, g), net.eval()(x, g))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("p", [0.2, 0.8])
def test_dropout_keeps_a_share_of_1_minus_p_and_the_mean(p, dtype):
    torch.manual_seed(0)
    found = uf.dropout(torch.ones(2_000, 100, dtype=dtype), p)
    assert found.dtype == dtype
    kept = found != 0
    # 6 standard deviations of the share
    assert abs(kept.double().mean().item() - (1 - p)) < 6 * (p * (1 - p) / 200_000) ** 0.5
    torch.testing.assert_close(found[kept], torch.full_like(found[kept], 1 / (1 - p)))


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@pytest.mark.parametrize("name", ["ada", "ada-soft", "appnp"])
def test_each_replica_is_a_model_of_its_own(name, layout):
    kind, options = MODELS[name]
    g, R = sample_graphs()["power_law"], 3
    x = features(g.num_nodes)
    x = x if layout == "dense" else x.to_sparse_csr()
    many = model(kind, replicas=R, **options).eval()
    assert many(x, g).shape == (g.num_nodes, R, CLASSES)
    ones = assert_replicas_are_models(many, lambda: model(kind, **options).eval(), x, g)
    for r, one in enumerate(ones):
        if kind is AdaUGNN:
            torch.testing.assert_close(many.smoothness(x, g)[:, r], one.smoothness(x, g))


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_replicas_differ_in_their_start_and_in_their_masks(layout):
    g, R = sample_graphs()["power_law"], 3
    x = features(g.num_nodes)
    x = x if layout == "dense" else x.to_sparse_csr()
    net = model(replicas=R, dropout=0.5)
    for name, parameter in net.named_parameters():
        assert parameter.shape[0] == R
        assert not torch.equal(parameter[0], parameter[1]), name
        with torch.no_grad():
            parameter[:] = parameter[:1].clone()
    hidden = net.mlp.first(x)
    assert not torch.equal(hidden[:, 0], hidden[:, 1]), "the masks of x are the same"
    logits = net.eval()(x, g)
    torch.testing.assert_close(logits[:, 0], logits[:, 1])


def test_parameters_start_like_those_of_linear_layers():
    torch.manual_seed(0)
    net = AdaUGNN(400, 100, 25)
    for parameter, inputs in (
        (net.mlp.first.weight, 400),
        (net.mlp.second.weight, 100),
        (net.mlp.first.bias, 400),
        (net.mlp.second.bias, 100),
    ):
        bound = inputs**-0.5
        assert parameter.abs().max() <= bound
        assert parameter.abs().max() > 0.8 * bound
    assert net.h1.shape == (25,)
    assert net.h1.abs().max() <= 0.2
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.reset_parameters()
    assert all(not torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_float32_on_cora_is_near_float64():
    data = uf.datasets.load("cora")
    x = uf.datasets.row_normalize(data.x)
    torch.manual_seed(0)
    net = AdaUGNN(x.shape[1], 16, 7).eval()
    found = net(x, data.graph)
    expected = expected_logits(net.double(), x.to_dense().double(), data.graph)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


def test_bfloat16_model():
    g = sample_graphs()["power_law"]
    net, x = model().eval(), features(g.num_nodes)
    expected = net(x, g)
    found = net.bfloat16()(x.bfloat16(), g)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@pytest.mark.parametrize("replicas", [None, 2])
def test_a_graph_without_nodes(layout, replicas):
    g = sample_graphs()["empty"]
    x = torch.zeros(0, FEATURES, dtype=torch.float64)
    logits = model(replicas=replicas)(x if layout == "dense" else x.to_sparse_csr(), g)
    assert logits.shape == ((0, CLASSES) if replicas is None else (0, 2, CLASSES))


def test_alpha_is_1_over_1_plus_s():
    assert model(APPNP).s == 9.0
    assert model(APPNP).alpha == pytest.approx(0.1)
    assert model(APPNP, alpha=0.2).s == pytest.approx(4.0)
    assert model(APPNP, s=1.0).alpha == pytest.approx(0.5)
    with pytest.raises(ValueError, match=r"give one of them, got s=9.0 and alpha=0.1"):
        model(APPNP, s=9.0, alpha=0.1)


def test_compiles_without_a_graph_break():
    g = sample_graphs()["power_law"]
    x = features(g.num_nodes)
    net = model(steps=3).eval()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    expected = net(x, g)
    found = compiled(x, g)
    torch.testing.assert_close(found, expected)
    assert_same(gradients(net, found), gradients(net, expected))


def test_repr_says_what_it_is():
    text = repr(AdaUGNN(5, 3, 2, replicas=4, soft=True))
    assert "steps=10, s=9, soft=True, detach=True" in text
    assert "(first): SparseLinear(5, 3, dropout=0.8, replicas=4)" in text
    assert "alpha=0.1" in repr(APPNP(5, 3, 2))


BAD_OPTIONS = {
    "steps": ({"steps": -1}, ValueError, "steps must be >= 0, got -1"),
    "steps-type": ({"steps": 2.0}, TypeError, "steps must be an int, got float"),
    "s": ({"s": -1.0}, ValueError, "s must be finite and >= 0, got -1.0"),
    "s-nan": ({"s": float("nan")}, ValueError, "s must be finite and >= 0, got nan"),
    "dropout": ({"dropout": 1.0}, ValueError, "dropout must be < 1, got 1.0"),
    "dropout-negative": ({"dropout": -0.1}, ValueError, "dropout must be finite and >= 0, got -0.1"),
    "replicas": ({"replicas": 0}, ValueError, r"replicas must be in 1..2\^31 - 1, got 0"),
    "replicas-type": ({"replicas": True}, TypeError, "replicas must be an int, got bool"),
}


@pytest.mark.parametrize("kind", [AdaUGNN, APPNP])
@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_options(case, kind):
    options, error, message = BAD_OPTIONS[case]
    with pytest.raises(error, match=message):
        kind(FEATURES, HIDDEN, CLASSES, **options)


@pytest.mark.parametrize("name", ["in_features", "hidden", "classes"])
def test_bad_sizes(name):
    sizes = {"in_features": 5, "hidden": 3, "classes": 2}
    with pytest.raises(ValueError, match=rf"{name} must be in 1..2\^31 - 1, got 0"):
        AdaUGNN(**{**sizes, name: 0})
    with pytest.raises(TypeError, match=f"{name} must be an int, got str"):
        AdaUGNN(**{**sizes, name: "7"})


@pytest.mark.parametrize("alpha", [0.0, 1.5, -0.1, float("inf")])
def test_bad_alpha(alpha):
    with pytest.raises(ValueError, match="alpha must be"):
        APPNP(FEATURES, HIDDEN, CLASSES, alpha=alpha)


@pytest.mark.parametrize("kind", [AdaUGNN, APPNP])
def test_bad_input(kind):
    g = sample_graphs()["chain"]
    N, net = g.num_nodes, model(kind)
    x = features(N)

    def refused(error, message, x, graph=g):
        with pytest.raises(error, match=message):
            net(x, graph)
        if kind is AdaUGNN:
            with pytest.raises(error, match=message):
                net.smoothness(x, graph)

    expected = rf"x must be \[N, in_features\] = \[{N}, {FEATURES}\]"
    refused(ValueError, rf"{expected}, got \[{N - 1}, {FEATURES}\]", x[1:])
    refused(ValueError, rf"{expected}, got \[{N}, {FEATURES - 1}\]", x[:, 1:])
    refused(ValueError, rf"{expected}, got \[{FEATURES}\]", x[0])
    refused(ValueError, rf"{expected}, got \[{N - 1}, {FEATURES}\]", x[1:].to_sparse_csr())
    refused(TypeError, "x must be torch.float64 like the parameters, got torch.float32", x.float())
    refused(TypeError, "x must be torch.float64 like the parameters, got torch.int64", x.long())
    refused(TypeError, "x must be dense or torch sparse CSR, got torch.sparse_coo", x.to_sparse())
    refused(TypeError, "x must be a tensor, got list", x.tolist())
    refused(ValueError, "x must be on cpu like the graph, got meta", x.to("meta"))
    refused(TypeError, "graph must be a ugnn_fast.Graph, got Tensor", x, g.edge_index)
    sparse = x.to_sparse_csr().requires_grad_()
    refused(ValueError, "x must not require grad when it is sparse", sparse)


def test_nan_in_x_stays_within_k_hops():
    g = sample_graphs()["chain"]
    x = features(g.num_nodes)
    x[0, 0] = torch.nan
    logits = model(APPNP, steps=2).eval()(x, g)
    assert logits.isnan().any(1).nonzero().flatten().tolist() == [0, 1, 2]


def test_dense_x_passes_a_gradient_on():
    g = sample_graphs()["chain"]
    x = features(g.num_nodes).requires_grad_()
    net = model(steps=3).eval()
    (found,) = torch.autograd.grad(net(x, g).square().sum(), x)
    (expected,) = torch.autograd.grad(expected_logits(net, x, g).square().sum(), x)
    torch.testing.assert_close(found, expected)


def test_training_lowers_the_loss_on_a_separable_task():
    g = sample_graphs()["two_components"]
    torch.manual_seed(0)
    y = (torch.arange(g.num_nodes) >= 12).long()
    x = F.one_hot(y, 2).float() + 0.1 * torch.rand(g.num_nodes, 2)
    net = AdaUGNN(2, 8, 2, dropout=0.2)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x, g), y)
        loss.backward()
        optimizer.step()
    assert loss < 0.1
    assert torch.equal(net.eval()(x, g).argmax(1), y)

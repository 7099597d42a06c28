"""GAT against dense float64 mathematics and torch_geometric: forward, gradients, dropout, replicas, bad input."""

import pytest
import torch
import torch.nn.functional as F

import ugnn_fast as uf
from tests.nn.gradients import assert_replicas_are_models, assert_same, gradients
from ugnn_fast.nn import GAT, GATLayer
from ugnn_fast.testing import sample_graphs

FEATURES, HIDDEN, CLASSES = 11, 5, 3
GRAPHS = ("power_law", "star", "isolated", "weighted", "no_self_loops")


def features(N, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(N, FEATURES, generator=generator, dtype=dtype)
    return x * (torch.rand(N, FEATURES, generator=generator) < 0.4)


def model(seed=0, **options):
    torch.manual_seed(seed)
    net = GAT(FEATURES, HIDDEN, CLASSES, **options).double()
    for layer in (net.layer1, net.layer2):
        torch.nn.init.normal_(layer.bias)
    return net


def layer_of(layer, x, g):
    """A layer as the paper has it, head by head, with a dense matrix of attention."""
    stored = torch.zeros(g.num_nodes, g.num_nodes, dtype=torch.bool)
    stored[tuple(g.edge_index)] = True
    heads = []
    for h, w in enumerate(layer.linear.weight.split(layer.out_features, dim=1)):
        z = x @ w
        e = F.leaky_relu((z @ layer.att_dst[h])[:, None] + (z @ layer.att_src[h])[None, :], layer.negative_slope)
        alpha = e.masked_fill(~stored, -torch.inf).softmax(1).nan_to_num(0.0)
        heads.append(alpha @ z)
    return (torch.cat(heads, 1) if layer.concat else torch.stack(heads).mean(0)) + layer.bias


def logits_of(net, x, g):
    return layer_of(net.layer2, F.elu(layer_of(net.layer1, x, g)), g)


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(
    "options", [{}, {"heads": 3, "out_heads": 4, "negative_slope": 0.5}, {"heads": 1}], ids=["paper", "heads", "one"]
)
def test_forward_and_gradients_are_those_of_the_statement(options, graph, layout):
    g = sample_graphs()[graph]
    net, x = model(**options).eval(), features(g.num_nodes)
    logits = net(x if layout == "dense" else x.to_sparse_csr(), g)
    expected = logits_of(net, x, g)
    torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-12)
    assert_same(gradients(net, logits), gradients(net, expected))


@pytest.mark.parametrize("concat", [True, False])
def test_a_layer_is_gatconv_of_torch_geometric(concat):
    pyg = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")
    g = sample_graphs()["power_law"]
    torch.manual_seed(0)
    ours = GATLayer(FEATURES, HIDDEN, heads=4, concat=concat).double()
    theirs = pyg.GATConv(FEATURES, HIDDEN, heads=4, concat=concat, add_self_loops=False).double()
    torch.nn.init.normal_(ours.bias)
    with torch.no_grad():
        theirs.lin.weight.copy_(ours.linear.weight.t())
        theirs.att_src.copy_(ours.att_src[None])
        theirs.att_dst.copy_(ours.att_dst[None])
        theirs.bias.copy_(ours.bias)
    x = features(g.num_nodes)
    found, expected = ours(x, g), theirs(x, g.edge_index.flip(0))
    torch.testing.assert_close(found, expected)
    found, expected = gradients(ours, found), gradients(theirs, expected)
    assert_same(
        found,
        {
            "linear.weight": expected["lin.weight"].t(),
            "att_src": expected["att_src"][0],
            "att_dst": expected["att_dst"][0],
            "bias": expected["bias"],
        },
    )


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_each_replica_is_a_model_of_its_own(layout):
    g, R = sample_graphs()["power_law"], 3
    x = features(g.num_nodes)
    x = x if layout == "dense" else x.to_sparse_csr()
    many = model(replicas=R, out_heads=2).eval()
    assert many(x, g).shape == (g.num_nodes, R, CLASSES)
    assert_replicas_are_models(many, lambda: model(out_heads=2).eval(), x, g)


def test_replicas_differ_in_their_masks():
    g = sample_graphs()["power_law"]
    net = model(replicas=2, dropout=0.0, attention_dropout=0.5)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter[:] = parameter[:1].clone()
    x = features(g.num_nodes)
    first = net.layer1(x, g)
    assert not torch.equal(first[:, 0], first[:, 1])
    logits = net.eval()(x, g)
    torch.testing.assert_close(logits[:, 0], logits[:, 1])


@pytest.mark.parametrize("options", [{"attention_dropout": 0.0}, {"dropout": 0.0}], ids=["of_x", "of_attention"])
@pytest.mark.parametrize("replicas", [None, 2])
def test_dropout_is_on_in_training_only(options, replicas):
    g = sample_graphs()["power_law"]
    # with all scores of a head on one side of zero att_dst has no effect, as with seed 0
    net, x = model(seed=1, replicas=replicas, **options), features(g.num_nodes)
    assert not torch.equal(net(x, g), net(x, g))
    torch.manual_seed(1)
    first = net(x, g)
    torch.manual_seed(1)
    assert torch.equal(first, net(x, g))
    for name, grad in gradients(net, first).items():
        assert grad.isfinite().all() and grad.abs().max() > 0, name
    net.eval()
    state = torch.get_rng_state()
    assert torch.equal(net(x, g), net(x, g))
    assert torch.equal(state, torch.get_rng_state())


def test_parameters_start_as_glorot_has_them():
    torch.manual_seed(0)
    net = GAT(400, 25, 30)
    for parameter, bound in (
        (net.layer1.linear.weight, (6 / 600) ** 0.5),
        (net.layer1.att_src, (6 / 33) ** 0.5),
        (net.layer2.linear.weight, (6 / 230) ** 0.5),
        (net.layer2.att_dst, (6 / 31) ** 0.5),
    ):
        assert 0.8 * bound < parameter.abs().max() <= bound
    assert net.layer1.bias.eq(0).all() and net.layer2.bias.eq(0).all()
    before = net.layer2.linear.weight.clone()
    net.reset_parameters()
    assert not torch.equal(before, net.layer2.linear.weight)


def test_bfloat16_model():
    g = sample_graphs()["power_law"]
    net, x = model().eval(), features(g.num_nodes)
    expected = net(x, g)
    found = net.bfloat16()(x.bfloat16(), g)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("replicas", [None, 2])
def test_a_graph_without_nodes(replicas):
    x = torch.zeros(0, FEATURES, dtype=torch.float64)
    logits = model(replicas=replicas)(x, sample_graphs()["empty"])
    assert logits.shape == ((0, CLASSES) if replicas is None else (0, 2, CLASSES))


@pytest.mark.parametrize("training", [False, True])
def test_compiles_without_a_graph_break(training):
    g = sample_graphs()["power_law"]
    net, x = model().train(training), features(g.num_nodes)
    torch._dynamo.reset()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    expected = net(x, g)
    torch.manual_seed(0)
    found = compiled(x, g)
    torch.testing.assert_close(found, expected)
    assert_same(gradients(net, found), gradients(net, expected))


def test_repr_says_what_it_is():
    text = repr(GAT(11, 8, 3, out_heads=2, replicas=4))
    assert "8, heads=8, concat=True, attention_dropout=0.6, negative_slope=0.2" in text
    assert "11, 64, bias=False, dropout=0.6, replicas=4" in text
    assert "3, heads=2, concat=False" in text


BAD_OPTIONS = {
    "heads": ({"heads": 0}, ValueError, r"heads must be in 1..2\^31 - 1, got 0"),
    "out_heads": ({"out_heads": 1.0}, TypeError, "out_heads must be an int, got float"),
    "dropout": ({"dropout": 1.0}, ValueError, "dropout must be < 1, got 1.0"),
    "attention_dropout": ({"attention_dropout": -0.1}, ValueError, "attention_dropout must be finite and >= 0"),
    "negative_slope": ({"negative_slope": -0.2}, ValueError, "negative_slope must be finite and >= 0, got -0.2"),
    "replicas": ({"replicas": 0}, ValueError, r"replicas must be in 1..2\^31 - 1, got 0"),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_options(case):
    options, error, message = BAD_OPTIONS[case]
    with pytest.raises(error, match=message):
        GAT(FEATURES, HIDDEN, CLASSES, **options)


@pytest.mark.parametrize("name", ["in_features", "hidden", "classes"])
def test_bad_sizes(name):
    sizes = {"in_features": 5, "hidden": 3, "classes": 2}
    with pytest.raises(ValueError, match=rf"{name} must be in 1..2\^31 - 1, got 0"):
        GAT(**{**sizes, name: 0})


def test_bad_input():
    g = sample_graphs()["chain"]
    N, net = g.num_nodes, model()
    x = features(N)

    def refused(error, message, x, graph=g):
        with pytest.raises(error, match=message):
            net(x, graph)

    expected = rf"x must be \[N, in_features\] = \[{N}, {FEATURES}\]"
    refused(ValueError, rf"{expected}, got \[{N - 1}, {FEATURES}\]", x[1:])
    refused(ValueError, rf"{expected}, got \[{N}, 2, {FEATURES}\]", torch.stack([x, x], 1))
    refused(TypeError, "x must be torch.float64 like the parameters, got torch.float32", x.float())
    refused(TypeError, "x must be dense or torch sparse CSR, got torch.sparse_coo", x.to_sparse())
    refused(TypeError, "x must be a tensor, got list", x.tolist())
    refused(TypeError, "graph must be a ugnn_fast.Graph, got Tensor", x, g.edge_index)


def test_training_on_cora_reaches_what_is_published():
    data = uf.datasets.load("cora")
    x, (train, val, test) = uf.datasets.row_normalize(data.x), data.splits[0]
    torch.manual_seed(0)
    net = GAT(x.shape[1], 8, 7)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=5e-4)
    best = (0.0, 0.0)  # accuracy on val, and on test at the same epoch
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(net.train()(x, data.graph)[train], data.y[train]).backward()
        optimizer.step()
        with torch.no_grad():
            right = net.eval()(x, data.graph).argmax(1) == data.y
        accuracy = right[val].double().mean().item(), right[test].double().mean().item()
        best = accuracy if accuracy[0] > best[0] else best
    # Ma et al. have 82.56 %; a single epoch is off by several points, the one that validates best by less than one
    assert best[1] > 0.81

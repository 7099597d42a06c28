"""The drop-in layers against the layers of the installed torch_geometric: results, gradients, checkpoints, refusals."""

import gc
import re
import subprocess
import sys
import weakref

import pytest
import torch

import ugnn_fast as uf
from ugnn_fast import _pyg_graph, pyg

geometric = pytest.importorskip("torch_geometric")

N, D = 40, 6


def random_edges(M=150, seed=0):
    """[2, M] on the first 36 of N nodes; the others have no edge."""
    return torch.randint(0, N - 4, (2, M), generator=torch.Generator().manual_seed(seed))


def without_loops(edge_index):
    return edge_index[:, edge_index[0] != edge_index[1]]


def both_directions(edge_index):
    return torch.cat([edge_index, edge_index.flip(0)], 1).unique(dim=1)


def with_all_loops(edge_index):
    return torch.cat([without_loops(edge_index), torch.arange(N).repeat(2, 1)], 1)


some = random_edges()
EDGES = {
    "directed": without_loops(some).unique(dim=1),
    "directed_copies": torch.cat([some, some[:, :30], some[:, :10]], 1),
    "undirected": both_directions(without_loops(some)),
    "undirected_copies": both_directions(without_loops(some)).repeat(1, 2),
    "undirected_some_loops": both_directions(some),
    "undirected_all_loops": with_all_loops(both_directions(some)),
    "one_copy_for_the_other_direction": torch.tensor([[0, 0, 1], [1, 1, 2]]),
    "one_edge": torch.tensor([[3], [5]]),
    "no_edges": torch.zeros(2, 0, dtype=torch.long),
    "int32": both_directions(some).int(),
    "strided": both_directions(some).t().contiguous().t(),
}
# name: class, arguments
LAYERS = {
    "APPNP": ("APPNP", {"K": 4, "alpha": 0.1}),
    "APPNP-no-steps": ("APPNP", {"K": 0, "alpha": 0.1}),
    "APPNP-no-loops": ("APPNP", {"K": 3, "alpha": 0.2, "add_self_loops": False}),
    "APPNP-plain": ("APPNP", {"K": 2, "alpha": 0.2, "normalize": False}),
    "APPNP-flow": ("APPNP", {"K": 3, "alpha": 0.1, "flow": "target_to_source"}),
    "APPNP-cached": ("APPNP", {"K": 3, "alpha": 0.1, "cached": True}),
    "SGConv": ("SGConv", {"in_channels": D, "out_channels": 3, "K": 2}),
    "SGConv-wider": ("SGConv", {"in_channels": D, "out_channels": 9}),
    "SGConv-no-bias": ("SGConv", {"in_channels": D, "out_channels": 3, "K": 2, "bias": False}),
    "SGConv-no-loops": ("SGConv", {"in_channels": D, "out_channels": 3, "add_self_loops": False}),
    "SGConv-cached": ("SGConv", {"in_channels": D, "out_channels": 3, "K": 2, "cached": True}),
    "SSGConv": ("SSGConv", {"in_channels": D, "out_channels": 3, "alpha": 0.1, "K": 4}),
    "SSGConv-one-step": ("SSGConv", {"in_channels": D, "out_channels": 8, "alpha": 0.05}),
    "SSGConv-no-steps": ("SSGConv", {"in_channels": D, "out_channels": 8, "alpha": 0.05, "K": 0}),
    "SSGConv-cached": ("SSGConv", {"in_channels": D, "out_channels": 3, "alpha": 0.1, "K": 2, "cached": True}),
    "GCN2Conv": ("GCN2Conv", {"channels": D, "alpha": 0.1, "theta": 0.5, "layer": 2}),
    "GCN2Conv-no-theta": ("GCN2Conv", {"channels": D, "alpha": 0.1}),
    "GCN2Conv-two": ("GCN2Conv", {"channels": D, "alpha": 0.3, "theta": 1.0, "layer": 1, "shared_weights": False}),
    "GCN2Conv-plain": ("GCN2Conv", {"channels": D, "alpha": 0.3, "normalize": False}),
}  # fmt: skip


def layers(name, dtype=torch.float64):
    """Theirs and ours with the same parameters, loaded from their checkpoint."""
    kind, arguments = LAYERS[name]
    torch.manual_seed(0)
    theirs = getattr(geometric.nn, kind)(**arguments).to(dtype)
    ours = getattr(pyg, kind)(**arguments).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def weights(edge_index, dtype=torch.float64):
    return torch.rand(edge_index.shape[1], generator=torch.Generator().manual_seed(1)).to(dtype) + 0.1


def inputs(layer, shape=(N, D), dtype=torch.float64):
    random = torch.Generator().manual_seed(2)
    count = 2 if type(layer).__name__ == "GCN2Conv" else 1
    return [torch.randn(shape, generator=random).to(dtype).requires_grad_() for _ in range(count)]


def run(layer, features, edge_index, weight=None):
    """The result and the gradients of the features, the weights of edges and all parameters."""
    out = layer(*features, edge_index, weight)
    wanted = {f"x{k}": x for k, x in enumerate(features)} | dict(layer.named_parameters())
    if weight is not None and weight.requires_grad:
        wanted["edge_weight"] = weight
    cotangent = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).reshape(out.shape)
    found = torch.autograd.grad(out, list(wanted.values()), cotangent, allow_unused=True, materialize_grads=True)
    return {"result": out.detach()} | dict(zip(wanted, found, strict=True))


def assert_same(found, expected, **tolerance):
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(
            found[name],
            expected[name],
            **(tolerance or {"rtol": 1e-10, "atol": 1e-11}),
            msg=lambda m, n=name: f"{n}: {m}",
        )


@pytest.mark.parametrize("weight", ["none", "given", "learned"])
@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("name", LAYERS)
def test_results_and_gradients_are_theirs(name, edges, weight):
    theirs, ours = layers(name)
    edge_index = EDGES[edges]
    w = None if weight == "none" else weights(edge_index)
    if weight == "learned":
        if edges == "directed_copies" and ours.add_self_loops and getattr(ours, "normalize", True):
            # theirs sends the gradient of a loop to all its copies, though only one of them has an effect
            edge_index = EDGES["directed_copies"][:, :150].unique(dim=1)
            w = weights(edge_index)
        w.requires_grad_()
    for mode in (True, False):
        theirs.train(mode), ours.train(mode)
        assert_same(run(ours, inputs(ours), edge_index, w), run(theirs, inputs(theirs), edge_index.long(), w))
        if "cached" in name:
            break


def test_the_last_weight_of_a_loop_counts():
    edge_index = torch.tensor([[0, 0, 1, 0, 2], [0, 1, 2, 0, 2]])
    w = torch.tensor([5.0, 1.0, 2.0, 3.0, 0.5])
    theirs, ours = layers("APPNP", torch.float32)
    x = torch.randn(4, 3)
    torch.testing.assert_close(ours(x, edge_index, w), theirs(x, edge_index, w))


@pytest.mark.parametrize("value", [0.0, -0.3])
def test_zero_and_negative_weights(value):
    edge_index = EDGES["directed"]
    w = weights(edge_index)
    w[:5] = value
    for name in ("APPNP", "APPNP-no-loops", "GCN2Conv-plain"):
        theirs, ours = layers(name)
        found, expected = (run(layer, inputs(layer), edge_index, w) for layer in (ours, theirs))
        for key in found:
            torch.testing.assert_close(found[key], expected[key], equal_nan=True)


@pytest.mark.parametrize("name", ["APPNP", "SGConv", "SSGConv"])
@pytest.mark.parametrize("edges", ["directed", "undirected"])
def test_batches_of_features(name, edges):
    theirs, ours = layers(name)
    both = (run(layer, inputs(layer, (2, N, D)), EDGES[edges]) for layer in (ours, theirs))
    assert_same(*both)


@pytest.mark.parametrize("name", LAYERS)
def test_float32(name):
    theirs, ours = layers(name, torch.float32)
    edge_index = EDGES["directed_copies"]
    w = weights(edge_index, torch.float32)
    both = (run(layer, inputs(layer, dtype=torch.float32), edge_index, w) for layer in (ours, theirs))
    assert_same(*both, rtol=1e-4, atol=1e-5)


def test_bfloat16_storage_and_float32_weights():
    _, ours = layers("APPNP")
    edge_index = EDGES["directed"]
    (x,) = inputs(ours)
    found = ours(x.bfloat16(), edge_index, weights(edge_index, torch.float32))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), ours(x, edge_index, weights(edge_index)), rtol=0.05, atol=0.03)


@pytest.mark.parametrize("name", ["SGConv-cached", "SSGConv-cached"])
def test_cached_features_are_those_of_the_first_call(name):
    theirs, ours = layers(name)
    edge_index = EDGES["undirected"]
    first = run(ours, inputs(ours), edge_index)
    assert first["x0"].abs().max() > 0
    run(theirs, inputs(theirs), edge_index)
    other = [x.detach() * 2 for x in inputs(ours)]
    found, expected = (run(layer, [x.requires_grad_() for x in other], edge_index) for layer in (ours, theirs))
    assert_same(found, expected)
    torch.testing.assert_close(found["result"], first["result"])
    assert found["x0"].abs().max() == 0
    ours.reset_parameters()
    assert run(ours, other, edge_index)["x0"].abs().max() > 0


def test_the_same_seed_draws_the_same_parameters():
    for kind, arguments in LAYERS.values():
        torch.manual_seed(7)
        theirs = getattr(geometric.nn, kind)(**arguments)
        torch.manual_seed(7)
        ours = getattr(pyg, kind)(**arguments)
        for reset in (False, True):
            if reset:
                for layer in (theirs, ours):
                    torch.manual_seed(8)
                    layer.reset_parameters()
            assert ours.state_dict().keys() == theirs.state_dict().keys()
            for name, value in theirs.state_dict().items():
                torch.testing.assert_close(ours.state_dict()[name], value, msg=lambda m, n=name: f"{n}: {m}")
        assert repr(ours) == repr(theirs)


@pytest.mark.parametrize("kind", ["SGConv", "SSGConv"])
def test_lazy_input_size(kind):
    arguments = {"in_channels": -1, "out_channels": 3, "K": 2} | ({"alpha": 0.1} if kind == "SSGConv" else {})
    theirs, ours = getattr(geometric.nn, kind)(**arguments), getattr(pyg, kind)(**arguments)
    x, edge_index = torch.randn(N, D), EDGES["directed"]
    expected = theirs(x, edge_index)
    assert ours(x, edge_index).shape == expected.shape
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x, edge_index), expected)
    fresh = getattr(pyg, kind)(**arguments)
    fresh.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(fresh(x, edge_index), expected)


class TestLabelPropagation:
    def both(self, *args, num_layers=4, alpha=0.8, **kwargs):
        theirs = geometric.nn.LabelPropagation(num_layers, alpha)
        ours = pyg.LabelPropagation(num_layers, alpha)
        assert repr(ours) == repr(theirs)
        found, expected = ours(*args, **kwargs), theirs(*args, **kwargs)
        assert not found.requires_grad
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)

    def labels(self):
        return torch.arange(N) % 3

    @pytest.mark.parametrize("edges", [name for name in EDGES if name != "int32"])
    def test_labels(self, edges):
        mask = torch.rand(N, generator=torch.Generator().manual_seed(0)) < 0.5
        edge_index = EDGES[edges]
        self.both(self.labels(), edge_index)
        self.both(self.labels(), edge_index, mask)
        self.both(self.labels()[:, None], edge_index, mask.nonzero().squeeze(1))
        self.both(self.labels(), edge_index, mask, weights(edge_index, torch.float32) * 0.3)

    def test_scores_and_steps(self):
        edge_index = EDGES["directed"]
        scores = torch.randn(N, 5)
        self.both(scores, edge_index)
        self.both(scores.double(), edge_index, edge_weight=weights(edge_index))
        self.both(torch.randint(0, 2, (N, 4)), edge_index)
        self.both(scores, edge_index, num_layers=0)
        self.both(scores, edge_index, post_step=lambda y: y.clamp(-0.5, 2.0))
        self.both(scores, edge_index, post_step=lambda y: y.softmax(-1), num_layers=3)


def builds(monkeypatch):
    """A list that grows with every Graph that is built."""
    made = []
    original = uf.Graph._from_built.__func__

    def counted(cls, *args):
        made.append(1)
        return original(cls, *args)

    monkeypatch.setattr(uf.Graph, "_from_built", classmethod(counted))
    return made


def test_edges_are_looked_at_once(monkeypatch):
    made = builds(monkeypatch)
    edge_index = both_directions(random_edges(seed=5))
    w = weights(edge_index, torch.float32)
    x = torch.randn(N, D)
    pyg.APPNP(2, 0.1)(x, edge_index)
    assert len(made) == 1
    pyg.APPNP(2, 0.1)(x, edge_index)
    pyg.SGConv(D, 3)(x, edge_index, w)
    first = _pyg_graph.matrix_of(edge_index, w, x, normalize=True, add_self_loops=True, to_target=True)
    pyg.SSGConv(D, 3, 0.1)(x, edge_index, w)
    assert len(made) == 1
    assert _pyg_graph.matrix_of(edge_index, w, x, normalize=True, add_self_loops=True, to_target=True)[1] is first[1]
    pyg.APPNP(2, 0.1)(x, edge_index.clone())
    assert len(made) == 2


def test_edges_and_weights_written_to_are_looked_at_again():
    edge_index = EDGES["directed"].clone()
    theirs, ours = layers("APPNP")
    (x,) = inputs(ours)
    w = weights(edge_index)
    before = ours(x, edge_index), ours(x, edge_index, w)
    w *= 3
    w[0] = 9.0
    torch.testing.assert_close(ours(x, edge_index, w), theirs(x, edge_index, w))
    edge_index[1, :20] = 7
    torch.testing.assert_close(ours(x, edge_index), theirs(x, edge_index))
    torch.testing.assert_close(ours(x, edge_index, w), theirs(x, edge_index, w))
    assert (ours(x, edge_index) - before[0]).abs().max() > 1e-3
    # the same edges for more nodes
    more = torch.cat([x, x[:3]])
    torch.testing.assert_close(ours(more, edge_index), theirs(more, edge_index))


def test_what_is_kept_ends_with_the_tensor():
    edge_index = random_edges(seed=6)
    w = weights(edge_index, torch.float32)
    pyg.APPNP(2, 0.1)(torch.randn(N, D), edge_index, w)
    (pattern,) = _pyg_graph._patterns[edge_index][1].values()
    assert len(pattern.weighted) == 1
    graph = weakref.ref(pattern)
    del w
    gc.collect()
    assert len(pattern.weighted) == 0
    del edge_index, pattern
    gc.collect()
    assert graph() is None


def test_after_inference_mode_comes_training():
    edge_index = random_edges(seed=8)
    w = weights(edge_index)
    theirs, ours = layers("APPNP")
    with torch.inference_mode():
        ours(inputs(ours)[0], edge_index)
        ours(inputs(ours)[0], edge_index, w)
    for weight in (None, w):
        both = (run(layer, inputs(layer), edge_index, weight) for layer in (ours, theirs))
        assert_same(*both)
    with torch.inference_mode():
        made_here = edge_index.clone()
        for _ in range(2):
            torch.testing.assert_close(ours(inputs(ours)[0], made_here), theirs(inputs(ours)[0], made_here))
            made_here[0, 0] += 1


def test_gradient_of_weights_after_a_call_without():
    edge_index = random_edges(seed=9).unique(dim=1)
    theirs, ours = layers("APPNP")
    w = weights(edge_index).requires_grad_()
    with torch.no_grad():
        assert not ours(inputs(ours)[0], edge_index, w).requires_grad
    both = (run(layer, inputs(layer), edge_index, w) for layer in (ours, theirs))
    assert_same(*both)


def test_edge_index_class():
    edge_index = EDGES["undirected"]
    theirs, ours = layers("APPNP")
    (x,) = inputs(ours)
    wrapped = geometric.EdgeIndex(edge_index.contiguous(), sparse_size=(N, N))
    torch.testing.assert_close(ours(x, wrapped), theirs(x, edge_index))


def test_compiled_around_the_look_up():
    theirs, ours = layers("SGConv")
    edge_index = EDGES["directed"]
    compiled = torch.compile(ours, backend="aot_eager")
    assert_same(
        run(ours, inputs(ours), edge_index) | {"result": compiled(*inputs(ours), edge_index).detach()},
        run(theirs, inputs(theirs), edge_index),
    )


def test_torch_geometric_is_not_imported():
    code = "import sys, ugnn_fast as uf; uf.pyg.APPNP(2, 0.1); assert 'torch_geometric' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


X = torch.zeros(N, D)
E = EDGES["directed"]
REFUSED = {
    "bipartite": (TypeError, "bipartite graphs are not supported", (X, X), E, None),
    "x-type": (TypeError, "x must be a tensor, got str", "x", E, None),
    "x-dim": (ValueError, r"x must be \[N, D\] or \[B, N, D\], got \[40\]", X[:, 0], E, None),
    "x-dtype": (TypeError, "x must be float32, float64, bfloat16 or float16, got torch.int64", X.long(), E, None),
    "few-nodes": (ValueError, r"edge_index must be in \[0, num_nodes\) = \[0, 3\)", X[:3], E, None),
    "sparse": (TypeError, "edge_index must be a dense tensor .* got torch.sparse_coo", X, E.to_sparse(), None),
    "adjacency": (TypeError, "edge_index must be int64 or int32, got torch.float32", X, E.float(), None),
    "edge-shape": (ValueError, r"edge_index must be \[2, E\], got \[3, 4\]", X, torch.zeros(3, 4).long(), None),
    "edge-type": (TypeError, r"edge_index must be a tensor \[2, E\], got list", X, E.tolist(), None),
    "weight-shape": (ValueError, r"edge_weight must be \[E\] = \[\d+\], got \[3\]", X, E, torch.zeros(3)),
    "weight-type": (TypeError, r"edge_weight must be a tensor \[E\], got float", X, E, 1.0),
    "weight-int": (TypeError, "edge_weight must be torch.float32 .* got torch.int64", X, E, E[0]),
    "weight-double": (TypeError, "must be torch.float32 beside torch.float32 x, got torch.float64", X, E, weights(E)),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("layer", [pyg.APPNP(2, 0.1), pyg.SGConv(D, 9)], ids=["APPNP", "SGConv"])
def test_refused_input(case, layer):
    error, message, x, edge_index, weight = REFUSED[case]
    with pytest.raises(error, match=message):
        layer(x, edge_index, weight)


REFUSED_ARGUMENTS = {
    "dropout": (pyg.APPNP, {"dropout": 0.5}, "dropout must be 0, as edges are not dropped here, got 0.5"),
    "aggr": (pyg.APPNP, {"aggr": "max"}, "aggr must be 'add' or 'sum', got 'max'"),
    "flow": (pyg.APPNP, {"flow": "up"}, "flow must be 'source_to_target' or 'target_to_source', got 'up'"),
    "node_dim": (pyg.APPNP, {"node_dim": 0}, "node_dim must be -2, got 0"),
    "other": (pyg.APPNP, {"decomposed_layers": 2}, "APPNP does not take decomposed_layers"),
    "steps": (pyg.LabelPropagation, {}, "steps must be an int, got float"),
    "theta": (pyg.GCN2Conv, {"theta": 0.5}, "theta and layer go together, got theta=0.5 and layer=None"),
}


@pytest.mark.parametrize("case", REFUSED_ARGUMENTS)
def test_refused_arguments(case):
    kind, arguments, message = REFUSED_ARGUMENTS[case]
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        kind(2.0 if case == "steps" else 2, 0.1, **arguments)
